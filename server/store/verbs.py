"""What people do with a job. A verb that does not fit the job's state raises Conflict, with the state in the message; the states are
those of `server.store.jobs`."""

from collections.abc import Sequence
from itertools import product
from typing import Any, Literal

from sqlmodel import Session, col, delete, func, select

from server.store import events
from server.store.engine import reading, writing
from server.store.files import remove_job_folder
from server.store.jobs import CHECKPOINT, Conflict, NotFound, get_row, last_position, leave, save_row, tell_status, total_steps
from server.store.tables import ACTIVE, RESUMABLE, Event, File, Idempotency, Job, Status

Ask = Literal["sample", "checkpoint"]
WORDS: dict[Ask, str] = {"sample": "previews", "checkpoint": "a checkpoint"}


def cancel(job_id: str) -> tuple[Job, list[Event]]:
    """Queued or paused: canceled at once. With a worker: canceling; the loop saves and ends within one unit of work. Already
    canceling: nothing changes. Otherwise Conflict."""
    with writing() as session:
        job = get_row(session, job_id)
        if job.status in (Status.QUEUED, Status.PAUSED):
            return job, leave(session, job, Status.CANCELED)
        if job.status == Status.CANCELING:
            return job, []
        if job.status not in ACTIVE:
            raise Conflict(f"job {job.id} is {job.status}; only a queued, paused or running job can be canceled")
        return job, _wish(session, job, Status.CANCELING, "cancel")


def cancel_queued() -> list[Event]:
    """Cancel every queued job; running ones are not touched."""
    with writing() as session:
        queued = list(session.exec(select(Job).where(Job.status == Status.QUEUED)))
        return [row for job in queued for row in leave(session, job, Status.CANCELED)]


def pause(job_id: str) -> tuple[Job, list[Event]]:
    """Queued: paused at once. Preparing or running: pausing; the loop saves, gives its memory back and ends within one unit of
    work. Already pausing: nothing changes. Otherwise Conflict."""
    with writing() as session:
        job = get_row(session, job_id)
        if job.status == Status.QUEUED:
            return job, leave(session, job, Status.PAUSED)
        if job.status == Status.PAUSING:
            return job, []
        if job.status not in (Status.PREPARING, Status.RUNNING):
            raise Conflict(f"job {job.id} is {job.status}; only a queued or running job can be paused")
        return job, _wish(session, job, Status.PAUSING, "pause")


def resume(job_id: str, spec: dict[str, Any] | None = None, notes: Sequence[str] = ()) -> tuple[Job, list[Event]]:
    """Queue a paused or ended job again, with `spec` if that changed; it goes on from its newest bundle. `notes` go to
    its log. Extending a succeeded job pins its last checkpoint, so that the earlier result stays. Conflict in any other state, or
    when a succeeded job would have no step left to do."""
    with writing() as session:
        job = get_row(session, job_id)
        check_rests(job)
        check_has_more(job, spec or job.spec)
        told = _pin(session, job, job.step, True) if job.status == Status.SUCCEEDED else []
        if spec is not None:
            job.spec, job.name = spec, spec["name"]
            job.step = job.step if job.kind == "train" else len(_made(session, job.id) & cells(spec))
        job.total_steps, job.failures, job.error = total_steps(job.spec), 0, None
        job.position = last_position(session) + 1
        told += events.append(session, job.id, None, [("log", {"level": "INFO", "message": note}) for note in notes])
        return job, told + leave(session, job, Status.QUEUED)


def check_rests(job: Job) -> None:
    """Raises Conflict unless the job is in a state that `resume` goes on from."""
    if job.status not in RESUMABLE:
        raise Conflict(f"job {job.id} is {job.status}; only a paused or ended job can be resumed")


def check_has_more(job: Job, spec: dict[str, Any]) -> None:
    """Raises Conflict when the job has succeeded and `spec` asks for nothing more."""
    asks_more = total_steps(spec) > job.step if job.kind == "train" else bool(cells(spec) - cells(job.spec))
    if job.status == Status.SUCCEEDED and not asks_more:
        more = f'steps; resume it with more, for instance {{"train": {{"steps": {job.step * 2}}}}}'
        more = more if job.kind == "train" else "pictures; resume it with more samples, or other checkpoints or weights"
        raise Conflict(f"job {job.id} has succeeded with all {job.step} {more}")


def cells(spec: dict[str, Any]) -> set[tuple[Any, ...]]:
    """What tells a sampling job's pictures apart: the matrix' checkpoint and weight, if there is one, and the prompt's place."""
    matrix = spec.get("matrix") or {}
    places = range(len(spec["samples"]))
    return set(product(matrix.get("checkpoints") or [None], matrix.get("weights") or [None], places))


def made(job_id: str) -> set[tuple[Any, ...]]:
    """Those of a sampling job's pictures, as `cells` tells them apart, that there are."""
    with reading() as session:
        return _made(session, job_id)


