"""The server's heartbeat: it takes jobs from workers that fell silent, and only from those."""

import pytest

from server.reaper import Reaper
from server.store import broker, jobs, workers
from server.store.settings import settings
from server.store.tables import Worker
from server.store.workers import Pulse


@pytest.fixture
def reaper(migrated, monkeypatch) -> Reaper:
    """A reaper that is not started: tests sweep by hand. A tenth of a second of silence is enough."""
    monkeypatch.setenv("SAFELIGHT_LEASE_SECONDS", "0.1")
    settings.cache_clear()
    return Reaper()


def test_a_silent_workers_job_is_queued_again(reaper, claimed, until) -> None:
    job = claimed()
    reaper.sweep()
    assert jobs.get(job.id).status == "preparing"  # seen for the first time: it has all of its lease

    def given_back() -> bool:
        reaper.sweep()
        return jobs.get(job.id).status == "queued"

    until(given_back, "the job of a silent worker is not given back")
    assert jobs.get(job.id).failures == 1


def test_a_job_whose_worker_beats_is_left_alone(reaper, claimed, until) -> None:
    quiet, beating = claimed(), claimed()

    def given_back() -> bool:
        jobs.beat(beating.id, 1)
        reaper.sweep()
        return jobs.get(quiet.id).status == "queued"

    until(given_back, "the job of a silent worker is not given back")
    assert (jobs.get(beating.id).status, jobs.get(beating.id).failures) == ("preparing", 0)


def test_a_new_attempt_has_a_lease_of_its_own(reaper, claimed, until) -> None:
    job = claimed()

    def given_back() -> bool:
        reaper.sweep()
        return jobs.get(job.id).status == "queued"

    until(given_back, "the job of a silent worker is not given back")
    jobs.claim_next("w2", ["pocket"])
    reaper.sweep()
    assert (jobs.get(job.id).status, jobs.get(job.id).worker) == ("preparing", "w2")


def put_worker(name: str, archs: list[str], stopped: bool = False) -> None:
    workers.register(Worker(id=name, host="h", device="cpu", pid=1, archs=archs, stopped=stopped))


def test_only_idle_workers_that_can_run_a_waiting_job_are_rung(reaper, add) -> None:
    reaper.leases.seconds = reaper.workers.seconds = 3600  # nobody falls silent here
    put_worker("busy", ["pocket"])
    add()
    assert jobs.claim_next("busy", ["pocket"])
    put_worker("idle", ["pocket"])
    put_worker("other", ["another"])
    put_worker("stopped", ["pocket"], stopped=True)

    def bells() -> dict[str, int]:
        return {name: broker.client().llen(broker.queue_of(name)) for name in ("busy", "idle", "other", "stopped")}

    with broker.hold():  # type: ignore[union-attr]
        reaper.sweep()
        assert set(bells().values()) == {0}  # nothing waits
        add()
        reaper.sweep()
        assert bells() == {"busy": 0, "idle": 1, "other": 0, "stopped": 0}


def test_workers_are_listed_with_what_they_do(client, claimed) -> None:
    put_worker("w", ["pocket"])
    put_worker("w2", ["pocket"])
    put_worker("w3", ["pocket"], stopped=True)
    workers.beat("w", memory_used=5, memory_total=10)
    workers.beat("nobody")
    job = claimed()
    listed = {worker["id"]: worker for worker in client.get("/v1/workers").json()["workers"]}
    assert {name: worker["state"] for name, worker in listed.items()} == {"w": "busy", "w2": "idle", "w3": "stopped"}
    assert (listed["w"]["job_id"], listed["w"]["memory_used"], listed["w2"]["job_id"]) == (job.id, 5, None)
    assert client.get("/readyz").json()["workers"] == 2
    assert client.get("/v1/archs/pocket").json()["workers"] == ["w", "w2"]


def test_a_pulse_is_judged_by_its_change_alone(until) -> None:
    pulse = Pulse(0.05)
    assert pulse.alive("a", 7)
    until(lambda: not pulse.alive("a", 7), "an unchanged counter stays alive")
    assert pulse.alive("a", 3)  # any change counts, also backwards: the worker was started again
    until(lambda: not pulse.alive("a", 3), "an unchanged counter stays alive")
    pulse.keep(set())
    assert pulse.alive("a", 3)  # forgotten: seen for the first time
