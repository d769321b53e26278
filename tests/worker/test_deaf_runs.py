"""A run that loads and does not listen is ended from outside its loop: once, with one last word, and only while it has nothing to keep."""

import logging
import sys
import threading
from typing import Any

import pytest
from billiard.exceptions import WorkerLostError

from server.store import events, jobs, verbs
from server.store.engine import reading
from server.store.tables import Job
from worker import app, tasks
from worker.report import Stop
from worker.report_store import DEAF_SECONDS, LOST_SECONDS, StoreReporter


@pytest.fixture
def claimed(migrated, tiny_job) -> Job:
    from models.catalog import parse_job

    jobs.add(parse_job(tiny_job()).model_dump(mode="json"))
    job = jobs.claim_next("w", ["pocket"])
    assert job is not None
    return job


@pytest.fixture
def left(monkeypatch) -> list[tuple[int, str]]:
    """The exit codes with which this process would have ended, each with the job's status just then."""
    seen: list[tuple[int, str]] = []

    def end(code: int) -> None:
        [job], _ = jobs.listing()
        seen.append((code, job.status))

    monkeypatch.setattr(tasks.os, "_exit", end)
    return seen


def wish(job: Job, what: str) -> None:
    if what in ("cancel", "pause"):
        getattr(verbs, what)(job.id)
    elif what == "requeue":
        jobs.wish_requeue("w")
    else:
        jobs.give_back(job.id, job.attempt, "taken away")


@pytest.mark.parametrize(
    ("what", "status"), [("cancel", "canceled"), ("pause", "paused"), ("requeue", "queued"), ("lost", "queued")]
)
def test_the_last_word_is_said_before_the_process_ends(claimed, left, what, status) -> None:
    wish(claimed, what)
    before = jobs.get(claimed.id).last_seq
    tasks.leave(claimed, what)
    assert left == [(0, status)]
    after = jobs.get(claimed.id)
    assert after.last_seq == before + (what != "lost")
    assert (after.worker, after.failures) == (None, int(what == "lost"))


def test_only_a_run_that_loads_is_ended_and_not_before_it_had_time_to_listen(claimed) -> None:
    ended: list[str] = []
    reporter = StoreReporter(claimed, lambda _, what: ended.append(what))
    verbs.pause(claimed.id)
    reporter._listen()
    reporter._insist("pause", DEAF_SECONDS / 2)
    for phase in ("caching", "training", "sampling", "saving"):
        reporter.phase(phase)  # type: ignore[arg-type]
        reporter._insist("pause", LOST_SECONDS * 2)
    assert ended == []
    with pytest.raises(Stop):
        reporter.check()
    reporter.phase("loading")
    reporter._insist("pause", DEAF_SECONDS)
    assert ended == ["pause"]


def test_a_heart_ends_a_run_that_stays_deaf(claimed, monkeypatch) -> None:
    monkeypatch.setattr("worker.report_store.BEAT_SECONDS", 0.001)
    monkeypatch.setattr("worker.report_store.DEAF_SECONDS", 0.01)
    ended = threading.Event()
    verbs.cancel(claimed.id)
    with StoreReporter(claimed, lambda *_: ended.set()):
        assert ended.wait(60)


def test_the_loop_cannot_speak_beside_the_last_word(claimed) -> None:
    """The load ends in the very moment in which the heart has lost its patience."""
    said: list[str] = []

    def loop() -> None:
        try:
            reporter.phase("caching")
        except Stop as stop:
            said.append(f"the loop stops: {stop.wish}")

    thread = threading.Thread(target=loop)

    def leave(job: Job, what: Any) -> None:
        thread.start()
        thread.join(0.1)  # it has its chance
        said.append("the last word")
        tasks._say(job, tasks.ENDS[what])  # type: ignore[arg-type]

    reporter = StoreReporter(claimed, leave)
    reporter.phase("loading")
    verbs.pause(claimed.id)
    reporter._insist("pause", DEAF_SECONDS)
    thread.join(60)
    assert said == ["the last word", "the loop stops: lost"]
    assert jobs.get(claimed.id).status == "paused"
    with reading() as session:
        told = [row.data["phase"] for row in events.after(session, claimed.id, 0, 100) if row.type == "phase"]
    assert told == ["loading"]


def test_a_childs_death_is_told_without_celerys_traceback() -> None:
    def record(error: Exception) -> logging.LogRecord:
        try:
            raise error
        except Exception:
            return logging.LogRecord("celery", logging.ERROR, "", 1, "Task handler raised error", (), sys.exc_info())

    assert not app._is_worth_saying(record(WorkerLostError("Worker exited prematurely: exitcode 0 Job: 0.")))
    assert app._is_worth_saying(record(ValueError("ours")))
    assert app._is_worth_saying(logging.LogRecord("celery", logging.INFO, "", 1, "a word", (), None))
    expired = ("safelight.run_next", "7d2f")
    assert not app._is_worth_saying(
        logging.LogRecord("celery", logging.INFO, "", 1, "Discarding revoked task: %s[%s]", expired, None)
    )
