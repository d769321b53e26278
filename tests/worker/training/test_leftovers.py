"""What a run that was killed amid a save leaves on the disk is removed by the next one, and nothing else is."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from server.store import jobs
from server.store.files import job_folder
from server.store.tables import File, Job
from worker import tasks
from worker.report import Reporter, Stop
from worker.report_store import StoreReporter
from worker.training import checkpoint, saves

TORN = ".step_000000004.part"


@pytest.fixture
def submitted(migrated: Path, small_job: Any, monkeypatch: pytest.MonkeyPatch) -> Job:
    from models.catalog import parse_job

    monkeypatch.setattr(tasks, "child", tasks.Child())
    spec = small_job(**{"train.steps": 6, "save.save_every": 2})
    spec["save"]["max_step_saves_to_keep"] = 1
    job, _ = jobs.add(parse_job(spec).model_dump(mode="json"))
    return job


def claim() -> Job:
    job = jobs.claim_next("w", ["pocket"])
    assert job is not None
    return job


def dies(job: Job, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, at: Callable[..., bool]) -> None:
    """Run the job until this call, which never happens; nothing of the run cleans up after itself."""
    call = getattr(owner, name)

    def killed(*args: Any, **more: Any) -> Any:
        if at(*args, **more):
            raise SystemExit
        return call(*args, **more)

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, killed)
        with pytest.raises(SystemExit):
            tasks.work(job)
    jobs.give_back(job.id, job.attempt, "killed")


def there(job: Job) -> set[str]:
    return {str(path.relative_to(job_folder(job.id))) for path in job_folder(job.id).glob("attempts/*/bundles/*")}


def named(job: Job) -> set[str]:
    return {row.path for row in jobs.job_files(job.id, "bundle")}


def torn(folder: Path) -> Path:
    """As a kill leaves it that comes while the state is written."""
    part = folder / "bundles" / TORN
    part.mkdir(parents=True)
    (part / "state.safetensors").write_bytes(b"half")
    return part


def test_each_way_to_die_amid_a_save_leaves_nothing_once_the_job_is_done(submitted: Job, monkeypatch: Any) -> None:
    first = claim()
    dies(first, monkeypatch, checkpoint, "save", lambda _, state, **__: state.step == 2)  # before any bundle was told of
    torn(job_folder(first.id) / "attempts/1")

    second = claim()
    dies(
        second, monkeypatch, jobs, "tell", lambda *_, files=(), **__: any(file.step == 4 for file in files)
    )  # renamed, not told of
    assert there(second) == {"attempts/2/bundles/step_000000002", "attempts/2/bundles/step_000000004"}

    third = claim()
    dies(third, monkeypatch, saves.checkpoint, "remove", lambda gone: any("step_000000002" in str(path) for path in gone))
    assert "attempts/2/bundles/step_000000002" in there(third) - named(third)  # forgotten, not removed

    tasks.work(claim())
    assert jobs.get(submitted.id).status == "succeeded"
    assert there(submitted) == named(submitted) == {"attempts/4/bundles/step_000000006"}


def test_what_has_a_row_or_is_of_a_later_attempt_stays(submitted: Job) -> None:
    job = claim()
    parts = [torn(job_folder(job.id) / "attempts" / attempt) for attempt in ("1", "2", "x")]
    bundles = [parts[0].with_name(f"step_{step:09d}") for step in (1, 2, 3)]
    for bundle in bundles:
        bundle.mkdir()
    files = [
        File(
            job_id=job.id,
            attempt=1,
            kind="bundle",
            name="step_000000001",
            path="attempts/1/bundles/step_000000001",
            size=1,
            step=1,
        ),
        File(job_id=job.id, attempt=1, kind="weights", name="w", path="attempts/1/bundles/step_000000002/w", size=1, step=2),
    ]
    jobs.tell(job.id, 1, [], files=files)
    assert set(StoreReporter(job).leftovers()) == {parts[0], bundles[2]}


def test_a_run_that_lost_its_lease_removes_nothing(submitted: Job) -> None:
    stale = StoreReporter(claim())
    part = torn(stale.workdir)
    jobs.give_back(submitted.id, 1, "fell silent")
    with pytest.raises(Stop) as stop:
        stale.leftovers()
    assert stop.value.wish == "lost"
    claim()
    with pytest.raises(Stop):
        stale.leftovers()
    assert part.exists()


def test_a_folder_without_a_server_keeps_its_bundles_and_what_is_none_of_ours(tmp_path: Path) -> None:
    reporter = Reporter(tmp_path, 1)
    part = torn(tmp_path)
    half = part.with_name("step_000000002")  # its removal was cut off
    whole, notes, hidden = (part.with_name(name) for name in ("recovery_000000003", "notes", ".git"))
    for folder in (half, whole, notes, hidden):
        folder.mkdir()
    (whole / checkpoint.MANIFEST).write_text("{}")
    checkpoint.remove(reporter.leftovers())
    assert sorted(part.parent.iterdir()) == [hidden, notes, whole]
