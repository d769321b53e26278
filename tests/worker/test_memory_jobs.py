"""Jobs that save memory: the very weights of the job that does not, quantized starts, and what a warm slot hands on."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from models import catalog, quantize
from models.errors import UserError
from server.store.files import stamp
from worker.load import Slot
from worker.places import find_places

SAVING: dict[str, Any] = {"low_vram": True, "layer_offloading": True}
QUANTIZED: dict[str, Any] = {"quantize": True, "qtype": "qint8", "quantize_te": True, "qtype_te": "qint8"}


@pytest.fixture
def job(pictures: Callable[..., Path], tiny_job: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
    """An adapter's job of four steps with previews; `model` has more keys of its section."""
    pictures()

    def make(model: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
        made: dict[str, Any] = tiny_job(**{"network": {"linear": 2, "linear_alpha": 2.0}, "train.steps": 4, **changes})
        made["model"] |= model or {}
        return made

    return make


@pytest.mark.parametrize("base", [{}, QUANTIZED], ids=["plain", "quantized"])
def test_saving_memory_gives_the_same_weights_and_pictures(
    base: dict[str, Any], job: Any, run_here: Callable[..., Path], weights_of: Any
) -> None:
    plain = run_here(job(base), folder="plain")
    saving = run_here(job({**base, **SAVING}, **{"train.gradient_checkpointing": True}), folder="saving")
    wanted, found = weights_of(plain), weights_of(saving)
    assert wanted.keys() == found.keys() and all(torch.equal(wanted[key], found[key]) for key in wanted)
    for picture in sorted((plain / "samples").glob("*.png")):
        assert picture.read_bytes() == (saving / "samples" / picture.name).read_bytes()


def test_the_second_start_quantizes_nothing(
    job: Any, run_here: Callable[..., Path], weights_of: Any, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = run_here(job(QUANTIZED), folder="first")
    assert len(list((home / "cache" / "quantized").iterdir())) == 2
    monkeypatch.setattr(quantize.QModuleMixin, "freeze", lambda _: pytest.fail("quantized again"))
    second = run_here(job(QUANTIZED), folder="second")
    assert all(
        torch.equal(one, other) for one, other in zip(weights_of(first).values(), weights_of(second).values(), strict=True)
    )


def test_a_glob_that_matches_nothing_names_the_layers(job: Any, run_here: Callable[..., Path]) -> None:
    with pytest.raises(UserError, match=r"no layer's name matches 'blokcs\*'; there are: "):
        run_here(job({**QUANTIZED, "quantize_kwargs": {"exclude": ["blokcs*"]}}))


def taken(slot: Slot, raw: dict[str, Any]) -> Any:
    spec = catalog.parse_job(raw)
    return slot.take(spec, find_places(spec), "cpu")


def test_gradient_checkpointing_does_not_outlive_its_job(job: Any) -> None:
    slot = Slot()
    plain = job()
    on = job(**{"train.gradient_checkpointing": True})
    first = taken(slot, plain)
    assert taken(slot, on) is first  # it is turned on afterwards
    second = taken(slot, plain)
    assert second is not first
    assert taken(slot, plain) is second


def test_a_file_replaced_inside_a_models_folder_is_loaded_anew(tmp_path: Path) -> None:
    folder = tmp_path / "model" / "transformer"
    folder.mkdir(parents=True)
    (folder / "weights.safetensors").write_bytes(b"one")
    before = stamp(tmp_path / "model")
    assert stamp(tmp_path / "model") == before
    (folder / "weights.safetensors").write_bytes(b"others")
    assert stamp(tmp_path / "model") != before
    assert stamp("org/name") == [["org/name"]]
