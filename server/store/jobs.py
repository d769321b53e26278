"""The life of a job, one transaction a step. Verbs that do not fit a job's state raise Conflict, with the state in the message.

    queued -> preparing -> running -> succeeded | failed
      |           |           |
      |           +-----------+--> canceling -> canceled        (cancel; the work is saved)
      +--> canceled           +--> queued                       (its worker stopped or died: it goes on from its newest bundle)

`attempt` is raised by every claim and fences all that a worker writes: see `tell`.
"""

import hashlib
import json
from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import ColumnElement, and_, delete, func, or_, update
from sqlmodel import Session, col, select
from ulid import ULID

from server.store import events
from server.store.engine import reading, writing
from server.store.events import LeaseLost
from server.store.files import remove_job_folder
from server.store.tables import ACTIVE, ENDED, Event, File, Idempotency, Job, Status, now

MAX_FAILURES = 3  # deaths in a row without a new bundle


class NotFound(Exception):
    """There is no such job."""


class Conflict(Exception):
    """The job's state does not allow that, or an idempotency key was used for another body."""


def add(spec: dict[str, Any], key: str | None = None, body: Any = None) -> tuple[Job, list[Event]]:
    """Store a validated spec as a queued job, with its first event and its idempotency key, in one transaction.

    With a known `key`, the job it made (and no events); Conflict if `body` is not the one it came with.
    """
    digest = _digest(body)
    with writing() as session:
        if key is not None and (known := _made_with(session, key, digest)):
            return known, []
        job = Job(
            id=f"j_{ULID()}",
            position=_last_position(session) + 1,
            name=spec["name"],
            kind=spec["kind"],
            arch=spec["model"]["arch"],
            total_steps=_total_steps(spec),
            spec=spec,
        )
        session.add(job)
        if key is not None:
            session.add(Idempotency(key=key, digest=digest, job_id=job.id))
        session.flush()
        told = _tell_status(session, job)
        return job, told


def made_with(key: str, body: Any) -> Job | None:
    """The job that this idempotency key made, None for a new key. Conflict if it came with another body."""
    with reading() as session:
        return _made_with(session, key, _digest(body))


def get(job_id: str) -> Job:
    with reading() as session:
        return _get(session, job_id)


def listing(
    statuses: Sequence[str] = (), kind: str | None = None, text: str | None = None, limit: int = 50, before: int | None = None
) -> tuple[list[Job], int | None]:
    """Jobs, newest first, and the position to go on `before`, None at the end. `text` is looked for in name, id and arch."""
    query = select(Job).order_by(col(Job.position).desc()).limit(limit + 1)
    if statuses:
        query = query.where(col(Job.status).in_(statuses))
    if kind:
        query = query.where(Job.kind == kind)
    if text:
        query = query.where(or_(*(col(c).icontains(text, autoescape=True) for c in (Job.name, Job.id, Job.arch))))
    if before is not None:
        query = query.where(Job.position < before)
    with reading() as session:
        rows = list(session.exec(query))
    return rows[:limit], rows[limit - 1].position if len(rows) > limit else None


def queue_positions() -> dict[str, int]:
    """1 for the job that is claimed next, 2 for the one after it, ..."""
    with reading() as session:
        ids = session.exec(select(Job.id).where(Job.status == Status.QUEUED).order_by(*_queue_order()))
        return {job_id: place for place, job_id in enumerate(ids, start=1)}


def claim_next(worker: str, archs: Sequence[str]) -> Job | None:
    """Take the best queued job that this worker can run: highest priority, then first submitted. None if there is none.
    Two workers never get the same job, however often they are rung."""
    with writing() as session:
        job = session.exec(
            select(Job).where(Job.status == Status.QUEUED, col(Job.arch).in_(archs)).order_by(*_queue_order()).limit(1)
        ).first()
        if job is None:
            return None
        job.attempt += 1
        job.status, job.phase, job.worker, job.wish, job.error = Status.PREPARING, None, worker, None, None
        job.started_at = job.started_at or now()
        job.finished_at = None
        _save(session, job)
        events.append(
            session, job.id, job.attempt, [("worker", {"message": f"attempt {job.attempt} on {worker}", "worker": worker})]
        )
        _tell_status(session, job)
        session.refresh(job)
        return job


def beat(job_id: str, attempt: int) -> str | None:
    """Renew the lease; the answer is what someone wishes of the run ("cancel", "requeue") or None. Raises LeaseLost."""
    with writing() as session:
        row = (
            session.connection()
            .execute(update(Job).where(*_held(job_id, attempt)).values(beat=Job.beat + 1).returning(col(Job.wish)))
            .first()
        )
        if row is None:
            raise LeaseLost(f"job {job_id} is not at attempt {attempt} any more")
        wish: str | None = row[0]
        return wish


