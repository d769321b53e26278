"""What a job hands on to the next one on the same model: what is there stays, what was released comes back alone and only where there is
something to encode, and no number is another than after a cold start."""

import ctypes
import dataclasses
import itertools
import os
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from models import catalog, memory, released
from models.archs.flux2_klein.model import write_tiny
from models.offload import is_offloaded
from worker.data import fingerprint
from worker.load import Slot, load_model
from worker.places import find_places
from worker.report import Stop
from worker.run import run

IN_OPEN, IN_NONBLOCK = 0x20, 0o4000  # linux/inotify.h
EVENT = struct.Struct("iIII")
PARTS = ("transformer", "vae", "text_encoder")
LOST_ALONE = "cannot load the text encoder alone"


class Opened:
    """Counts how often the weights' files of the parts are opened, by whatever code."""

    def __init__(self, folder: Path) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        self._queue = libc.inotify_init1(IN_NONBLOCK)
        self._parts = {libc.inotify_add_watch(self._queue, bytes(folder / part), IN_OPEN): part for part in PARTS}

    def take(self) -> set[str]:
        """The parts whose weights were opened since the last call."""
        found = set()
        try:
            while data := os.read(self._queue, 1 << 16):
                while data:
                    part, _, _, length = EVENT.unpack_from(data)
                    name = data[EVENT.size : EVENT.size + length].rstrip(b"\0")
                    found |= {self._parts[part]} if name.endswith(b".safetensors") else set()
                    data = data[EVENT.size + length :]
        except BlockingIOError:
            pass
        return found


@pytest.fixture
def opened(home: Path, pictures: Callable[..., Path]) -> Iterator[Opened]:
    pictures(count=3, size=32)
    write_tiny(home / "models" / "tiny")
    counter = Opened(home / "models" / "tiny")
    yield counter
    os.close(counter._queue)


def job(prompt: str | None = "a", trigger: str = "", **model: Any) -> Any:
    made: dict[str, Any] = {
        "kind": "train",
        "name": "warm",
        "model": {
            "arch": "flux2_klein_4b", "name_or_path": "tiny", "dtype": "fp32", "model_kwargs": {"max_text_length": 48}, **model,
        },
        "network": {"linear": 2, "linear_alpha": 2.0},
        "datasets": [{"folder_path": "colours", "resolution": [32]}],
        "train": {"steps": 2, "lr": 1e-2, "disable_sampling": prompt is None, "skip_first_sample": True},
        "save": {"save_every": 2, "dtype": "fp32"},
        "sample": {"width": 32, "height": 32, "sample_steps": 1, "samples": [{"prompt": prompt or ""}]},
        "trigger_word": trigger or None,
    }  # fmt: skip
    return catalog.parse_job(made)


@pytest.fixture
def do(scripted: Any, tmp_path: Path, weights_of: Any) -> Callable[..., Any]:
    """`do(spec, slot)` runs the job; the answer is all that it made: losses, weights, pictures. Without a slot it starts cold, with a
    cache of its own."""
    numbers = itertools.count()

    def work(spec: Any, slot: Slot | None = None, **told: Any) -> Any:
        reporter = scripted(f"run{next(numbers)}", **told)
        places = find_places(spec)
        if slot is None:
            places = dataclasses.replace(places, cache=tmp_path / f"cache{next(numbers)}")
        run(spec, places, reporter, "cpu", slot)
        pictures = [path.read_bytes() for path in sorted(reporter.workdir.glob("samples/*.png"))]
        if spec.kind == "sample":
            return pictures
        return reporter.heard("loss"), {k: v.tolist() for k, v in weights_of(reporter.workdir).items()}, pictures

    return work


def test_only_what_was_released_and_is_needed_is_read_again(do: Any, opened: Opened) -> None:
    slot = Slot()
    first = do(job(), slot)
    assert opened.take() == set(PARTS)
    assert len(first[0]) == 2 and len(first[2]) == 1
    assert do(job(), slot) == first and opened.take() == set()  # the same data: captions, latents and prompts are cached

    new_captions = do(job(trigger="ohm"), slot)
    assert opened.take() == {"text_encoder"}
    new_prompt = do(job("b"), slot)
    assert opened.take() == {"text_encoder"}
    without = do(job(prompt=None), slot)  # releases the VAE too
    assert opened.take() == set()
    assert do(job("b"), slot) == new_prompt and opened.take() == {"vae"}

    assert (do(job(trigger="ohm")), do(job("b")), do(job(prompt=None))) == (new_captions, new_prompt, without)


