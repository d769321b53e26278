"""Pictures that fail: told, tried again, and never the end of a training job."""

import errno
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from models.archs.pocket.model import PocketModel
from models.base import BaseModel
from models.batch import GenerateImageConfig
from models.errors import UserError
from models.memory import is_out_of_memory
from models.prompt_embeds import AdvancedPromptEmbeds
from worker.report import PreviewTold, Reporter, Stop
from worker.sampling import media, preview
from worker.sampling.attempts import Round

PROMPTS = ["a", "b", "c", "d"]
CPU_ALLOCATOR = "[enforce fail at alloc_cpu.cpp:1] . DefaultCPUAllocator: not enough memory: you tried to allocate 9 bytes."


class Studio(BaseModel):
    """Makes plain pictures, several at once, and fails as the test's `fault(prompts)` says."""

    def load_model(self) -> None:
        self.model = nn.Sequential(nn.Linear(1, 1), nn.Dropout(0.5))
        self.calls: list[list[str]] = []
        self.fault: Any = lambda _: None

    def get_prompt_embeds(self, prompt: list[str], control_images: Any = None) -> AdvancedPromptEmbeds:
        return AdvancedPromptEmbeds(text_embeds=[torch.zeros(1, 4) for _ in prompt])

    def get_generation_pipeline(self) -> Any:
        return "pipeline"

    def generate_single_image(self, pipeline: Any, gen_config: Any, cond: Any, uncond: Any, generator: Any, extra: Any) -> Any:
        return self.generate_batch(pipeline, [gen_config], cond, uncond, [generator])[0]

    def generate_batch(self, pipeline: Any, gen_configs: Any, cond: Any, uncond: Any, generators: Any) -> Any:
        assert pipeline == "pipeline"
        assert not self.model.training
        assert len(cond) == len(uncond) == len(gen_configs)
        prompts = [config.prompt for config in gen_configs]
        self.calls.append(prompts)
        random.random(), np.random.rand(), torch.rand(3)  # as careless foreign code does
        if error := self.fault(prompts):
            raise error
        levels = [int(torch.randint(0, 256, (1,), generator=generator)) for generator in generators]
        return [Image.new("RGB", (8, 8), (level, 0, 0)) for level in levels]


class Listener(Reporter):
    def __init__(self, workdir: Path) -> None:
        super().__init__(workdir, 10)
        self.told: list[PreviewTold] = []
        self.logged: list[tuple[str, str]] = []

    def preview(self, told: PreviewTold, done: int | None = None) -> None:
        self.told.append(told)

    def log(self, message: str, level: str = "INFO") -> None:
        self.logged.append((level, message))

    @property
    def prompts(self) -> list[str]:
        return [told.record["prompt"] for told in self.told]


@pytest.fixture
def studio() -> Studio:
    model = Studio("cpu", SimpleNamespace(), "fp32")
    model.load_model()
    return model


@pytest.fixture
def listener(tmp_path: Path) -> Listener:
    return Listener(tmp_path)


@pytest.fixture
def wanted(studio: Studio, listener: Listener) -> Round:
    made = preview.encode(studio, [GenerateImageConfig(prompt, seed=at) for at, prompt in enumerate(PROMPTS)], listener)
    made.batch_size = 4
    return made


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("CUDA out of memory."), MemoryError(), RuntimeError(CPU_ALLOCATOR)])
def test_too_little_memory_means_half_as_many_from_then_on(studio, listener, wanted, error) -> None:
    studio.fault = lambda prompts: error if len(prompts) > 2 else None
    preview.render(studio, wanted, listener, step=5)
    assert studio.calls == [PROMPTS, ["a", "b"], ["c", "d"]]
    assert listener.prompts == PROMPTS
    [(level, message)] = listener.logged
    assert level == "WARNING"
    assert message.startswith("memory does not suffice for 4 pictures at once")
    assert message.endswith("; now 2")
    studio.calls.clear()
    preview.render(studio, wanted, listener, step=6)
    assert studio.calls == [["a", "b"], ["c", "d"]]


def test_a_picture_that_never_fits_is_told_and_the_others_are_made(studio, listener, wanted) -> None:
    studio.fault = lambda prompts: torch.OutOfMemoryError("CUDA out of memory.") if "b" in prompts else None
    failed = preview.render(studio, wanted, listener, step=500)
    assert studio.calls == [PROMPTS, ["a", "b"], ["a"], ["b"], ["b"], ["c"], ["d"]]
    assert listener.prompts == ["a", "c", "d"]
    assert failed == {1: "OutOfMemoryError: CUDA out of memory."}
    assert listener.logged[-1] == (
        "ERROR",
        "the preview of prompt 1 ('b') at step 500 could not be made: OutOfMemoryError: CUDA out of memory. "
        "The job goes on without it.",
    )


def test_what_fails_together_is_made_one_by_one_and_later_rounds_are_whole_again(studio, listener, wanted) -> None:
    studio.fault = lambda prompts: UserError("the control image is too small") if "c" in prompts else None
    assert preview.render(studio, wanted, listener, step=1) == {2: "the control image is too small"}
    assert studio.calls == [PROMPTS, ["a"], ["b"], ["c"], ["d"]]
    assert listener.prompts == ["a", "b", "d"]
    studio.calls.clear()
    studio.fault = lambda _: None
    assert preview.render(studio, wanted, listener, step=2) == {}
    assert studio.calls == [PROMPTS]