def tell(
    job_id: str, attempt: int, told: Iterable[tuple[str, dict[str, Any]]], *, files: Sequence[File] = (), **columns: Any
) -> list[Event]:
    """The running attempt's one way to write: events, new files and columns of its job, together or not at all. A preview
    (`kind="sample"`) gets the job's next index. Raises LeaseLost if the job has moved on to another attempt."""
    with writing() as session:
        job = session.get(Job, job_id)
        if job is None or job.attempt != attempt or job.status not in ACTIVE:
            raise LeaseLost(f"job {job_id} is not at attempt {attempt} any more")
        told = list(told)
        if columns.get("status") == Status.RUNNING and job.status != Status.PREPARING:
            del columns["status"]  # canceling stays canceling
        for name, value in columns.items():
            setattr(job, name, value)
        for file in files:
            if file.kind == "sample":
                file.number = job.num_samples = job.num_samples + 1
                told = [(kind, {"index": file.number, **data} if kind == "sample" else data) for kind, data in told]
            if file.kind in ("thumbnail", "animation"):
                file.number = job.num_samples  # of the preview that is told with it
            if file.kind == "bundle":
                job.failures = 0
            session.add(file)
        _save(session, job)
        rows = events.append(session, job_id, attempt, told)
        return rows + (_tell_status(session, job) if "status" in columns else [])


def finish(job_id: str, attempt: int, status: Status, error: dict[str, Any] | None = None) -> list[Event]:
    """The running attempt's last word: an end, or back to the queue. Raises LeaseLost."""
    with writing() as session:
        job = session.get(Job, job_id)
        if job is None or job.attempt != attempt or job.status not in ACTIVE:
            raise LeaseLost(f"job {job_id} is not at attempt {attempt} any more")
        return _leave(session, job, Status.CANCELED if _canceled_meanwhile(job, status) else status, error)


def give_back(job_id: str, attempt: int, reason: str) -> list[Event]:
    """The attempt's worker is gone: queue the job again, or end it as failed after MAX_FAILURES deaths without a new bundle.
    Does nothing (and returns no events) if the job has moved on."""
    with writing() as session:
        job = session.get(Job, job_id)
        if job is None or job.attempt != attempt or job.status not in ACTIVE:
            return []
        job.failures += 1
        told = [("log", {"level": "WARNING", "message": f"{reason} at step {job.step}"})]
        rows = events.append(session, job.id, attempt, told)
        if job.status == Status.CANCELING:
            return rows + _leave(session, job, Status.CANCELED)
        if job.failures >= MAX_FAILURES:
            message = f"{reason} at step {job.step}, {job.failures} times in a row without a new checkpoint"
            hint = "Look at the log for what it did last; resume tries again."
            return rows + _leave(
                session, job, Status.FAILED, {"code": "worker_died", "message": message, "hint": hint, "traceback": None}
            )
        return rows + _leave(session, job, Status.QUEUED)


def held_by(worker: str) -> list[Job]:
    """The jobs that this worker has claimed and not finished."""
    with reading() as session:
        return list(session.exec(select(Job).where(Job.worker == worker, col(Job.status).in_(ACTIVE))))


def active() -> list[Job]:
    with reading() as session:
        return list(session.exec(select(Job).where(col(Job.status).in_(ACTIVE))))


def any_queued(archs: Sequence[str]) -> bool:
    with reading() as session:
        return (
            session.exec(select(Job.id).where(Job.status == Status.QUEUED, col(Job.arch).in_(archs)).limit(1)).first() is not None
        )


def wish_requeue(worker: str) -> None:
    """Ask this worker's runs to save and go back to the queue (the worker is being stopped)."""
    with writing() as session:
        wanted = and_(col(Job.worker) == worker, col(Job.status).in_((Status.PREPARING, Status.RUNNING)))
        session.connection().execute(update(Job).where(wanted).values(wish="requeue"))


def cancel(job_id: str) -> tuple[Job, list[Event]]:
    """Queued: canceled at once. Preparing or running: canceling; the loop saves and ends within one unit of work. Already
    canceling: nothing changes. Otherwise Conflict."""
    with writing() as session:
        job = _get(session, job_id)
        if job.status == Status.QUEUED:
            return job, _leave(session, job, Status.CANCELED)
        if job.status == Status.CANCELING:
            return job, []
        if job.status not in ACTIVE:
            raise Conflict(f"job {job.id} is {job.status}; only a queued or running job can be canceled")
        job.status, job.wish = Status.CANCELING, "cancel"
        _save(session, job)
        return job, _tell_status(session, job)


def cancel_queued() -> list[Event]:
    """Cancel every queued job; running ones are not touched."""
    with writing() as session:
        queued = list(session.exec(select(Job).where(Job.status == Status.QUEUED)))
        return [row for job in queued for row in _leave(session, job, Status.CANCELED)]


