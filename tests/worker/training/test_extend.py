"""A job that is extended twice, through the store: every result stays, and every count agrees."""

import hashlib
from pathlib import Path
from typing import Any

from safetensors import safe_open

from server.store import events, jobs, verbs
from server.store.engine import reading
from server.store.files import job_folder
from worker import tasks


def finals(job_id: str) -> dict[int, str]:
    """Step and digest of the weights that users see."""
    rows = jobs.job_files(job_id, "weights")
    return {row.step: hashlib.sha256((job_folder(job_id) / row.path).read_bytes()).hexdigest() for row in rows}


def messages(job_id: str) -> list[str]:
    with reading() as session:
        return [row.data["message"] for row in events.after(session, job_id, 0, 1000) if row.type == "log"]


def test_results_of_a_job_that_grows_all_stay_and_agree(migrated: Path, small_job: Any, monkeypatch) -> None:
    from models.catalog import parse_job

    monkeypatch.setattr(tasks, "child", tasks.Child())
    spec = small_job(**{"train.steps": 5})
    spec["save"]["max_step_saves_to_keep"] = 1
    job, _ = jobs.add(parse_job(spec).model_dump(mode="json"))
    seen: dict[int, str] = {}
    for total, before in ((5, 0), (7, 5), (9, 7)):
        if before:
            grown = {**spec, "train": {**spec["train"], "steps": total}}
            verbs.resume(job.id, parse_job(grown).model_dump(mode="json"))
        taken = jobs.claim_next("w", ["pocket"])
        assert taken is not None
        tasks.work(taken)
        shown = jobs.get(job.id)
        assert (shown.status, shown.step, shown.total_steps, shown.error) == ("succeeded", total, total, None)
        now = finals(job.id)
        assert set(now) == {*seen, total}
        assert {step: now[step] for step in seen} == seen
        seen = now
        newest = jobs.job_files(job.id, "weights")[-1]
        assert newest.name == f"tiny_{total:09d}.safetensors"
        with safe_open(job_folder(job.id) / newest.path, framework="pt") as file:
            assert file.metadata()["step"] == str(total)
        with reading() as session:
            assert [step for step, _ in events.series(session, job.id, "loss", 0)] == list(range(1, total + 1))
            told = [row.data["step"] for row in events.after(session, job.id, 0, 1000) if row.type == "metrics"]
        assert told == list(range(1, total + 1))
    assert [row.pinned for row in jobs.job_files(job.id, "weights")] == [True, True, False]
    assert [text for text in messages(job.id) if text.startswith("goes on")] == [
        "goes on from step 5 (step_000000005)",
        "goes on from step 7 (step_000000007)",
    ]


def test_steps_that_are_done_again_are_said(migrated: Path, small_job: Any, monkeypatch) -> None:
    """A worker that dies at step 4, after a save at step 2."""
    from models.catalog import parse_job

    monkeypatch.setattr(tasks, "child", tasks.Child())
    job, _ = jobs.add(parse_job(small_job(**{"train.steps": 6, "save.save_every": 2})).model_dump(mode="json"))
    taken = jobs.claim_next("w", ["pocket"])
    assert taken is not None
    tell = jobs.tell

    def dies(job_id: str, attempt: int, told: Any, **more: Any) -> Any:
        if attempt == 1 and any(file.kind == "bundle" and file.step == 4 for file in more.get("files", ())):
            tell(job_id, attempt, [], step=4)
            raise SystemExit
        return tell(job_id, attempt, told, **more)

    monkeypatch.setattr(jobs, "tell", dies)
    try:
        tasks.work(taken)
    except SystemExit:
        jobs.give_back(job.id, 1, "the training process died")
    again = jobs.claim_next("w", ["pocket"])
    assert again is not None
    assert again.attempt == 2
    tasks.work(again)
    assert jobs.get(job.id).status == "succeeded"
    assert "the training process died at step 4" in messages(job.id)
    assert "goes on from step 2 (step_000000002); steps 3 to 4 are done again" in messages(job.id)
    with reading() as session:
        assert [step for step, _ in events.series(session, job.id, "loss", 0)] == [1, 2, 3, 4, 5, 6]
