"""Whatever part of a running stack is killed, the job goes on by itself and ends with the numbers of an undisturbed run."""

import contextlib
import signal
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from safetensors.torch import load

STEPS = 90
MIDDLE = 30  # the first kept save; things are killed after it


@pytest.fixture
def long_job(tiny_job: Callable[..., dict[str, Any]]) -> dict[str, Any]:
    return tiny_job(**{"train.steps": STEPS, "save.save_every": MIDDLE, "sample.sample_every": 45})


@pytest.fixture
def undisturbed(
    up: Any, run_here: Callable[..., Path], long_job: dict[str, Any], weights_of: Any, module_cache: dict[str, Any]
) -> Any:
    """The final weights of the same job, run in this process with no interruption."""
    if "weights" not in module_cache:
        module_cache["weights"] = weights_of(run_here(long_job), STEPS)
    return module_cache["weights"]


@pytest.fixture(scope="module")
def module_cache() -> dict[str, Any]:
    return {}


@pytest.fixture
def reach(until: Callable[..., None], up: Any) -> Callable[..., None]:
    """Wait until a running job has done so many steps."""

    def wait(job_id: str, step: int = MIDDLE) -> None:
        until(lambda: up.job(job_id)["step"] >= step, f"job {job_id} did not reach step {step}", lambda: str(up.job(job_id)))
        assert up.job(job_id)["status"] == "running"

    return wait


@pytest.fixture
def frozen(up: Any) -> Callable[[psutil.Process], Any]:
    """`with frozen(process):` stands still for a moment, and not while it holds the database's write lock: what is asked of a
    job inside comes in the middle of its run, however fast the machine is."""

    @contextlib.contextmanager
    def freeze(process: psutil.Process) -> Iterator[None]:
        process.suspend()
        while not writable(up.home / "safelight.db"):
            process.resume()
            process.suspend()
        yield
        if not gone(process):
            process.resume()

    return freeze


def gone(process: psutil.Process) -> bool:
    """Ended, or waiting for a parent that never asks."""
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def writable(database: Path) -> bool:
    with contextlib.closing(sqlite3.connect(database, timeout=0.1, isolation_level=None)) as connection:
        try:
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("ROLLBACK")
        except sqlite3.OperationalError:
            return False
        return True


@pytest.fixture
def ends_as_undisturbed(up: Any, undisturbed: Any, same: Any) -> Callable[[str], None]:
    def check(job_id: str) -> None:
        job = up.wait_for(job_id, "succeeded", "failed", "canceled")
        assert job["status"] == "succeeded", job["error"]
        assert told_steps(up, job_id) == list(range(1, STEPS + 1))
        weights = up.http.get(f"/v1/jobs/{job_id}/files/tiny_{STEPS:09d}.safetensors").content
        assert same(load(weights), undisturbed)

    return check


def told_steps(up: Any, job_id: str) -> list[int]:
    points = up.http.get(f"/v1/jobs/{job_id}/metrics").json()["points"]
    return [step for step, _ in points]


def every_telling(up: Any, job_id: str) -> list[int]:
    """The steps of all metrics events, in the order in which they were told."""
    events = up.http.get(f"/v1/jobs/{job_id}/events", params={"limit": 5000}).json()["events"]
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    return [event["data"]["step"] for event in events if event["type"] == "metrics"]


def test_a_killed_trainer_is_replaced_and_the_job_goes_on(up, tree, long_job, reach, ends_as_undisturbed) -> None:
    job_id = up.submit(long_job)
    reach(job_id)
    tree(up).trainer.kill()
    ends_as_undisturbed(job_id)
    assert up.job(job_id)["attempt"] == 2


def test_a_killed_worker_takes_its_trainer_along_and_the_job_goes_on(
    up, tree, frozen, long_job, reach, ends_as_undisturbed, until
) -> None:
    job_id = up.submit(long_job)
    reach(job_id)
    killed, orphan = tree(up).worker, tree(up).trainer
    with frozen(orphan):  # it could not end by itself
        killed.kill()
        until(lambda: gone(orphan), "the trainer outlived its worker")
    ends_as_undisturbed(job_id)
    assert tree(up).worker.pid != killed.pid


def test_a_killed_server_comes_back_and_the_job_never_noticed(up, tree, long_job, reach, ends_as_undisturbed, until) -> None:
    job_id = up.submit(long_job)
    reach(job_id)
    killed = tree(up).server
    killed.kill()
    killed.wait()
    until(up.ready, "the server did not come back")
    ends_as_undisturbed(job_id)
    assert up.job(job_id)["attempt"] == 1


def test_a_stopped_stack_saves_and_its_next_start_repeats_no_step(
    up, tree, frozen, long_job, reach, ends_as_undisturbed, until
) -> None:
    from server.store import jobs

    job_id = up.submit(long_job)
    reach(job_id)
    with frozen(tree(up).trainer):
        up.process.terminate()
        until(lambda: jobs.get(job_id).wish == "requeue", "the worker did not pass the signal on")
    assert up.stop() == 0
    left = jobs.get(job_id)
    assert (left.status, left.worker) == ("queued", None)
    assert MIDDLE <= left.step < STEPS
    up.start()
    ends_as_undisturbed(job_id)
    assert every_telling(up, job_id) == list(range(1, STEPS + 1))