def goes_on_from(job: Job) -> int:
    """See `saved_steps`; as it is now."""
    with reading() as session:
        row = get_row(session, job.id)
    return saved_steps([row])[row.id]


def saved_steps(jobs: Sequence[Job]) -> dict[str, int]:
    """The step that each job would go on from: that of its newest bundle (0: the start), as far as rows tell; of a sampling job, how many
    pictures there are, since each is kept."""
    trained = [job.id for job in jobs if job.kind == "train"]
    newest = select(File.job_id, func.max(File.step)).where(col(File.job_id).in_(trained), File.kind == "bundle")
    with reading() as session:
        known = dict(session.exec(newest.group_by(col(File.job_id))).all())
    return {job.id: known.get(job.id, 0) if job.kind == "train" else job.step for job in jobs}


def ask(job_id: str, what: Ask) -> tuple[Job, list[Event]]:
    """Ask a preparing or running training job for previews or a checkpoint now. Presses before it comes to it are answered
    together. Conflict in any other state, for a sampling job, and for previews of a job that makes none."""
    with writing() as session:
        job = get_row(session, job_id)
        if job.status not in (Status.PREPARING, Status.RUNNING):
            raise Conflict(f"job {job.id} is {job.status}; only a running job can be asked for {WORDS[what]}")
        if job.kind != "train":
            raise Conflict(
                f"job {job.id} is running, but it is a {job.kind} job; only a training job can be asked for {WORDS[what]}"
            )
        if what == "sample" and (job.spec["train"]["disable_sampling"] or not job.spec["sample"]["samples"]):
            raise Conflict(f"job {job.id} is running without previews: it has no prompts, or train.disable_sampling is set")
        first = getattr(job, f"{what}_asked") == getattr(job, f"{what}_answered")
        setattr(job, f"{what}_asked", getattr(job, f"{what}_asked") + 1)
        save_row(session, job)
        told = [("log", {"level": "INFO", "message": f"{WORDS[what]} asked for"})] if first else []
        return job, events.append(session, job.id, None, told)


def change(job_id: str, name: str | None, priority: int | None, labels: dict[str, str] | None) -> tuple[Job, list[Event]]:
    with writing() as session:
        job = get_row(session, job_id)
        if name is not None:
            job.name, job.spec = name, {**job.spec, "name": name}
        job.priority = priority if priority is not None else job.priority
        job.labels = labels if labels is not None else job.labels
        save_row(session, job)
        return job, tell_status(session, job)


def remove(job_id: str, files: bool) -> None:
    """Delete the job's rows and, if asked, its folder. Conflict while a worker holds it."""
    with writing() as session:
        job = get_row(session, job_id)
        if job.status in ACTIVE:
            raise Conflict(f"job {job.id} is {job.status}; cancel it before you delete it")
        session.connection().execute(delete(Idempotency).where(col(Idempotency.job_id) == job_id))
        session.delete(job)
    if files:
        remove_job_folder(job_id)


def pin(job_id: str, step: int, pinned: bool) -> list[Event]:
    """Keep the checkpoint of this step while the job lives, or let it go again when its turn comes. In any state; a running job
    prunes no checkpoint once this has returned. NotFound when there is no kept checkpoint of that step."""
    with writing() as session:
        job = get_row(session, job_id)
        if not _has_checkpoint(session, job, step):
            known = session.exec(select(File.step).where(File.job_id == job_id, File.kind == "weights").order_by(col(File.step)))
            steps = ", ".join(map(str, dict.fromkeys(known))) or "none yet"
            raise NotFound(f"job '{job_id}' has no checkpoint of step {step}; there are: {steps}")
        return _pin(session, job, step, pinned)


def _made(session: Session, job_id: str) -> set[tuple[Any, ...]]:
    records = session.exec(select(File.info).where(File.job_id == job_id, File.kind == "sample"))
    return {(each.get("checkpoint"), each.get("weight"), each["prompt_index"]) for each in records}


def _wish(session: Session, job: Job, status: Status, wish: str) -> list[Event]:
    job.status, job.wish = status, wish
    save_row(session, job)
    return tell_status(session, job)


def _has_checkpoint(session: Session, job: Job, step: int) -> bool:
    rows = select(File.id).where(File.job_id == job.id, File.kind == "weights", File.step == step)
    return session.exec(rows.limit(1)).first() is not None


def _pin(session: Session, job: Job, step: int, pinned: bool) -> list[Event]:
    """Mark every row of this step's kept checkpoint. Says so once: a second press changes nothing."""
    rows = session.exec(select(File).where(File.job_id == job.id, File.step == step, col(File.kind).in_(CHECKPOINT)))
    kept = [row for row in rows if not row.name.startswith("recovery_")]
    changed = [row for row in kept if row.pinned != pinned]
    for row in changed:
        row.pinned = pinned
        session.add(row)
    session.flush()
    told = {
        row.name: {"step": step, "path": row.name, "size": row.size, "pinned": pinned} for row in changed if row.kind == "weights"
    }
    return events.append(session, job.id, None, [("checkpoint", data) for data in told.values()])
