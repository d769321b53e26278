"""The life of a job, one transaction a step: what the server and the workers do. What people do is in `server.store.verbs`.

    queued -> preparing -> running -> succeeded | failed
      ^           |           |
      |           +-----------+--> canceling -> canceled   (cancel: the work is saved, with weights for users)
      |           +-----------+--> pausing -> paused       (pause: the work is saved and the memory given back)
      +-----------+-----------+                            (its worker stopped or died: it goes on from its newest bundle)

Without a worker: queued -> paused | canceled, paused -> queued | canceled, and every end -> queued (resume). From pausing, cancel leads
to canceling. A worker that dies while its job is canceling or pausing leaves it canceled or paused.

`attempt` is raised by every claim and fences all that a worker writes: see `tell`.
"""

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, and_, delete, func, or_, update
from sqlmodel import Session, col, select
from ulid import ULID

from server.store import events
from server.store.engine import reading, writing
from server.store.events import LeaseLost
from server.store.files import last_words
from server.store.tables import ACTIVE, ASKS, ENDED, Event, File, Idempotency, Job, Status, now

MAX_FAILURES = 3  # deaths in a row without a new bundle
CHECKPOINT = ("bundle", "weights")  # the files of a checkpoint


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
            position=last_position(session) + 1,
            name=spec["name"],
            kind=spec["kind"],
            arch=spec["model"]["arch"],
            total_steps=total_steps(spec),
            spec=spec,
        )
        session.add(job)
        if key is not None:
            session.add(Idempotency(key=key, digest=digest, job_id=job.id))
        session.flush()
        told = tell_status(session, job)
        return job, told


def made_with(key: str, body: Any) -> Job | None:
    """The job that this idempotency key made, None for a new key. Conflict if it came with another body."""
    with reading() as session:
        return _made_with(session, key, _digest(body))


def get(job_id: str) -> Job:
    with reading() as session:
        return get_row(session, job_id)


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
        save_row(session, job)
        events.append(
            session, job.id, job.attempt, [("worker", {"message": f"attempt {job.attempt} on {worker}", "worker": worker})]
        )
        tell_status(session, job)
        session.refresh(job)
        return job


@dataclass(frozen=True)
class Wishes:
    """What people want of a run: how it is to end, and how often each of ASKS was asked for since the job began."""

    wish: str | None
    asked: dict[str, int]


def beat(job_id: str, attempt: int) -> Wishes:
    """Renew the lease; the answer is what someone wishes of the run. Raises LeaseLost."""
    wanted = [col(Job.wish), *(getattr(Job, f"{what}_asked") for what in ASKS)]
    with writing() as session:
        row = (
            session.connection()
            .execute(update(Job).where(*_held(job_id, attempt)).values(beat=Job.beat + 1).returning(*wanted))
            .first()
        )
        if row is None:
            raise LeaseLost(f"job {job_id} is not at attempt {attempt} any more")
        return Wishes(row[0], dict(zip(ASKS, row[1:], strict=True)))


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
            del columns["status"]  # canceling stays canceling, pausing stays pausing
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
            file.pinned = file.kind in CHECKPOINT and _is_pinned(session, file)
            session.add(file)
        save_row(session, job)
        rows = events.append(session, job_id, attempt, told)
        return rows + (tell_status(session, job) if "status" in columns else [])


def finish(job_id: str, attempt: int, status: Status, error: dict[str, Any] | None = None) -> list[Event]:
    """The running attempt's last word: an end, or back to the queue. Raises LeaseLost."""
    with writing() as session:
        job = session.get(Job, job_id)
        if job is None or job.attempt != attempt or job.status not in ACTIVE:
            raise LeaseLost(f"job {job_id} is not at attempt {attempt} any more")
        return leave(session, job, status if status in (Status.SUCCEEDED, Status.FAILED) else _rest(job, status), error)