def test_a_fault_that_passes_costs_nothing_but_time(studio, listener, wanted) -> None:
    wanted.batch_size = 1
    faults = [None, ValueError("a hiccup")]
    studio.fault = lambda prompts: faults.pop() if prompts == ["b"] else None
    assert preview.render(studio, wanted, listener, step=1) == {}
    assert studio.calls == [["a"], ["b"], ["b"], ["c"], ["d"]]
    assert listener.prompts == PROMPTS
    assert listener.logged == []


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EFBIG])
def test_a_full_disk_leaves_no_torn_preview_and_is_told(studio, listener, wanted, tmp_path, monkeypatch, number) -> None:
    def save(path: Path, picture: Image.Image) -> Path:
        if "_001" in path.name:
            raise OSError(number, "the disk is full")
        return thumbnail(path, picture)

    thumbnail = media._write_thumbnail
    monkeypatch.setattr(media, "_write_thumbnail", save)
    failed = preview.render(studio, wanted, listener, step=3)
    assert list(failed) == [1]
    assert studio.calls == [PROMPTS]
    assert listener.prompts == ["a", "c", "d"]
    assert not list(tmp_path.glob("samples/*_001*"))
    assert len(list(tmp_path.glob("samples/*"))) == 6
    [(level, message)] = listener.logged
    assert level == "ERROR"
    assert "the disk is full" in message


def test_a_pipeline_that_cannot_be_built_fails_every_picture_once(studio, listener, wanted, monkeypatch) -> None:
    def broken() -> Any:
        raise KeyError("scheduler")

    monkeypatch.setattr(studio, "get_generation_pipeline", broken)
    assert preview.render(studio, wanted, listener, step=3) == dict.fromkeys(range(4), "KeyError: 'scheduler'")
    assert [level for level, _ in listener.logged] == ["ERROR"] * 4


def test_stop_passes_and_what_is_whole_is_told(studio, listener, wanted, monkeypatch) -> None:
    def stopping() -> None:
        if len(listener.told) == 2:
            raise Stop("requeue")

    monkeypatch.setattr(listener, "check", stopping)
    wanted.batch_size = 2
    with pytest.raises(Stop):
        preview.render(studio, wanted, listener, step=3)
    assert listener.prompts == ["a", "b"]
    assert studio.calls == [["a", "b"]]
    assert studio.model.training


def test_modes_and_generators_are_as_before(studio, listener, wanted) -> None:
    studio.model[1].eval()
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()
    preview.render(studio, wanted, listener, step=3)
    assert [module.training for module in (studio.model, studio.model[0], studio.model[1])] == [True, True, False]
    assert torch.equal(torch.get_rng_state(), states[0])
    assert random.getstate() == states[1]
    assert all(np.array_equal(one, other) for one, other in zip(np.random.get_state(), states[2], strict=True))


def test_a_preview_made_again_is_a_further_file(studio, listener, wanted, tmp_path) -> None:
    for _ in range(3):
        preview.render(studio, wanted, listener, step=3, skip={0, 1, 2})
    names = sorted(path.name for path in tmp_path.glob("samples/*.png"))
    assert names == ["000000003_003.png", "000000003_003_2.png", "000000003_003_3.png"]
    assert [told.picture.name for told in listener.told] == names
    assert len({path.read_bytes() for path in tmp_path.glob("samples/*.png")}) == 1


def test_other_errors_are_not_taken_for_too_little_memory() -> None:
    assert not any(map(is_out_of_memory, (RuntimeError("shape mismatch"), ValueError("out of memory"), OSError(28, "full"))))
    assert is_out_of_memory(OSError(errno.ENOMEM, "cannot allocate"))


def test_training_goes_on_past_a_prompt_that_fails(tiny_job, pictures, run_here, scripted, weights_of, same, monkeypatch) -> None:
    pictures()
    samples = [{"prompt": "colour number 0"}, {"prompt": "breaks"}, {"prompt": "colour number 2"}]
    job = tiny_job(**{"sample.samples": samples})
    without = tiny_job(**{"train.disable_sampling": True})
    generate = PocketModel.generate_batch

    def fails(self: Any, pipeline: Any, configs: Any, *rest: Any) -> Any:
        if any(config.prompt == "breaks" for config in configs):
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return generate(self, pipeline, configs, *rest)

    monkeypatch.setattr(PocketModel, "generate_batch", fails)
    reporter = scripted("with")
    logged: list[str] = []
    monkeypatch.setattr(reporter, "log", lambda message, level="INFO": logged.append(message) if level == "ERROR" else None)
    run_here(job, reporter)
    assert reporter.heard("preview") == [(step, index) for step in (0, 3, 6) for index in (0, 2)]
    assert [f"prompt 1 ('breaks') at step {step}" in message for step, message in zip((0, 3, 6), logged, strict=True)] == [
        True
    ] * 3
    assert same(weights_of(reporter.workdir, 6), weights_of(run_here(without, folder="without"), 6))
