"""A sampling job that goes on with other pictures: what counts is which there are, not how many."""

from itertools import product
from typing import Any

import pytest

from server.store import jobs
from server.store.tables import Job, Status

CHECKPOINTS = ["a.safetensors", "b.safetensors"]


@pytest.fixture
def done(migrated, client, preview, an_adapter) -> Any:
    """`done()`: the id of a job that has ended with all pictures of two checkpoints at weights 0 and 1, of two prompts; `leave` names
    pictures (by place) that it did not make."""
    models = migrated / "models"
    models.mkdir(parents=True, exist_ok=True)
    for name in [*CHECKPOINTS, "c.safetensors"]:
        (models / name).write_bytes(an_adapter)

    def make(status: str = "succeeded", leave: tuple[int, ...] = ()) -> str:
        matrix = {"checkpoints": CHECKPOINTS, "weights": [0, 1]}
        body = {"kind": "sample", "name": "m", "model": {"arch": "pocket", "name_or_path": "random"}}
        answer = client.post("/v1/jobs", json={**body, "matrix": matrix, "samples": [{"prompt": "x"}, {"prompt": "y"}]})
        assert answer.status_code == 202, answer.text
        job: Job | None = jobs.claim_next("w", ["pocket"])
        assert job is not None
        for place, (checkpoint, weight, index) in enumerate(product(CHECKPOINTS, [0.0, 1.0], range(2))):
            if place not in leave:
                preview(job, place + 1, index, checkpoint=checkpoint, weight=weight, cell=place)
        jobs.tell(job.id, job.attempt, [], status=Status.RUNNING, step=8 - len(leave))
        error = {"code": "pictures_failed", "message": "it broke", "hint": None, "traceback": None}
        jobs.finish(job.id, job.attempt, Status(status), error if status == "failed" else None)
        return job.id

    return make


@pytest.mark.parametrize(
    ("patch", "there", "total"),
    [
        ({"matrix": {"weights": [0, 0.5, 1]}}, 8, 12),
        ({"matrix": {"weights": [2]}}, 0, 4),
        ({"matrix": {"checkpoints": ["b.safetensors", "c.safetensors"], "weights": [1]}}, 2, 4),
        ({"matrix": None}, 0, 2),
    ],
    ids=["grown", "other weights", "another checkpoint", "none"],
)
def test_a_finished_matrix_may_grow_shrink_or_become_another(client, done, patch, there, total) -> None:
    job_id = done()
    plan = client.post(f"/v1/jobs/{job_id}/resume?dry_run=true", json=patch).json()
    assert (plan["ok"], plan["goes_on_from"], plan["problems"]) == (True, there, [])
    job = client.post(f"/v1/jobs/{job_id}/resume", json=patch).json()
    assert (job["status"], job["step"], job["saved_step"], job["total_steps"]) == ("queued", there, there, total)
    assert job["progress"] == there / total


def test_what_is_made_already_is_no_more_to_do(client, done) -> None:
    job_id = done()
    for patch in ({"matrix": {"weights": [1]}}, {"samples": [{"prompt": "x"}]}):
        refused = client.post(f"/v1/jobs/{job_id}/resume", json=patch)
        assert (refused.status_code, "has succeeded with all 8 pictures" in refused.json()["detail"]) == (409, True)


def test_a_failed_matrix_may_do_without_what_could_not_be_made(client, done) -> None:
    job_id = done("failed", leave=(4, 5, 6, 7))
    job = client.post(f"/v1/jobs/{job_id}/resume", json={"matrix": {"checkpoints": CHECKPOINTS[:1], "weights": [1]}}).json()
    assert (job["status"], job["step"], job["total_steps"]) == ("queued", 2, 2)


def test_a_checkpoint_is_needed_only_while_a_cell_of_it_is_missing(client, done, migrated) -> None:
    job_id = done("failed", leave=(7,))
    (migrated / "models" / "a.safetensors").unlink()
    path = f"/v1/jobs/{job_id}/resume?dry_run=true"
    assert client.post(path, json={"name": "again"}).json()["ok"] is True
    plan = client.post(path, json={"matrix": {"weights": [0, 1, 2]}}).json()
    assert [problem["pointer"] for problem in plan["problems"]] == ["/matrix/checkpoints/0"]
    (migrated / "models" / "b.safetensors").unlink()
    plan = client.post(path, json={"name": "again"}).json()
    assert [problem["pointer"] for problem in plan["problems"]] == ["/matrix/checkpoints/1"]


def test_a_record_says_what_its_picture_is_of_and_no_number_that_changes(client, done) -> None:
    shown = client.get(f"/v1/jobs/{done()}/samples").json()["samples"]
    places = [(each["checkpoint"], each["weight"], each["prompt_index"]) for each in shown]
    assert places == list(product(CHECKPOINTS, [0.0, 1.0], range(2)))
    assert all("cell" not in each for each in shown)
