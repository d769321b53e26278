"""A device that a process cannot use any more: the job fails, nothing hides it, and the next job gets a fresh process."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from models.errors import UserError
from models.memory import is_device_lost
from server.store import jobs
from worker import tasks
from worker.sampling import attempts

LOST = torch.AcceleratorError("CUDA error: an illegal memory access was encountered")
OLDER = RuntimeError("CUDA error: device-side assert triggered\nCUDA kernel errors might be asynchronously reported")
NO_MEMORY = UserError("out of memory: CUDA out of memory.", code="out_of_memory")
BUG, MISTAKE = KeyError("x"), UserError("no such layer", code="no_such_layer")


def caused_by(cause: Exception) -> Exception:
    try:
        raise ValueError("no picture") from cause
    except ValueError as error:
        return error


@pytest.mark.parametrize(
    ("error", "lost"),
    [
        (LOST, True),
        (OLDER, True),
        (caused_by(OLDER), True),
        (RuntimeError("HIP error: invalid device function"), True),
        (RuntimeError("CUDA error: out of memory"), False),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."), False),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
        (ValueError("CUDA error: in a user's text"), False),
    ],
)
def test_which_errors_are_of_a_device_that_is_lost(error: Exception, lost: bool) -> None:
    assert is_device_lost(error) is lost


@pytest.mark.parametrize(
    ("error", "device", "ends"),
    [
        (LOST, "cpu", True),
        (caused_by(OLDER), "cpu", True),
        (BUG, "cpu", False),
        (BUG, "cuda:0", True),
        (NO_MEMORY, "cpu", False),
        (NO_MEMORY, "cuda:0", True),
        (MISTAKE, "cuda:0", False),
    ],
)
def test_a_process_whose_device_may_be_lost_takes_no_further_job(
    migrated: Any, tiny_job: Any, monkeypatch: pytest.MonkeyPatch, error: Exception, device: str, ends: bool
) -> None:
    def fail(_: Any) -> None:
        raise error

    child = tasks.Child()
    child.device = device
    monkeypatch.setattr(tasks, "child", child)
    monkeypatch.setattr(tasks, "_run", fail)
    job_id = jobs.add(tiny_job())[0].id
    job = jobs.claim_next("w", ["pocket"])
    assert job is not None
    tasks.work(job)
    assert jobs.get(job_id).status == "failed"
    assert child.ending is ends


@pytest.mark.parametrize("error", [caused_by(OLDER)], ids=["an error that it led to"])
def test_a_preview_does_not_hide_it(
    small_job: Callable[..., Any], run_here: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(*_: Any) -> Any:
        raise error

    monkeypatch.setattr(attempts, "_made", fail)
    with pytest.raises(type(error)):
        run_here(small_job(**{"train.steps": 1, "train.disable_sampling": False, "sample.samples": [{"prompt": "a"}]}))
