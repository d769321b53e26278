"""Events: numbered per job from 1 without gaps, written with what they tell in one transaction, never changed afterwards."""

import math
from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import text
from sqlmodel import Session, col, select

from server.store.tables import Event, now

LISTED = ("status", "phase", "progress", "sample")  # what the stream for lists carries


class LeaseLost(Exception):
    """The job has been given to someone else: whoever gets this must write nothing more and stop."""


def append(session: Session, job_id: str, attempt: int | None, events: Iterable[tuple[str, dict[str, Any]]]) -> list[Event]:
    """Add (type, data) events to the job in this transaction; the caller rings `broker.publish` after the commit.

    `attempt` is the writer's fencing token, None for the server itself. Raises LeaseLost when the job has moved on.
    """
    rows = []
    for kind, data in events:
        guard = "" if attempt is None else " AND attempt = :attempt"
        numbered = (
            session.connection()
            .execute(
                text(f"UPDATE job SET last_seq = last_seq + 1 WHERE id = :id{guard} RETURNING last_seq, attempt"),
                {"id": job_id, "attempt": attempt},
            )
            .first()
        )
        if numbered is None:
            raise LeaseLost(f"job {job_id} is not at attempt {attempt} any more")
        row = Event(job_id=job_id, seq=numbered[0], attempt=numbered[1], time=now(), type=kind, data=storable(data))
        session.add(row)
        rows.append(row)
    session.flush()
    return rows


def after(session: Session, job_id: str, seq: int, limit: int = 500, types: Sequence[str] = ()) -> list[Event]:
    """The job's events after `seq`, oldest first."""
    query = select(Event).where(Event.job_id == job_id, Event.seq > seq)
    if types:
        query = query.where(col(Event.type).in_(types))
    return list(session.exec(query.order_by(col(Event.seq)).limit(limit)))


def listed_after(session: Session, event_id: int, limit: int = 500) -> list[Event]:
    """Events of all jobs that lists show, after the server-wide number `event_id`."""
    query = select(Event).where(col(Event.id) > event_id, col(Event.type).in_(LISTED))
    return list(session.exec(query.order_by(col(Event.id)).limit(limit)))


def newest_id(session: Session) -> int:
    """The server-wide number of the newest event; 0 if there is none."""
    return session.exec(select(Event.id).order_by(col(Event.id).desc()).limit(1)).first() or 0


def series(session: Session, job_id: str, name: str, after_step: int) -> list[tuple[int, float | None]]:
    """(step, value) of a metric, by step; where a step was told twice, the newest telling."""
    rows = session.connection().execute(
        text(
            "SELECT json_extract(data, '$.step'), json_extract(data, :path) FROM event "
            "WHERE job_id = :id AND type = 'metrics' AND json_extract(data, '$.step') > :after "
            "AND json_type(data, :path) IS NOT NULL ORDER BY seq"
        ),
        {"id": job_id, "path": f'$."{name}"', "after": after_step},
    )
    return sorted(dict(map(tuple, rows)).items())


def storable(value: Any) -> Any:
    """`value` as every reply can hold it: NaN and infinity as None, and what UTF-8 cannot write (a byte of a file's name that is no text,
    half of a surrogate pair) as the letters of its escape, `\\udcff`."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {storable(key): storable(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [storable(inner) for inner in value]
    return value