def resume(job_id: str, spec: dict[str, Any] | None = None) -> tuple[Job, list[Event]]:
    """Queue an ended job again, with `spec` if that changed; it goes on from its newest bundle. Conflict while it is not ended,
    or when a succeeded job would have no step left to do."""
    with writing() as session:
        job = _get(session, job_id)
        if job.status not in ENDED:
            raise Conflict(f"job {job.id} is {job.status}; only an ended job can be resumed")
        total = _total_steps(spec or job.spec)
        if job.status == Status.SUCCEEDED and total <= job.step:
            raise Conflict(
                f"job {job.id} has succeeded with all {job.step} steps; resume it with more, "
                f'for instance {{"train": {{"steps": {job.step * 2}}}}}'
            )
        if spec is not None:
            job.spec, job.name = spec, spec["name"]
        job.total_steps, job.failures, job.error = total, 0, None
        job.position = _last_position(session) + 1
        return job, _leave(session, job, Status.QUEUED)


def change(job_id: str, name: str | None, priority: int | None, labels: dict[str, str] | None) -> tuple[Job, list[Event]]:
    with writing() as session:
        job = _get(session, job_id)
        job.name = name if name is not None else job.name
        job.priority = priority if priority is not None else job.priority
        job.labels = labels if labels is not None else job.labels
        _save(session, job)
        return job, _tell_status(session, job)


def remove(job_id: str, files: bool) -> None:
    """Delete the job's rows and, if asked, its folder. Conflict while it is active."""
    with writing() as session:
        job = _get(session, job_id)
        if job.status in ACTIVE:
            raise Conflict(f"job {job.id} is {job.status}; cancel it before you delete it")
        session.connection().execute(delete(Idempotency).where(col(Idempotency.job_id) == job_id))
        session.delete(job)
    if files:
        remove_job_folder(job_id)


def job_files(job_id: str, *kinds: str, after: int = 0) -> list[File]:
    """The job's files of these kinds (previews: with an index above `after`), oldest first."""
    query = select(File).where(File.job_id == job_id, col(File.kind).in_(kinds))
    if after:
        query = query.where(col(File.number) > after)
    with reading() as session:
        return list(session.exec(query.order_by(col(File.id))))


def newest_preview(job_id: str, prompt_index: int | None = None) -> File | None:
    query = select(File).where(File.job_id == job_id, File.kind == "sample").order_by(col(File.number).desc())
    with reading() as session:
        rows = session.exec(query)
        return next((row for row in rows if prompt_index in (None, row.info["prompt_index"])), None)


def forget_files(job_id: str, attempt: int, ids: Sequence[int]) -> None:
    """Drop the rows of files that are about to be deleted. Raises LeaseLost."""
    with writing() as session:
        if session.exec(select(Job.id).where(*_held(job_id, attempt))).first() is None:
            raise LeaseLost(f"job {job_id} is not at attempt {attempt} any more")
        session.connection().execute(delete(File).where(col(File.id).in_(ids)))


def _get(session: Session, job_id: str) -> Job:
    job = session.get(Job, job_id)
    if job is None:
        raise NotFound(f"there is no job '{job_id}'")
    return job


def _made_with(session: Session, key: str, digest: str) -> Job | None:
    known = session.get(Idempotency, key)
    if known is None:
        return None
    if known.digest != digest:
        raise Conflict(f"Idempotency-Key '{key}' was used for another body, which made job {known.job_id}")
    return _get(session, known.job_id)


def _digest(body: Any) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def _save(session: Session, job: Job) -> None:
    session.add(job)
    session.flush()


def _leave(session: Session, job: Job, status: Status, error: dict[str, Any] | None = None) -> list[Event]:
    """Put the job down in `status`, which no worker holds."""
    job.status, job.phase, job.worker, job.wish, job.error = status, None, None, None, error
    job.steps_per_second = None
    job.finished_at = now() if status in ENDED else None
    _save(session, job)
    rows = events.append(session, job.id, None, [("error", error)]) if error else []
    return rows + _tell_status(session, job)


def _tell_status(session: Session, job: Job) -> list[Event]:
    data = {
        "status": job.status,
        "step": job.step,
        "total_steps": job.total_steps,
        "name": job.name,
        "priority": job.priority,
        "error": job.error and {key: job.error[key] for key in ("code", "message", "hint")},
    }
    return events.append(session, job.id, None, [("status", data)])


def _canceled_meanwhile(job: Job, status: Status) -> bool:
    return job.status == Status.CANCELING and status not in ENDED


def _held(job_id: str, attempt: int) -> tuple[ColumnElement[bool], ...]:
    return col(Job.id) == job_id, col(Job.attempt) == attempt, col(Job.status).in_(ACTIVE)


def _queue_order() -> tuple[ColumnElement[Any], ...]:
    return col(Job.priority).desc(), col(Job.position).asc()


def _last_position(session: Session) -> int:
    return session.exec(select(func.max(Job.position))).one() or 0


def _total_steps(spec: dict[str, Any]) -> int:
    """Units of work: steps of a training job, pictures of a sampling job."""
    return int(spec["train"]["steps"]) if spec["kind"] == "train" else len(spec["samples"])
