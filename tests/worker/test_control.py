"""Buttons pressed on a real stack: pause, previews now, a checkpoint now, and a queue that never blocks."""

import signal
from typing import Any

import pytest

from tests.worker.long_run import MIDDLE, STEPS, every_telling, gone


@pytest.fixture
def short_job(tiny_job) -> dict[str, Any]:
    job: dict[str, Any] = tiny_job(**{"train.steps": 2, "train.disable_sampling": True})
    return job


def press(up: Any, job_id: str, verb: str) -> dict[str, Any]:
    answer = up.http.post(f"/v1/jobs/{job_id}/{verb}")
    assert answer.status_code == 202, answer.text
    found: dict[str, Any] = answer.json()
    return found


def test_a_paused_job_gives_its_memory_back_and_goes_on_without_a_trace(
    up, tree, frozen, long_job, reach, ends_as_undisturbed, until
) -> None:
    job_id = up.submit(long_job)
    reach(job_id)
    trainer = tree(up).trainer
    with frozen(trainer):
        assert press(up, job_id, "pause")["status"] == "pausing"
    paused = up.wait_for(job_id, "paused", "failed", "succeeded")
    assert (paused["status"], paused["worker"], paused["finished_at"]) == ("paused", None, None)
    assert MIDDLE <= paused["step"] < STEPS
    until(lambda: gone(trainer), "the process that held the model is still there")
    assert press(up, job_id, "resume")["status"] in ("queued", "preparing")
    ends_as_undisturbed(job_id)
    assert every_telling(up, job_id) == list(range(1, STEPS + 1))


def test_a_running_job_is_asked_for_previews_and_a_checkpoint_and_ends_as_undisturbed(
    up, tree, frozen, long_job, reach, ends_as_undisturbed, until
) -> None:
    job_id = up.submit(long_job)
    reach(job_id)
    until(lambda: up.job(job_id)["phase"] == "training", "the save of that step did not end")  # it would be an answer
    with frozen(tree(up).trainer):
        for _ in range(3):
            press(up, job_id, "sample")
            asked = press(up, job_id, "checkpoint")["asked"]
    assert asked == ["sample", "checkpoint"]
    ends_as_undisturbed(job_id)
    assert up.job(job_id)["asked"] == []
    files = up.http.get(f"/v1/jobs/{job_id}/files").json()["files"]
    [extra] = {file["step"] for file in files if file["kind"] == "weights"} - {30, 60, 90}
    samples = up.http.get(f"/v1/jobs/{job_id}/samples").json()["samples"]
    [seen] = {sample["step"] for sample in samples} - {0, 45, 90}
    assert MIDDLE <= extra < STEPS
    assert MIDDLE <= seen < STEPS
    assert len(samples) == 4  # three presses, one round of one preview


def test_a_dead_trainers_job_goes_on_can_be_stopped_and_blocks_nobody(up, tree, long_job, short_job, reach, until) -> None:
    first = up.submit(long_job)
    reach(first)
    second = up.submit(short_job)
    tree(up).trainer.kill()

    def goes_on() -> bool:
        job = up.job(first)
        return (job["attempt"], job["phase"]) in [(2, "training"), (2, "sampling"), (2, "saving")]

    until(goes_on, "the job of a dead trainer did not go on", lambda: str(up.job(first)))
    press(up, first, "cancel")
    assert up.wait_for(first, "canceled", "failed", "succeeded")["status"] == "canceled"
    assert up.wait_for(second, "succeeded", "failed")["status"] == "succeeded"
    log = up.http.get(f"/v1/jobs/{first}/log").text
    assert "the training process died" in log
    assert "SIGKILL" in log
    assert "ran out of memory" in log
    assert "at step " in log
    assert "goes on from step " in log


def test_a_crash_says_where_it_was(up, tree, long_job, reach, until) -> None:
    job_id = up.submit(long_job)
    reach(job_id)
    tree(up).trainer.send_signal(signal.SIGSEGV)
    until(lambda: up.job(job_id)["attempt"] == 2, "the job of a crashed trainer did not go on", lambda: str(up.job(job_id)))
    press(up, job_id, "cancel")
    up.wait_for(job_id, "canceled", "failed", "succeeded")
    log = up.http.get(f"/v1/jobs/{job_id}/log").text
    assert "SIGSEGV" in log or "fell silent" in log  # whoever sees it first, the parent or the reaper
    assert "Fatal Python error: Segmentation fault" in log
    assert "most recent call first" in log
    assert "ran out of memory" not in log


def test_jobs_that_come_just_as_the_last_one_ends_all_run_in_order(up, short_job) -> None:
    started = []
    for _ in range(8):
        job_id = up.submit(short_job)
        job = up.wait_for(job_id, "succeeded", "failed")  # the next is sent as soon as this is seen
        assert (job["status"], job["attempt"]) == ("succeeded", 1)
        started.append(job["started_at"])
    assert started == sorted(started)


@pytest.mark.slow  # two processes that import torch; that the first one takes no further job is a quick test's
def test_after_a_device_is_lost_the_next_job_runs_in_a_fresh_process(up, tiny_job, short_job) -> None:
    broken = {"train.steps": 3, "train.disable_sampling": True, "train.optimizer": "tests.worker.broken_device:Breaks"}
    first, second = up.submit(tiny_job(**broken)), up.submit(short_job)
    failed = up.wait_for(first, "failed", "succeeded")
    assert "AcceleratorError: CUDA error: an illegal memory access" in failed["error"]["message"]
    assert up.wait_for(second, "failed", "succeeded")["status"] == "succeeded"
