"""Previews of a training job: the settings that were asked for, the base model at step 0, and no trace in what is trained."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import FlowMatchEulerDiscreteScheduler, UNet2DConditionModel
from PIL import Image
from safetensors import safe_open
from transformers import AutoModel, AutoTokenizer

from models import catalog
from models.archs.pocket.model import bundled_encoder
from models.errors import SpecError
from worker import tiny
from worker.sampling import preview

LORA = {"type": "lora", "linear": 4, "linear_alpha": 4.0}
PROMPT = "colour number 0"
Made = dict[tuple[int, int], Image.Image]


@pytest.fixture
def job(home: Path, pictures: Any, tiny_job: Any) -> Callable[..., dict[str, Any]]:
    """`job(samples, **changes)`: two steps of a LoRA that changes much, on a checkpoint, with previews before and after."""
    tiny.main("pocket", str(home / "models"))
    pictures()

    def make(samples: list[dict[str, Any]], sample: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
        model = {"arch": "pocket", "name_or_path": "pocket.safetensors"}
        section = {"sample_every": 2, "sample_steps": 4, "seed": 42, "samples": samples, **(sample or {})}
        return tiny_job(**{"network": LORA, "model": model, "train.steps": 2, "train.lr": 0.05, "sample": section, **changes})

    return make


def made(folder: Path) -> Made:
    """The pictures of a run by step and prompt."""
    named = {path: [int(part) for part in path.stem.split("_")] for path in folder.glob("samples/*.png")}
    return {(step, index): Image.open(path) for path, (step, index) in named.items()}


def record(picture: Image.Image) -> dict[str, Any]:
    return json.loads(picture.text["safelight"])  # type: ignore[attr-defined, no-any-return]


def apart(one: Image.Image, other: Any) -> int:
    return int(np.abs(np.asarray(one, dtype=int) - np.asarray(other, dtype=int)).max())


@torch.no_grad()
def plain_picture(weights: Path, prompt: str, neg: str, scale: float, seed: int, width: int, height: int, steps: int) -> Any:
    """The checkpoint sampled with diffusers and transformers alone."""
    with safe_open(weights, framework="pt") as file:
        unet: Any = UNet2DConditionModel(**json.loads(file.metadata()["config"]))
        unet.load_state_dict({name: file.get_tensor(name) for name in file.keys()})  # noqa: SIM118
    tokenizer, encoder = AutoTokenizer.from_pretrained(bundled_encoder()), AutoModel.from_pretrained(bundled_encoder())
    hidden = [encoder(**tokenizer(text, return_tensors="pt")).last_hidden_state.mean(1) for text in (prompt, neg)]
    texts = [torch.nn.functional.normalize(mean, dim=-1) * 384**0.5 for mean in hidden]
    scheduler = FlowMatchEulerDiscreteScheduler()
    scheduler.set_timesteps(sigmas=np.linspace(1, 1 / steps, steps).tolist())
    x = torch.randn((1, 12, height // 2, width // 2), generator=torch.Generator().manual_seed(seed))
    for t in scheduler.timesteps:
        asked, without = (unet(x, t, encoder_hidden_states=text[None], class_labels=text).sample for text in texts)
        x = scheduler.step(without + scale * (asked - without) if scale > 1 else asked, t, x).prev_sample
    levels = (torch.nn.functional.pixel_shuffle(x, 2)[0].clamp(-1, 1) + 1) * 127.5
    return levels.round().permute(1, 2, 0).numpy()


def test_what_is_asked_for_is_what_is_shown_and_step_0_is_the_plain_base(job, run_here, home) -> None:
    asked = [(scale, neg) for scale in (1.0, 4.0) for neg in ("", "grey")]
    samples = [
        {"prompt": PROMPT, "neg": neg, "guidance_scale": scale, "width": 64, "height": 96, "seed": 42} for scale, neg in asked
    ]
    first, again = (made(run_here(job(samples), folder=folder)) for folder in ("first", "again"))
    assert sorted(first) == [(step, index) for step in (0, 2) for index in range(4)]
    for place, picture in first.items():
        assert picture.size == (64, 96)
        assert apart(picture, again[place]) == 0
    for index, (scale, neg) in enumerate(asked):
        plain = plain_picture(home / "models" / "pocket.safetensors", PROMPT, neg, scale, 42, 64, 96, 4)
        assert apart(first[0, index], plain) <= 1  # float32 sums in another order, then 8 bits
        told = {"seed": 42, "guidance_scale": scale, "neg": neg, "width": 64, "height": 96, "sample_steps": 4, "step": 0}
        assert told.items() <= record(first[0, index]).items()
    assert apart(first[0, 0], first[0, 1]) == 0  # without guidance the negative prompt says nothing
    assert apart(first[0, 2], first[0, 3]) > 1
    assert apart(first[0, 0], first[0, 2]) > 1
    assert all(apart(first[0, index], first[2, index]) > 1 for index in range(4))


def test_a_weaker_adapter_and_none_at_all(job, run_here) -> None:
    samples = [{"prompt": PROMPT, "seed": 42, "network_multiplier": strength} for strength in (1.0, 0.5, 0.0)]
    pictures = made(run_here(job(samples)))
    assert apart(pictures[0, 0], pictures[2, 2]) == 0
    full, half = (apart(pictures[2, index], pictures[2, 2]) for index in (0, 1))
    assert full > half > 0
    assert [record(pictures[2, index])["network_multiplier"] for index in range(3)] == [1.0, 0.5, 0.0]


def test_the_trigger_word_stands_in_for_its_marks_only(job, run_here) -> None:
    samples = [{"prompt": "a [trigger] apple", "neg": "no [name]"}, {"prompt": "an apple"}]
    pictures = made(run_here(job(samples, trigger_word="sks", **{"train.steps": 1})))
    assert [record(pictures[0, index])["prompt"] for index in range(2)] == ["a sks apple", "an apple"]
    assert record(pictures[0, 0])["neg"] == "no sks"
    written = made(run_here(job([{"prompt": "a sks apple", "neg": "no sks"}], **{"train.steps": 1}), folder="written"))
    assert apart(pictures[0, 0], written[0, 0]) == 0


@pytest.mark.parametrize(
    ("start", "skip_first", "steps"), [(0, False, [0, 2, 4, 5]), (3, False, [0, 4, 5]), (3, True, [4, 5]), (9, True, [5])]
)
def test_previews_begin_where_they_are_told_to(job, start, skip_first, steps) -> None:
    made_job = job([{"prompt": PROMPT}], {"sample_start_step": start}, **{"train.steps": 5})
    made_job["train"]["skip_first_sample"] = skip_first
    spec: Any = catalog.parse_job(made_job)
    assert [step for step in range(6) if preview.is_due(step, spec)] == steps


def test_pictures_made_together_are_those_made_alone(job, run_here) -> None:
    samples = [{"prompt": f"colour number {index}", "guidance_scale": 3.0 + index // 3} for index in range(5)]
    alone, together = (
        made(run_here(job(samples, {"batch_size": size}, **{"train.steps": 1}), folder=str(size))) for size in (1, 4)
    )
    assert len(alone) == 10
    assert all(apart(picture, together[place]) <= 1 for place, picture in alone.items())  # a batch may sum in another order


def test_a_sampler_of_the_card_is_used_and_another_is_refused(job, run_here) -> None:
    usual, euler, heun = (
        made(run_here(job([{"prompt": PROMPT}], {"sampler": name}, **{"train.steps": 1}), folder=str(name)))[0, 0]
        for name in (None, "euler", "heun")
    )
    assert apart(usual, euler) == 0
    assert apart(heun, euler) > 1
    assert [record(picture)["sampler"] for picture in (usual, euler, heun)] == ["euler", "euler", "heun"]
    with pytest.raises(SpecError, match="arch 'pocket' has no sampler 'huen'; known: euler, heun") as raised:
        catalog.parse_job(job([{"prompt": PROMPT}], {"sampler": "huen"}))
    assert (raised.value.problems[0].pointer, raised.value.problems[0].suggestion) == ("/sample/sampler", "heun")
    hidden, offered = (
        catalog.job_schema(arch, "train")["$defs"]["PreviewSpec"]["properties"]["sampler"]["ui"]
        for arch in ("flux2_klein_4b", "pocket")
    )
    assert (hidden["hidden"], offered["suggest"]) == (True, ["euler", "heun"])
    klein = {
        "kind": "sample",
        "name": "k",
        "model": {"arch": "flux2_klein_4b", "name_or_path": "x"},
        "sample": {"sampler": "heun"},
        "samples": [{"prompt": "x"}],
    }
    with pytest.raises(SpecError, match="it has one way of sampling; leave sampler out"):
        catalog.parse_job(klein)


@pytest.mark.parametrize("ema", [False, True])
def test_previews_leave_no_trace_in_an_adapter_with_dropout(job, run_here, weights_of, same, ema) -> None:
    network = {**LORA, "dropout": 0.5}
    more = {"network": network, "train.steps": 4, "train.ema_config": {"use_ema": True, "ema_decay": 0.5} if ema else {}}
    every = run_here(job([{"prompt": PROMPT}], {"sample_every": 1}, **more), folder="every")
    never = run_here(job([], **more), folder="never")
    assert len(made(every)) == 5
    assert not made(never)
    assert same(weights_of(every, 4), weights_of(never, 4))


def test_a_record_says_all_that_a_picture_depends_on(job, run_here) -> None:
    picture = made(run_here(job([{"prompt": PROMPT}], **{"train.steps": 1})))[1, 0]
    assert record(picture) == {
        "step": 1, "prompt_index": 0, "prompt": PROMPT, "neg": "", "seed": 42, "guidance_scale": 2.0, "sample_steps": 4,
        "network_multiplier": 1.0, "controls": {}, "arch": "pocket", "model": "pocket.safetensors", "sampler": "euler",
        "media": "image", "width": 32, "height": 32,
    }  # fmt: skip
    assert picture.text["seed"] == "42"  # type: ignore[attr-defined]