def test_a_sampling_job_after_a_training_job_reads_the_text_encoder_for_new_prompts_alone(do: Any, opened: Opened) -> None:
    def sampling(prompt: str) -> Any:
        sizes = {"width": 32, "height": 32, "sample_steps": 1}
        model = job().model.model_dump(mode="json")
        return catalog.parse_job(
            {"kind": "sample", "name": "s", "model": model, "sample": sizes, "samples": [{"prompt": prompt}]}
        )

    slot = Slot()
    do(job(), slot)
    opened.take()
    known = do(sampling("a"), slot)
    assert opened.take() == set()
    new = do(sampling("c"), slot)
    assert opened.take() == {"text_encoder"}
    assert known == do(sampling("a")) and new == do(sampling("c")) and known != new


def test_a_class_that_cannot_load_a_part_alone_loads_the_whole_model_and_says_so(
    do: Any, opened: Opened, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    slot = Slot()
    monkeypatch.setattr("models.components.with_recipe", lambda part, *_: part)
    do(job(), slot)
    opened.take()
    do(job(), slot)
    assert opened.take() == set() and LOST_ALONE not in caplog.text  # nothing is to be encoded
    caplog.set_level("INFO")
    made = do(job("b"), slot)
    assert opened.take() == set(PARTS)
    assert f"the whole model is loaded again: its class Flux2KleinModel {LOST_ALONE}" in caplog.text
    assert made == do(job("b"))


def test_a_stopped_job_leaves_its_model_and_a_failed_one_does_not(do: Any, opened: Opened, monkeypatch: Any) -> None:
    slot = Slot()
    with pytest.raises(Stop):
        do(job(), slot, stop_at=("step", 1), wish="cancel")
    opened.take()
    made = do(job(), slot)
    assert opened.take() == set()
    monkeypatch.setattr("worker.training.loop.make_optimizer", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        do(job(), slot)
    monkeypatch.undo()
    assert do(job(), slot) == made and opened.take() == {"transformer", "vae", "text_encoder"}


EIGHT_BITS = {"quantize": True, "qtype": "qint8", "quantize_te": True, "qtype_te": "qint8"}
OUTSIDE = {"low_vram": True, "layer_offloading": True}


@pytest.mark.parametrize("saving", [{}, {**EIGHT_BITS, **OUTSIDE}], ids=["plain", "quantized, offloaded, low_vram"])
def test_parts_come_back_quantized_and_offloaded_as_they_were(saving: dict[str, Any], opened: Opened) -> None:
    spec = job(**saving)
    model = load_model(spec, find_places(spec), "cpu")
    digests = fingerprint.text_fingerprint(model), fingerprint.latent_fingerprint(model)
    memory.encoding(model)
    embeds, latents = model.encode_prompt("a"), model.encode_images(torch.zeros(1, 3, 32, 32))
    memory.encoded(model, spec, previews=False)
    assert model.absent == {"text_encoder", "vae"}
    memory.encoding(model)
    for name in ("text_encoder", "vae"):
        memory.restore(model, name)
    assert model.absent == set()
    assert fingerprint.is_as_before(model, "text") and fingerprint.is_as_before(model, "latents")
    assert digests == (fingerprint.text_fingerprint(model), fingerprint.latent_fingerprint(model))
    assert is_offloaded(model.text_encoder) == ("layer_offloading" in saving)
    assert torch.equal(model.encode_prompt("a").text_embeds[0], embeds.text_embeds[0])
    assert torch.equal(model.encode_images(torch.zeros(1, 3, 32, 32)), latents)


def test_a_part_that_its_architecture_changed_after_loading_is_not_loaded_alone(opened: Opened, monkeypatch: Any) -> None:
    spec = job()
    remember = released.remember

    def changed(model: Any) -> None:
        model.vae.use_slicing = True  # a setting that makes no difference to the weights
        remember(model)

    monkeypatch.setattr(released, "remember", changed)
    model = load_model(spec, find_places(spec), "cpu")
    memory.drop(model, "vae")
    with pytest.raises(released.NotAlone, match="the VAE alone is not what Flux2KleinModel makes of it"):
        memory.restore(model, "vae")