def give_back(job_id: str, attempt: int, reason: str, hint: str | None = None) -> list[Event]:
    """The attempt's worker is gone: queue the job again, or end it as failed after MAX_FAILURES deaths without a new bundle. The first
    event says so, with the `hint` and the process's last words. Does nothing (and returns no events) if the job has moved on."""
    words = last_words(job_id, attempt)
    with writing() as session:
        job = session.get(Job, job_id)
        if job is None or job.attempt != attempt or job.status not in ACTIVE:
            return []
        job.failures += 1
        message = "; ".join([f"{reason} at step {job.step}", *([hint] if hint else [])])
        message += f". The last that it wrote:\n{words}" if words else ""
        told = [("log", {"level": "WARNING", "message": message})]
        rows = events.append(session, job.id, attempt, told)
        if (rest := _rest(job, Status.QUEUED)) != Status.QUEUED:
            return rows + leave(session, job, rest)
        if job.failures >= MAX_FAILURES:
            message = f"{reason} at step {job.step}, {job.failures} times in a row without a new checkpoint"
            mend = f"{f'{hint[:1].upper()}{hint[1:]}. ' if hint else ''}Look at the log for what it did last; resume tries again."
            error = {"code": "worker_died", "message": message, "hint": mend, "traceback": f"{words}\n" if words else None}
            return rows + leave(session, job, Status.FAILED, error)
        return rows + leave(session, job, Status.QUEUED)


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


def forget_files(job_id: str, attempt: int, ids: Sequence[int]) -> set[int]:
    """Drop the rows of files that are about to be deleted, except of what was pinned meanwhile; the answer is the ids of those
    dropped. Raises LeaseLost."""
    with writing() as session:
        if session.exec(select(Job.id).where(*_held(job_id, attempt))).first() is None:
            raise LeaseLost(f"job {job_id} is not at attempt {attempt} any more")
        loose = delete(File).where(col(File.id).in_(ids), col(File.pinned).is_(False)).returning(col(File.id))
        return {int(row[0] or 0) for row in session.connection().execute(loose)}


def get_row(session: Session, job_id: str) -> Job:
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
    return get_row(session, known.job_id)


def _digest(body: Any) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def save_row(session: Session, job: Job) -> None:
    session.add(job)
    session.flush()


def leave(session: Session, job: Job, status: Status, error: dict[str, Any] | None = None) -> list[Event]:
    """Put the job down in `status`, which no worker holds. An end forgets what was asked for; elsewhere it waits for the next run."""
    if status in ENDED:
        for what in ASKS:
            setattr(job, f"{what}_answered", getattr(job, f"{what}_asked"))
    error = events.storable(error)
    job.status, job.phase, job.worker, job.wish, job.error = status, None, None, None, error
    job.steps_per_second = None
    job.finished_at = now() if status in ENDED else None
    save_row(session, job)
    rows = events.append(session, job.id, None, [("error", error)]) if error else []
    return rows + tell_status(session, job)


def tell_status(session: Session, job: Job) -> list[Event]:
    data = {
        "status": job.status,
        "step": job.step,
        "total_steps": job.total_steps,
        "name": job.name,
        "priority": job.priority,
        "error": job.error and {key: job.error[key] for key in ("code", "message", "hint")},
    }
    return events.append(session, job.id, None, [("status", data)])


def _rest(job: Job, status: Status) -> Status:
    """Where a job that did not come to its end is put down: what people asked for last wins over what its worker had in mind."""
    return {Status.CANCELING: Status.CANCELED, Status.PAUSING: Status.PAUSED}.get(Status(job.status), status)


def _is_pinned(session: Session, file: File) -> bool:
    """Whether this checkpoint's step was pinned before: its files turned out damaged, and the step was done again."""
    same = select(File.id).where(File.job_id == file.job_id, File.kind == file.kind, File.step == file.step, col(File.pinned))
    return not file.name.startswith("recovery_") and session.exec(same.limit(1)).first() is not None


def _held(job_id: str, attempt: int) -> tuple[ColumnElement[bool], ...]:
    return col(Job.id) == job_id, col(Job.attempt) == attempt, col(Job.status).in_(ACTIVE)


def _queue_order() -> tuple[ColumnElement[Any], ...]:
    return col(Job.priority).desc(), col(Job.position).asc()


def last_position(session: Session) -> int:
    return session.exec(select(func.max(Job.position))).one() or 0


def total_steps(spec: dict[str, Any]) -> int:
    """Units of work: steps of a training job, pictures of a sampling job (of each prompt one for each cell of the matrix)."""
    if spec["kind"] == "train":
        return int(spec["train"]["steps"])
    matrix = spec.get("matrix") or {}
    return len(spec["samples"]) * len(matrix.get("checkpoints") or [1]) * len(matrix.get("weights") or [1])
