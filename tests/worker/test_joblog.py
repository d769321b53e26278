"""What our own code warns of while a job runs stands in the job's log."""

import logging
import threading
from pathlib import Path
from typing import Any

import pytest

from server.store import events, jobs
from server.store.engine import reading
from server.store.tables import Job
from worker import tasks
from worker.joblog import MOST_ALIKE, ROOMS, JobLog
from worker.report_store import StoreReporter


@pytest.fixture
def claim(migrated: Path, small_job: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    from models.catalog import parse_job

    monkeypatch.setattr(tasks, "child", tasks.Child())

    def make() -> Job:
        spec = small_job.made
        jobs.add(parse_job(spec).model_dump(mode="json"))
        job = jobs.claim_next("w", ["pocket"])
        assert job is not None
        return job

    small_job.made = small_job(**{"train.steps": 2})
    small_job.made["datasets"][0]["cache_latents_to_disk"] = True
    return make


def told(job: Job) -> list[tuple[str, str]]:
    with reading() as session:
        return [(row.data["level"], row.data["message"]) for row in events.after(session, job.id, 0, 1000) if row.type == "log"]


def handlers() -> list[logging.Handler]:
    return [each for room in ROOMS for each in logging.getLogger(room).handlers if isinstance(each, JobLog)]


def test_a_damaged_cache_entry_is_told_to_its_user(claim, home) -> None:
    tasks.work(claim())
    [entry, *_] = sorted((home / "cache").rglob("*.safetensors"))
    entry.write_bytes(entry.read_bytes()[:-4] + b"\0\1\2\3")
    job = claim()
    tasks.work(job)
    assert jobs.get(job.id).status == "succeeded"
    [warning] = [message for level, message in told(job) if level == "WARNING"]
    assert warning.startswith(f"cache entry {entry} is damaged (") and warning.endswith("is made again")
    assert handlers() == []


def test_from_any_thread_errors_too_and_nothing_below_a_warning(claim) -> None:
    job = claim()
    with StoreReporter(job):
        logging.getLogger("models.somewhere").info("no news")
        logging.getLogger("elsewhere").warning("not ours")
        thread = threading.Thread(target=logging.getLogger("worker.data.cache").error, args=("of %s", "a thread"))
        thread.start()
        thread.join(60)
        try:
            raise ValueError("the reason")
        except ValueError:
            logging.getLogger("models").exception("it failed")
    logging.getLogger("models").warning("afterwards")
    assert told(job) == [("ERROR", "of a thread"), ("ERROR", "it failed: ValueError: the reason")]


def test_one_warning_a_thousand_times_is_a_few_lines(claim) -> None:
    job = claim()
    with StoreReporter(job):
        for number in range(1000):
            logging.getLogger("models.data").warning("file %d is odd", number)
        logging.getLogger("models.data").warning("another")
    messages = [message for _, message in told(job)]
    assert len(messages) == MOST_ALIKE + 1
    assert messages[MOST_ALIKE - 1 :] == [
        f"file {MOST_ALIKE - 1} is odd (more of these stand in the worker's own log only)",
        "another",
    ]


def test_telling_that_warns_in_turn_or_fails_ends_nothing(claim, capsys) -> None:
    log, said = logging.getLogger("models"), []

    def tell(message: str, level: str) -> None:
        said.append(message)
        log.warning("while telling")
        raise OSError("no database")

    with JobLog(tell):
        log.warning("first")
        log.warning("second")
    assert said == ["first", "second"]


def test_a_run_that_lost_its_lease_is_not_ended_by_a_warning(claim) -> None:
    job = claim()
    with StoreReporter(job):
        jobs.give_back(job.id, job.attempt, "fell silent")
        logging.getLogger("models").warning("late")  # raises nothing
    assert "late" not in [message for _, message in told(job)]
