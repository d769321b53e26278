"""Checkpoints that people pinned: never pruned, shown as such, kept when a finished job is extended."""

from typing import Any

import pytest

from server.store import events, jobs, verbs
from server.store.engine import reading
from server.store.tables import File, Job, Status


@pytest.fixture
def kept(migrated) -> Any:
    """`kept(job, 3, 6)`: the worker keeps checkpoints of these steps."""

    def make(job: Job, *steps: int) -> None:
        for step in steps:
            where = f"attempts/{job.attempt}/bundles/step_{step:09d}"
            shared: dict[str, Any] = {"job_id": job.id, "attempt": job.attempt, "size": 1, "step": step}
            files = [
                File(**shared, kind="bundle", name=f"step_{step:09d}", path=where),
                File(**shared, kind="weights", name=f"tiny_{step:09d}.safetensors", path=f"{where}/tiny_{step:09d}.safetensors"),
            ]
            jobs.tell(job.id, job.attempt, [], files=files, step=step)

    return make


def pinned(job_id: str) -> dict[str, bool]:
    return {row.name: row.pinned for row in jobs.job_files(job_id, "bundle", "weights")}


def press(client: Any, job_id: str, step: int, body: Any = None) -> Any:
    return client.post(f"/v1/jobs/{job_id}/checkpoints/{step}/pin", json=body)


def test_a_pin_is_shown_and_told_once(client, claimed, kept) -> None:
    job = claimed()
    kept(job, 3, 6)
    answer = press(client, job.id, 3)
    assert answer.status_code == 200
    assert [(file["path"], file["pinned"]) for file in answer.json()["files"]] == [("tiny_000000003.safetensors", True)]
    press(client, job.id, 3, {"pinned": True})
    listed = client.get(f"/v1/jobs/{job.id}/files").json()["files"]
    assert {file["step"]: file["pinned"] for file in listed} == {3: True, 6: False}
    with reading() as session:
        told = [row.data for row in events.after(session, job.id, 0) if row.type == "checkpoint"]
    assert told == [{"step": 3, "path": "tiny_000000003.safetensors", "size": 1, "pinned": True}]
    assert press(client, job.id, 3, {"pinned": False}).json()["files"][0]["pinned"] is False
    assert not any(pinned(job.id).values())


def test_a_step_without_a_kept_checkpoint_cannot_be_pinned(client, claimed, kept) -> None:
    job = claimed()
    recovery = File(job_id=job.id, attempt=1, kind="bundle", name="recovery_000000005", path="attempts/1/r", size=1, step=5)
    jobs.tell(job.id, 1, [], files=[recovery], step=5)
    kept(job, 3)
    for step in (5, 4, 0):
        answer = press(client, job.id, step)
        assert answer.status_code == 404
        assert answer.json()["detail"] == f"job '{job.id}' has no checkpoint of step {step}; there are: 3"
    assert press(client, "j_none", 3).status_code == 404
    assert press(client, job.id, -1).status_code == 422
    assert press(client, job.id, 3, {"pinned": 1}).status_code == 422
    assert pinned(job.id)["recovery_000000005"] is False


@pytest.mark.parametrize("status", [Status.SUCCEEDED, Status.FAILED, Status.CANCELED, Status.PAUSED, Status.QUEUED])
def test_a_pin_is_allowed_in_any_state(client, claimed, kept, status) -> None:
    job = claimed()
    kept(job, 3)
    jobs.finish(job.id, 1, status)
    assert press(client, job.id, 3).status_code == 200


def test_what_was_pinned_while_a_worker_meant_to_prune_it_stays(claimed, kept) -> None:
    job = claimed()
    kept(job, 3, 6)
    doomed = [row.id for row in jobs.job_files(job.id, "bundle", "weights")]
    verbs.pin(job.id, 6, True)
    dropped = jobs.forget_files(job.id, 1, doomed)
    assert dropped == set(doomed[:2])
    assert list(pinned(job.id)) == ["step_000000006", "tiny_000000006.safetensors"]


def test_a_pinned_step_that_is_done_again_stays_pinned(claimed, kept) -> None:
    job = claimed()
    kept(job, 3, 6)
    verbs.pin(job.id, 3, True)
    jobs.give_back(job.id, 1, "gone")
    again = jobs.claim_next("w", ["pocket"])
    assert again is not None
    kept(again, 3, 6)
    rows = jobs.job_files(job.id, "weights")
    assert [(row.attempt, row.step, row.pinned) for row in rows] == [(1, 3, True), (1, 6, False), (2, 3, True), (2, 6, False)]


def test_extending_a_finished_job_pins_its_result(client, claimed, kept, pictures) -> None:
    pictures()
    job = claimed()
    kept(job, 3, 6)
    jobs.finish(job.id, 1, Status.SUCCEEDED)
    assert client.post(f"/v1/jobs/{job.id}/resume", json={"train": {"steps": 9}}).status_code == 202
    assert [name for name, value in pinned(job.id).items() if value] == ["step_000000006", "tiny_000000006.safetensors"]


def test_going_on_with_a_broken_off_job_pins_nothing(client, claimed, kept) -> None:
    job = claimed()
    kept(job, 3)
    jobs.finish(job.id, 1, Status.CANCELED)
    assert client.post(f"/v1/jobs/{job.id}/resume").status_code == 202
    assert not any(pinned(job.id).values())
