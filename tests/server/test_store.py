"""The life of a job in the database: who may take it, who may write, and what happens when a worker dies."""

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from server.store import events, jobs, verbs
from server.store.engine import reading
from server.store.events import LeaseLost
from server.store.tables import File, Job, Status

ARCHS = ["pocket"]


def told(job_id: str) -> list[tuple[int, str]]:
    with reading() as session:
        return [(row.seq, row.type) for row in events.after(session, job_id, 0, 100_000)]


def statuses(job_id: str) -> list[str]:
    with reading() as session:
        return [row.data["status"] for row in events.after(session, job_id, 0) if row.type == "status"]


def take() -> str | None:
    job = jobs.claim_next("w", ARCHS)
    return job and job.id


def test_the_best_job_is_claimed_first(add) -> None:
    first, second, third, fourth = add(), add(), add(), add()
    verbs.change(third, None, 2, None)
    verbs.change(fourth, None, -1, None)
    assert jobs.queue_positions() == {third: 1, first: 2, second: 3, fourth: 4}
    assert [take() for _ in range(5)] == [third, first, second, fourth, None]
    assert jobs.queue_positions() == {}


def test_a_worker_takes_only_what_it_can_run(add) -> None:
    job_id = add()
    assert jobs.claim_next("w", ["another"]) is None
    assert jobs.claim_next("w", []) is None
    assert not jobs.any_queued(["another"])
    assert jobs.any_queued(["another", "pocket"])
    assert jobs.claim_next("w", ["another", "pocket"]).id == job_id  # type: ignore[union-attr]


def test_a_claim_raises_the_attempt_and_says_who(add) -> None:
    job = jobs.get(add())
    assert (job.attempt, job.worker, job.started_at) == (0, None, None)
    claimed = jobs.claim_next("w7", ARCHS)
    assert claimed is not None
    assert (claimed.attempt, claimed.worker, claimed.status) == (1, "w7", "preparing")
    assert claimed.started_at
    assert told(job.id) == [(1, "status"), (2, "worker"), (3, "status")]
    assert [held.id for held in jobs.held_by("w7")] == [job.id]


def test_claimers_in_many_threads_never_share_a_job(add) -> None:
    made = [add() for _ in range(24)]

    def work(_: int) -> list[str]:
        got = []
        while job_id := take():
            got.append(job_id)
        return got

    with ThreadPoolExecutor(8) as pool:
        taken = [job_id for got in pool.map(work, range(8)) for job_id in got]
    assert sorted(taken) == sorted(made)


CLAIM = """
    import sys
    from server.store import jobs
    print("ready", flush=True)
    sys.stdin.readline()
    while job := jobs.claim_next(sys.argv[1], ["pocket"]):
        print(job.id, flush=True)
"""


def test_claimers_in_two_processes_never_share_a_job(add, elsewhere) -> None:
    made = [add() for _ in range(20)]
    workers = [elsewhere(CLAIM, f"w{number}") for number in range(2)]
    for worker in workers:
        assert worker.stdout.readline() == "ready\n"
    taken = [line for worker in workers for line in worker.communicate("go\n")[0].split()]
    assert sorted(taken) == sorted(made)
    assert {jobs.get(job_id).attempt for job_id in made} == {1}


WRITE = """
    import sys
    from server.store import jobs
    print("ready", flush=True)
    sys.stdin.readline()
    for number in range(30):
        rows = jobs.tell(sys.argv[1], 1, [("log", {"message": f"{sys.argv[2]} {number} {half}"}) for half in "ab"])
        assert rows[1].seq == rows[0].seq + 1, "what was told together stands together"
"""


def test_four_writers_leave_no_gap_in_the_numbers(claimed, elsewhere) -> None:
    job = claimed()
    before = jobs.get(job.id).last_seq
    writers = [elsewhere(WRITE, job.id, f"w{number}") for number in range(4)]
    for writer in writers:
        assert writer.stdout.readline() == "ready\n"
    for writer in writers:
        writer.stdin.write("go\n")
        writer.stdin.flush()
    assert [writer.wait(60) for writer in writers] == [0, 0, 0, 0]
    with reading() as session:
        rows = events.after(session, job.id, before, 10_000)
    assert [row.seq for row in rows] == list(range(before + 1, before + 4 * 60 + 1))
    assert jobs.get(job.id).last_seq == rows[-1].seq
    for writer in range(4):
        own = [row.data["message"] for row in rows if row.data["message"].startswith(f"w{writer} ")]
        assert own == [f"w{writer} {number} {half}" for number in range(30) for half in "ab"]


def state(job_id: str) -> tuple[Any, ...]:
    return jobs.get(job_id).model_dump_json(), told(job_id), [file.name for file in jobs.job_files(job_id, "weights", "bundle")]


@pytest.mark.parametrize("moved_on", ["claimed again", "queued", "ended", "deleted"])
def test_a_worker_that_wakes_up_too_late_writes_nothing(claimed, moved_on) -> None:
    job = claimed()
    if moved_on == "ended":
        jobs.finish(job.id, 1, Status.SUCCEEDED)
    else:
        jobs.give_back(job.id, 1, "worker w fell silent")
    if moved_on == "claimed again":
        assert take() == job.id
    if moved_on == "deleted":
        verbs.remove(job.id, files=True)
    before = None if moved_on == "deleted" else state(job.id)
    file = File(job_id=job.id, attempt=1, kind="weights", name="late", path="attempts/1/late", size=1, step=1)
    with pytest.raises(LeaseLost):
        jobs.tell(job.id, 1, [("log", {"message": "late"})], files=[file], step=99)
    with pytest.raises(LeaseLost):
        jobs.beat(job.id, 1)
    with pytest.raises(LeaseLost):
        jobs.finish(job.id, 1, Status.SUCCEEDED)
    with pytest.raises(LeaseLost):
        jobs.forget_files(job.id, 1, [1])
    assert jobs.give_back(job.id, 1, "late") == []
    assert before is None or state(job.id) == before


