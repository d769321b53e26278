"""The attention kernel of a job is set for that job, and for no other: part of diffusers' choice is the whole process's."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from models import attention, catalog
from worker import run as runs
from worker.load import Slot
from worker.places import find_places
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


def test_a_job_that_fails_leaves_the_process_as_it_was() -> None:
    from diffusers.models.attention_dispatch import AttentionBackendName
    from diffusers.models.attention_dispatch import _AttentionBackendRegistry as registry

    with pytest.raises(RuntimeError, match="broken"), attention.kept_to_this_job():
        registry.set_active_backend(AttentionBackendName(OTHER))
        raise RuntimeError("broken")
    assert registry._active_backend.value == "native"
