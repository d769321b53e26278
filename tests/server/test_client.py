"""The command line's way to follow a job."""

import io
import threading
from collections.abc import Callable
from typing import Any

import pytest
from rich.console import Console

from server import client
from server.client import ApiError
from server.store import broker, jobs, verbs
from server.store.settings import settings
from server.store.tables import Status


@pytest.fixture
def server(home, stack, monkeypatch) -> Any:
    started = stack("serve", SAFELIGHT_LEASE_SECONDS="600", SAFELIGHT_TOKEN="sesame ä")
    monkeypatch.setenv("SAFELIGHT_PORT", str(started.port))
    monkeypatch.setenv("SAFELIGHT_TOKEN", "sesame ä")
    settings.cache_clear()
    broker.client.cache_clear()
    return started


def test_a_job_is_followed_over_a_restart_of_the_server_without_gap_or_double(server, claimed, until) -> None:
    job = claimed()
    numbers: list[int] = []

    def read() -> None:
        for event in client.events(job.id):
            numbers.append(event["seq"])

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    until(lambda: numbers == [1, 2, 3], "the first events are not seen")
    server.stop()
    jobs.tell(job.id, 1, [("log", {"level": "INFO", "message": str(number)}) for number in range(1000)])
    server.start()
    until(lambda: len(numbers) == 1003, "what happened while the server was down is not seen")
    broker.publish(jobs.finish(job.id, 1, Status.SUCCEEDED))
    reader.join(60)
    assert not reader.is_alive()
    assert numbers == list(range(1, 1005))


@pytest.fixture
def followed(server) -> Callable[[str], tuple[threading.Thread, io.StringIO, list[int]]]:
    """`followed(job_id)` follows it in the background: the thread, what it has printed, and its exit code once there is one."""

    def start(job_id: str) -> tuple[threading.Thread, io.StringIO, list[int]]:
        shown, codes = io.StringIO(), list[int]()
        thread = threading.Thread(target=lambda: codes.append(client.follow(job_id, Console(file=shown))), daemon=True)
        thread.start()
        return thread, shown, codes

    return start


def goes_on_to_its_end(job_id: str) -> None:
    broker.publish(verbs.resume(job_id)[1])
    job = jobs.claim_next("w", ["pocket"])
    assert job is not None
    broker.publish(jobs.finish(job_id, job.attempt, Status.SUCCEEDED))


def test_a_paused_job_says_how_to_go_on_and_is_followed_to_its_end(job_in, followed, until) -> None:
    job_id = job_in("paused")
    line = f"paused at step 3; it goes on with: safelight resume {job_id}\n"
    thread, shown, codes = followed(job_id)
    until(lambda: line in shown.getvalue(), "nothing says that the job is paused", shown.getvalue)
    goes_on_to_its_end(job_id)
    thread.join(60)
    assert codes == [0]
    assert shown.getvalue().count("it goes on with") == 1
    thread, again, _ = followed(job_id)
    thread.join(60)
    assert "it goes on with" not in again.getvalue()


def test_a_job_that_is_paused_while_it_is_followed_says_so_once(claimed, followed, until) -> None:
    job = claimed()
    jobs.tell(job.id, 1, [("error", {"message": "seen", "hint": None})])
    thread, shown, codes = followed(job.id)
    until(lambda: "seen" in shown.getvalue(), "the job is not followed", shown.getvalue)
    verbs.pause(job.id)
    broker.publish(jobs.finish(job.id, 1, Status.PAUSED))
    until(lambda: "it goes on with" in shown.getvalue(), "nothing says that the job is paused", shown.getvalue)
    broker.publish(verbs.change(job.id, "another name", None, None)[1])
    goes_on_to_its_end(job.id)
    thread.join(60)
    assert codes == [0]
    assert shown.getvalue().count(f"paused at step 0; it goes on with: safelight resume {job.id}\n") == 1


def test_a_job_that_is_not_there_is_not_waited_for(server) -> None:
    with pytest.raises(ApiError, match="there is no job 'j_none'"):
        list(client.events("j_none"))


def test_a_refused_token_is_an_error_and_no_endless_wait(server, monkeypatch, add) -> None:
    monkeypatch.setenv("SAFELIGHT_TOKEN", "wrong")
    settings.cache_clear()
    with pytest.raises(ApiError, match="this server wants its token"):
        list(client.events(add()))
