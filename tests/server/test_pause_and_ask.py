"""Pausing a job, and asking a running one for previews or a checkpoint without ending it."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from server.store import events, jobs, verbs
from server.store.engine import reading
from server.store.tables import Status

STATES = ("queued", "preparing", "running", "pausing", "paused", "canceling", "succeeded", "failed", "canceled")


@pytest.fixture(autouse=True)
def dataset(pictures) -> None:
    pictures()


def post(client: Any, job_id: str, verb: str) -> Any:
    return client.post(f"/v1/jobs/{job_id}/{verb}")


def status(job_id: str) -> str:
    return jobs.get(job_id).status


@pytest.mark.parametrize("state", STATES)
def test_pause_by_state(client, job_in, state) -> None:
    job_id = job_in(state)
    then = {"queued": "paused", "preparing": "pausing", "running": "pausing", "pausing": "pausing"}.get(state)
    answer = post(client, job_id, "pause")
    if then is None:
        assert answer.status_code == 409
        assert answer.json()["detail"] == f"job {job_id} is {state}; only a queued or running job can be paused"
        assert status(job_id) == state
    else:
        assert (answer.status_code, answer.json()["status"], answer.json()["finished_at"]) == (202, then, None)


def test_a_paused_job_is_taken_by_no_worker_until_it_is_resumed(client, job_in) -> None:
    job_id = job_in("queued")
    post(client, job_id, "pause")
    assert jobs.claim_next("w", ["pocket"]) is None
    assert jobs.queue_positions() == {}
    assert not jobs.any_queued(["pocket"])
    assert post(client, job_id, "resume").json()["queue_position"] == 1
    taken = jobs.claim_next("w", ["pocket"])
    assert taken is not None
    assert (taken.id, taken.attempt, taken.wish) == (job_id, 1, None)


def test_a_paused_job_outlives_the_server(app_again, job_in) -> None:
    job_id = job_in("paused")
    with app_again() as client:
        assert client.get(f"/v1/jobs/{job_id}").json()["status"] == "paused"
        assert [job["id"] for job in client.get("/v1/jobs?status=paused").json()["jobs"]] == [job_id]


def test_a_pausing_run_is_told_so_and_comes_to_rest(claimed) -> None:
    job = claimed()
    jobs.tell(job.id, 1, [], status=Status.RUNNING, step=5)
    verbs.pause(job.id)
    assert jobs.beat(job.id, 1).wish == "pause"
    jobs.tell(job.id, 1, [("phase", {"phase": "saving"})], status=Status.RUNNING)
    assert status(job.id) == "pausing"  # a late "running" does not undo it
    jobs.finish(job.id, 1, Status.PAUSED)
    rested = jobs.get(job.id)
    assert (rested.status, rested.worker, rested.wish, rested.step, rested.finished_at) == ("paused", None, None, 5, None)


@pytest.mark.parametrize(("verb", "rest"), [("pause", "paused"), ("cancel", "canceled")])
def test_a_worker_that_dies_or_is_stopped_meanwhile_leaves_the_job_where_people_wanted_it(claimed, verb, rest) -> None:
    for end in (
        lambda job: jobs.give_back(job.id, job.attempt, "worker w fell silent"),
        lambda job: jobs.finish(job.id, job.attempt, Status.QUEUED),
    ):
        job = claimed()
        jobs.wish_requeue("w")
        getattr(verbs, verb)(job.id)
        jobs.wish_requeue("w")  # the supervisor says so every second
        assert jobs.beat(job.id, 1).wish == verb
        end(job)
        assert status(job.id) == rest


def test_what_was_asked_last_wins(claimed) -> None:
    job = claimed()
    verbs.pause(job.id)
    verbs.cancel(job.id)
    assert jobs.beat(job.id, 1).wish == "cancel"
    jobs.finish(job.id, 1, Status.PAUSED)  # the run had heard the first wish only
    assert status(job.id) == "canceled"


@pytest.mark.parametrize("end", [Status.SUCCEEDED, Status.FAILED])
def test_a_run_that_ends_before_it_hears_of_a_pause_has_ended(claimed, end) -> None:
    job = claimed()
    verbs.pause(job.id)
    jobs.finish(job.id, 1, end)
    assert status(job.id) == end


@pytest.mark.parametrize(("verb", "words"), [("sample", "previews"), ("checkpoint", "a checkpoint")])
@pytest.mark.parametrize("state", STATES)
def test_asking_by_state(client, job_in, state, verb, words) -> None:
    job_id = job_in(state)
    answer = post(client, job_id, verb)
    if state in ("preparing", "running"):
        assert (answer.status_code, answer.json()["status"], answer.json()["asked"]) == (202, state, [verb])
    else:
        assert answer.status_code == 409
        assert answer.json()["detail"] == f"job {job_id} is {state}; only a running job can be asked for {words}"


def test_asking_is_refused_where_it_means_nothing(client, claimed) -> None:
    for changes in ({"train.disable_sampling": True}, {"sample.samples": []}):
        job = claimed(**changes)
        answer = post(client, job.id, "sample")
        assert answer.status_code == 409
        assert "running without previews" in answer.json()["detail"]
        assert post(client, job.id, "checkpoint").status_code == 202


def test_a_sampling_job_is_asked_for_nothing(client, tiny_job) -> None:
    spec = {"kind": "sample", "name": "s", "model": tiny_job()["model"], "samples": [{"prompt": "a"}]}
    job_id = client.post("/v1/jobs", json=spec).json()["id"]
    assert jobs.claim_next("w", ["pocket"])
    for verb in ("sample", "checkpoint"):
        answer = post(client, job_id, verb)
        assert answer.status_code == 409
        assert "it is a sample job" in answer.json()["detail"]


def logged(job_id: str) -> list[str]:
    with reading() as session:
        return [row.data["message"] for row in events.after(session, job_id, 0) if row.type == "log"]


def test_presses_are_counted_told_once_and_answered_together(client, claimed) -> None:
    job = claimed()
    for _ in range(3):
        post(client, job.id, "checkpoint")
    assert jobs.beat(job.id, 1).asked == {"sample": 0, "checkpoint": 3}
    assert logged(job.id) == ["a checkpoint asked for"]
    post(client, job.id, "checkpoint")  # while the run answers the first three
    jobs.tell(job.id, 1, [], checkpoint_answered=3)
    assert client.get(f"/v1/jobs/{job.id}").json()["asked"] == ["checkpoint"]
    jobs.tell(job.id, 1, [], checkpoint_answered=4)
    assert client.get(f"/v1/jobs/{job.id}").json()["asked"] == []


def test_no_press_is_lost_among_many_hands(claimed) -> None:
    job = claimed()
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: (verbs.ask(job.id, "sample"), jobs.beat(job.id, 1)), range(40)))
    assert jobs.beat(job.id, 1).asked["sample"] == 40


@pytest.mark.parametrize("rest", [Status.QUEUED, Status.PAUSED])
def test_what_was_asked_for_waits_for_the_next_run_and_is_forgotten_at_an_end(claimed, rest) -> None:
    job = claimed()
    verbs.ask(job.id, "sample")
    jobs.finish(job.id, 1, rest)
    if rest == Status.PAUSED:
        verbs.resume(job.id)
    again = jobs.claim_next("w", ["pocket"])
    assert again is not None
    assert (again.sample_asked, again.sample_answered) == (1, 0)
    jobs.finish(job.id, 2, Status.FAILED)
    verbs.resume(job.id)
    again = jobs.claim_next("w", ["pocket"])
    assert again is not None
    assert (again.sample_asked, again.sample_answered) == (1, 1)