def test_a_telling_is_stored_whole_or_not_at_all(claimed) -> None:
    job = claimed()
    before = state(job.id)
    file = File(job_id="no such job", attempt=1, kind="weights", name="x", path="x", size=1, step=1)
    with pytest.raises(Exception, match="FOREIGN KEY"):
        jobs.tell(job.id, 1, [("log", {"message": "half"})], files=[file], step=99)
    assert state(job.id) == before


def test_a_heartbeat_counts_up_and_brings_wishes(claimed) -> None:
    job = claimed()
    assert jobs.beat(job.id, 1).wish is None
    assert jobs.get(job.id).beat == job.beat + 1
    jobs.wish_requeue("w")
    assert jobs.beat(job.id, 1).wish == "requeue"
    verbs.cancel(job.id)
    assert jobs.beat(job.id, 1).wish == "cancel"


def test_a_job_given_back_is_queued_and_taken_again(claimed) -> None:
    job = claimed()
    jobs.tell(job.id, 1, [], status=Status.RUNNING, step=5)
    jobs.give_back(job.id, 1, "worker w fell silent")
    back = jobs.get(job.id)
    assert (back.status, back.failures, back.worker, back.step, back.finished_at) == ("queued", 1, None, 5, None)
    assert take() == job.id
    assert jobs.get(job.id).attempt == 2


def test_a_job_given_back_keeps_its_place_in_the_queue(claimed, add) -> None:
    job = claimed()
    later = add()
    jobs.give_back(job.id, 1, "gone")
    assert jobs.queue_positions() == {job.id: 1, later: 2}


def die(job: Job, times: int) -> None:
    for _ in range(times):
        attempt = jobs.get(job.id).attempt
        jobs.give_back(job.id, attempt, "worker w fell silent")
        jobs.claim_next("w", ARCHS)


def test_three_deaths_without_a_bundle_fail_the_job_with_the_facts(claimed) -> None:
    job = claimed()
    jobs.tell(job.id, 1, [], status=Status.RUNNING, step=7)
    die(job, 2)
    assert jobs.get(job.id).status == "preparing"
    die(job, 1)
    failed = jobs.get(job.id)
    assert (failed.status, failed.failures, failed.attempt, failed.worker) == ("failed", 3, 3, None)
    assert failed.finished_at
    assert failed.error is not None
    assert failed.error["code"] == "worker_died"
    assert failed.error["message"] == "worker w fell silent at step 7, 3 times in a row without a new checkpoint"
    assert failed.error["hint"]
    assert [kind for _, kind in told(job.id)][-3:] == ["log", "error", "status"]
    assert take() is None


def test_a_new_bundle_forgives_the_deaths_before_it(claimed) -> None:
    job = claimed()
    die(job, 2)
    file = File(job_id=job.id, attempt=3, kind="bundle", name="b", path="attempts/3/b", size=1, step=3)
    jobs.tell(job.id, 3, [], files=[file], step=3)
    assert jobs.get(job.id).failures == 0
    die(job, 2)
    assert (jobs.get(job.id).status, jobs.get(job.id).attempt) == ("preparing", 5)


def test_a_resume_forgives_the_deaths_too(claimed) -> None:
    job = claimed()
    die(job, 3)
    verbs.resume(job.id)
    again = jobs.get(job.id)
    assert (again.status, again.failures, again.error) == ("queued", 0, None)


def test_a_canceled_job_whose_worker_dies_is_canceled(claimed) -> None:
    job = claimed()
    verbs.cancel(job.id)
    jobs.give_back(job.id, 1, "worker w fell silent")
    assert jobs.get(job.id).status == "canceled"
    assert statuses(job.id)[-2:] == ["canceling", "canceled"]
    assert take() is None


def test_a_canceled_job_that_was_to_be_queued_again_is_canceled(claimed) -> None:
    job = claimed()
    verbs.cancel(job.id)
    jobs.tell(job.id, 1, [], status=Status.RUNNING)
    assert jobs.get(job.id).status == "canceling"
    jobs.finish(job.id, 1, Status.QUEUED)
    assert jobs.get(job.id).status == "canceled"


def test_an_error_is_stored_told_and_shown(claimed) -> None:
    job = claimed()
    error = {"code": "no_space", "message": "no space left", "hint": "free some", "traceback": "Traceback ..."}
    rows = jobs.finish(job.id, 1, Status.FAILED, error)
    assert jobs.get(job.id).error == error
    assert [row.type for row in rows] == ["error", "status"]
    assert rows[0].data == error
    assert json.loads(json.dumps(rows[1].data["error"])) == {key: error[key] for key in ("code", "message", "hint")}


def test_what_is_no_text_is_stored_as_its_escape(claimed) -> None:
    job = claimed()
    [row] = jobs.tell(job.id, 1, [("log", {"level": "ERROR", "message": "b\udcff.png", "parts": ["\ud800"]})])
    assert row.data == {"level": "ERROR", "message": "b\\udcff.png", "parts": ["\\ud800"]}
    jobs.finish(job.id, 1, Status.FAILED, {"code": "x", "message": "b\udcff.png", "hint": None, "traceback": None})
    assert jobs.get(job.id).error["message"] == "b\\udcff.png"  # type: ignore[index]
