"""The attention kernel of a job is set for that job, and for no other: part of diffusers' choice is the whole process's."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from models import attention, catalog
from models.archs.example.card import ARCHS, ExampleOptions
from models.archs.example.model import write_tiny
from models.archs.example.network import Attention
from worker import run as runs
from worker.load import Places, Slot, load_model
from worker.places import find_places
from worker.rehearsal import listed
from worker.report import Reporter

OTHER = "_native_math"  # a kernel that every installation has and that is not the default


def test_no_job_inherits_the_attention_kernel_of_an_earlier_one(
    pictures: Callable[..., Path], tiny_job: Callable[..., dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from diffusers.models.attention_dispatch import _AttentionBackendRegistry as registry

    pictures()
    seen = []
    monkeypatch.setattr(attention, "BACKENDS", ("native", OTHER))
    monkeypatch.setattr(runs, "train", lambda model, *_: seen.append((model, str(registry._active_backend.value))))
    plain, slot = catalog.parse_job(tiny_job(network={"linear": 2, "linear_alpha": 2.0})), Slot()
    other = plain.model_copy(update={"model": plain.model.model_copy(update={"attention_backend": OTHER})})
    for spec in (other, other, plain, plain):
        runs.run(spec, find_places(spec), Reporter(tmp_path / "run", 1), "cpu", slot)
        assert registry._active_backend.value == "native"
    assert [name for _, name in seen] == [OTHER, OTHER, "native", "native"]
    assert seen[0][0] is seen[1][0] and seen[2][0] is seen[3][0]  # the model was kept, and the choice made again


class Options(ExampleOptions):
    attention_backend: str | None = None


SETTINGS = [
    ({"attention_backend": OTHER}, {}),
    ({}, {"attention_backend": OTHER}),
    ({"attention_backend": OTHER}, {"attention_backend": "native"}),
]


@pytest.mark.parametrize(("section", "options"), SETTINGS, ids=["model", "model_kwargs", "model_kwargs_before_model"])
def test_both_settings_reach_the_models_kernels_when_it_is_loaded(
    section: dict[str, Any], options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`model.attention_backend`, and an option of that name on the card, which comes first."""
    monkeypatch.setattr(attention, "BACKENDS", ("native", OTHER))
    card = ARCHS[0].model_copy(update={"options": Options})
    with listed(card):
        spec = catalog.parse_job(
            {
                "kind": "sample",
                "name": "t",
                "model": {"arch": "example", "name_or_path": "x", "dtype": "fp32"},
                "samples": [{"prompt": ""}],
            }
        )
    model = spec.model.model_copy(update={**section, "model_kwargs": Options(**options)})
    monkeypatch.setattr(catalog, "arch", lambda _: card)
    write_tiny(tmp_path)
    loaded = load_model(spec.model_copy(update={"model": model}), Places(tmp_path), "cpu")
    wanted = options.get("attention_backend", OTHER)
    assert {module.attention_backend for module in loaded.model.modules() if isinstance(module, Attention)} == {wanted}


def test_a_job_that_fails_leaves_the_process_as_it_was() -> None:
    from diffusers.models.attention_dispatch import AttentionBackendName
    from diffusers.models.attention_dispatch import _AttentionBackendRegistry as registry

    with pytest.raises(RuntimeError, match="broken"), attention.kept_to_this_job():
        registry.set_active_backend(AttentionBackendName(OTHER))
        raise RuntimeError("broken")
    assert registry._active_backend.value == "native"
