"""Workers as the database knows them, and the judge of who is still alive."""

import time
from collections.abc import Hashable
from typing import Any

from sqlmodel import col, select

from server.store.engine import reading, writing
from server.store.tables import ACTIVE, Job, Worker, now


def register(worker: Worker) -> None:
    """A worker has started (again)."""
    with writing() as session:
        session.merge(worker)


def beat(worker_id: str, **columns: Any) -> None:
    """The worker lives; `columns` are what it knows of itself."""
    with writing() as session:
        row = session.get(Worker, worker_id)
        if row is not None:
            for name, value in {**columns, "beat": row.beat + 1, "seen_at": now()}.items():
                setattr(row, name, value)
            session.add(row)


def listing() -> list[tuple[Worker, str | None]]:
    """All workers that ever registered, with the id of the job each holds."""
    with reading() as session:
        rows = session.exec(select(Worker).order_by(col(Worker.id))).all()
        held = session.exec(select(Job.worker, Job.id).where(col(Job.status).in_(ACTIVE))).all()
    jobs = dict(held)
    return [(row, jobs.get(row.id)) for row in rows]


class Pulse:
    """Judges heartbeats by this process's monotonic clock: a counter that has not changed for `seconds` has stopped. Clocks of
    other hosts and jumps of this one do not matter."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._seen: dict[Hashable, tuple[int, float]] = {}

    def alive(self, who: Hashable, counter: int) -> bool:
        known = self._seen.get(who)
        if known is None or known[0] != counter:
            self._seen[who] = (counter, time.monotonic())
            return True
        return time.monotonic() - known[1] < self.seconds

    def keep(self, those: set[Hashable]) -> None:
        """Forget all others."""
        self._seen = {who: seen for who, seen in self._seen.items() if who in those}
