"""The command line's way to follow a job."""

import threading
from typing import Any

import pytest

from server import client
from server.client import ApiError
from server.store import broker, jobs
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


def test_a_job_that_is_not_there_is_not_waited_for(server) -> None:
    with pytest.raises(ApiError, match="there is no job 'j_none'"):
        list(client.events("j_none"))


def test_a_refused_token_is_an_error_and_no_endless_wait(server, monkeypatch, add) -> None:
    monkeypatch.setenv("SAFELIGHT_TOKEN", "wrong")
    settings.cache_clear()
    with pytest.raises(ApiError, match="this server wants its token"):
        list(client.events(add()))
