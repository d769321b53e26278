"""Whatever part of a running stack is killed, the job goes on by itself and ends with the numbers of an undisturbed run."""

import signal
from typing import Any

import psutil

from tests.worker.long_run import MIDDLE, STEPS, every_telling, gone


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
