"""What other queues got wrong: a task delivered twice, a cancel that hits the wrong job, a lock that kills a run."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy.exc import OperationalError

from server.store import broker, engine, events, jobs, workers
from server.store.engine import reading, writing
from server.store.events import LeaseLost
from server.store.tables import Status, Worker


def test_a_bell_that_comes_again_after_any_time_claims_nothing(claimed, home) -> None:
    """The broker may deliver a message again once it has waited as long as it does for an answer; a job is held by its row, and
    nothing is ever redelivered, since a bell is acknowledged when it is heard."""
    job = claimed()
    config = broker.celery().conf
    assert (config.task_acks_late, config.task_reject_on_worker_lost, config.worker_prefetch_multiplier) == (False, None, 1)
    with ThreadPoolExecutor(2) as pool:  # both workers hear it again, twice
        assert list(pool.map(lambda worker: jobs.claim_next(worker, ["pocket"]), ["w", "w2"] * 2)) == [None] * 4
    held = jobs.get(job.id)
    assert (held.attempt, held.worker, held.status) == (1, "w", "preparing")
    with pytest.raises(LeaseLost):
        jobs.tell(job.id, 2, [("log", {"message": "by hand"})])


def test_the_running_job_is_hit_by_nothing_meant_for_those_that_wait(client, job_in, add) -> None:
    running = job_in("running")
    second, third = add(), add()
    before = client.get(f"/v1/jobs/{running}").json()
    assert client.post(f"/v1/jobs/{second}/cancel").json()["status"] == "canceled"
    cleared = client.post("/v1/jobs/cancel", json={"status": "queued"}).json()["jobs"]
    assert [job["id"] for job in cleared] == [third]
    assert client.post(f"/v1/jobs/{second}/cancel").status_code == 409
    assert client.post("/v1/jobs/cancel", json={"status": "queued"}).json()["jobs"] == []
    assert client.get(f"/v1/jobs/{running}").json() == before
    assert jobs.beat(running, 1).wish is None


def test_a_job_that_comes_when_the_queue_has_run_empty_is_taken(client, tiny_job, pictures) -> None:
    pictures()
    workers.register(Worker(id="w", host="h", device="cpu", pid=1, archs=["pocket"]))
    for attempt in range(3):
        assert jobs.claim_next("w", ["pocket"]) is None
        job_id = client.post("/v1/jobs", json=tiny_job()).json()["id"]
        assert broker.client().llen(broker.queue_of("w")) >= 1, attempt  # rung at once, not at some later round
        taken = jobs.claim_next("w", ["pocket"])
        assert taken is not None
        assert taken.id == job_id
        jobs.finish(job_id, 1, Status.SUCCEEDED)


def test_writers_outwait_a_lock_and_readers_do_not_notice_it(client, claimed) -> None:
    job, other = claimed(), claimed()
    locked, release = threading.Event(), threading.Event()

    def hold() -> None:
        with writing() as session:
            session.connection()
            locked.set()
            assert release.wait(60)

    with ThreadPoolExecutor(3) as pool:
        holder = pool.submit(hold)
        assert locked.wait(60)
        tellings = [
            pool.submit(jobs.tell, each.id, 1, [("metrics", {"step": step, "loss": 0.5}) for step in range(1, 6)], step=5)
            for each in (job, other)
        ]
        for _ in range(5):
            assert client.get(f"/v1/jobs/{job.id}").json()["step"] == 0
        assert not any(telling.done() for telling in tellings)
        release.set()
        holder.result(60)
        assert [len(telling.result(60)) for telling in tellings] == [5, 5]
    for each in (job, other):
        with reading() as session:
            assert events.series(session, each.id, "loss", 0) == [(step, 0.5) for step in range(1, 6)]


def test_a_lock_that_lasts_is_503_with_a_time_to_come_back(client, add, monkeypatch) -> None:
    job_id = add()

    def busy(*_: object) -> None:
        raise OperationalError("BEGIN IMMEDIATE", None, Exception("database is locked"))

    monkeypatch.setattr("server.store.verbs.get_row", busy)
    answer = client.post(f"/v1/jobs/{job_id}/cancel")
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "2")
    assert engine.LOCK_WAIT_SECONDS > 8