def test_a_flushed_broker_loses_no_job_and_priority_decides_who_is_next(up, tiny_job, long_job, until) -> None:
    from server.store import broker

    running = up.submit(long_job)
    up.wait_for(running, "running")
    first, second, third = (up.submit(tiny_job(**{"train.steps": 2, "train.disable_sampling": True})) for _ in range(3))
    assert broker.client().flushall()
    assert up.http.patch(f"/v1/jobs/{third}", json={"priority": 5}).json()["queue_position"] == 1
    assert up.http.post(f"/v1/jobs/{running}/cancel").status_code == 202
    started = {job_id: up.wait_for(job_id, "succeeded", "failed")["started_at"] for job_id in (first, second, third)}
    assert [up.job(job_id)["status"] for job_id in started] == ["succeeded"] * 3
    assert sorted(started, key=lambda job_id: started[job_id]) == [third, first, second]


def test_a_job_is_canceled_while_the_broker_is_gone_and_goes_on_when_resumed(
    up, tree, frozen, long_job, reach, ends_as_undisturbed
) -> None:
    job_id = up.submit(long_job)
    reach(job_id)
    with frozen(tree(up).trainer):
        broker_server(up).kill()
        assert up.http.post(f"/v1/jobs/{job_id}/cancel").status_code == 202
    canceled = up.wait_for(job_id, "canceled")
    assert MIDDLE <= canceled["step"] < STEPS
    names = [file["path"] for file in up.http.get(f"/v1/jobs/{job_id}/files").json()["files"]]
    assert f"tiny_{canceled['step']:09d}.safetensors" in names
    assert up.http.post(f"/v1/jobs/{job_id}/resume").status_code == 202
    ends_as_undisturbed(job_id)
    assert every_telling(up, job_id) == list(range(1, STEPS + 1))


def broker_server(up: Any) -> psutil.Process:
    """The embedded server of this stack's data folder, and no other."""
    (keeper,) = keepers(up)
    (server,) = keeper.children()
    return server


def keepers(up: Any) -> list[psutil.Process]:
    marks = ("server.store.broker_keeper", str(up.home / "broker"))
    return [
        process for process in psutil.process_iter(["cmdline"]) if all(mark in (process.info["cmdline"] or []) for mark in marks)
    ]


def test_bells_that_ring_twenty_times_claim_a_job_once(up, tiny_job) -> None:
    from server.store import broker

    (worker,) = up.http.get("/v1/workers").json()["workers"]
    job_ids = [up.submit(tiny_job(**{"train.steps": 2, "train.disable_sampling": True})) for _ in range(2)]
    for _ in range(20):
        broker.ring([worker["id"]])
    for job_id in job_ids:
        assert up.wait_for(job_id, "succeeded", "failed")["status"] == "succeeded"
        assert up.job(job_id)["attempt"] == 1


def test_a_loss_that_is_not_finite_fails_the_job_with_its_step_and_valid_json(up, tiny_job) -> None:
    wild = {"lr": 100.0, "max_grad_norm": 1e6, "optimizer_params": {"weight_decay": 1.0}, "steps": 100, "batch_size": 2}
    job_id = up.submit(tiny_job(train=wild, **{"save.save_every": 100}))
    job = up.wait_for(job_id, "failed", "succeeded")
    assert job["error"]["code"] == "non_finite_loss"
    points = up.http.get(f"/v1/jobs/{job_id}/metrics").json()["points"]
    at_fault = [step for step, loss in points if loss is None]
    assert f"at step {at_fault[0]};" in job["error"]["message"]
    assert "NaN" not in up.http.get(f"/v1/jobs/{job_id}/events", params={"limit": 5000}).text


def test_an_idle_trainer_gives_its_memory_back_and_the_next_job_still_runs(stack, tree, pictures, tiny_job, until) -> None:
    pictures()
    up = stack(SAFELIGHT_WARM_SECONDS="1")
    job = tiny_job(**{"train.steps": 2, "train.disable_sampling": True})
    first = up.submit(job)
    up.wait_for(first, "preparing", "running")
    trainer = tree(up).trainer
    up.wait_for(first, "succeeded")
    until(lambda: gone(trainer), "the idle trainer did not end")
    job_id = up.submit(job)
    assert up.wait_for(job_id, "succeeded", "failed")["attempt"] == 1


def test_a_clean_stop_leaves_no_process(up, tiny_job, until) -> None:
    job_id = up.submit(tiny_job(**{"train.steps": 2}))
    up.wait_for(job_id, "succeeded")
    started = [
        psutil.Process(up.process.pid),
        *psutil.Process(up.process.pid).children(recursive=True),
        *keepers(up),
        broker_server(up),
    ]
    assert len(started) >= 6  # up, server, worker, trainer, keeper, broker
    assert up.stop(signal.SIGINT) == 0
    until(lambda: all(map(gone, started)), "a process is left", lambda: str([each for each in started if not gone(each)]))
    assert keepers(up) == []
