"""The tables. The database is the truth; files and messages follow it."""

from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import Index, UniqueConstraint, false
from sqlmodel import JSON, Column, Field, SQLModel


def now() -> str:
    """UTC, ISO 8601 with milliseconds and Z: sorts as text and carries its offset."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class Status(StrEnum):
    """Where a job is. The last three are ends; a paused job rests until someone resumes it."""

    QUEUED = "queued"
    PREPARING = "preparing"
    RUNNING = "running"
    PAUSING = "pausing"
    PAUSED = "paused"
    CANCELING = "canceling"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELED = "canceled"


ENDED = (Status.SUCCEEDED, Status.FAILED, Status.CANCELED)
ACTIVE = (Status.PREPARING, Status.RUNNING, Status.PAUSING, Status.CANCELING)  # a worker holds it
RESUMABLE = (Status.PAUSED, *ENDED)
ASKS = ("sample", "checkpoint")  # what a running loop can be asked for without ending it


class Job(SQLModel, table=True):
    """One asking. `attempt` counts claims and is the fencing token: only its holder may write. `wish` is how someone wants
    the running loop to end (cancel, pause, requeue); `beat` is the heartbeat counter that keeps the lease. `sample_asked` counts how
    often previews were asked for, `sample_answered` how many of those presses the loop has answered; the same for checkpoints."""

    __table_args__ = (Index("job_queue", "status", "priority", "position"),)

    id: str = Field(primary_key=True)
    position: int = Field(unique=True)
    name: str
    kind: str
    arch: str = Field(index=True)
    status: str = Field(default=Status.QUEUED, index=True)
    phase: str | None = None
    step: int = 0
    total_steps: int
    priority: int = 0
    labels: dict[str, str] = Field(default_factory=dict, sa_column=Column(JSON, nullable=False))
    spec: dict[str, Any] = Field(sa_column=Column(JSON, nullable=False))
    attempt: int = 0
    failures: int = 0
    worker: str | None = Field(default=None, index=True)
    beat: int = 0
    wish: str | None = None
    sample_asked: int = Field(default=0, sa_column_kwargs={"server_default": "0"})
    sample_answered: int = Field(default=0, sa_column_kwargs={"server_default": "0"})
    checkpoint_asked: int = Field(default=0, sa_column_kwargs={"server_default": "0"})
    checkpoint_answered: int = Field(default=0, sa_column_kwargs={"server_default": "0"})
    loss: float | None = None
    steps_per_second: float | None = None
    error: dict[str, Any] | None = Field(default=None, sa_column=Column(JSON(none_as_null=True)))
    last_seq: int = 0
    num_samples: int = 0
    created_at: str = Field(default_factory=now)
    started_at: str | None = None
    finished_at: str | None = None


class Event(SQLModel, table=True):
    """One thing that happened to a job, numbered per job from 1 without gaps. `id` numbers all events of this server."""

    __table_args__ = (
        UniqueConstraint("job_id", "seq"),
        Index("event_type", "job_id", "type", "seq"),
        {"sqlite_autoincrement": True},
    )

    id: int | None = Field(default=None, primary_key=True)
    job_id: str = Field(foreign_key="job.id", ondelete="CASCADE")
    seq: int
    attempt: int
    time: str
    type: str
    data: dict[str, Any] = Field(sa_column=Column(JSON, nullable=False))


class File(SQLModel, table=True):
    """A file that a job made; it exists for us once this row does. `path` is under the job's folder, `name` is what users see.
    `kind` is weights, sample, thumbnail, animation, config or bundle; `number` is a preview's index. The rows of a checkpoint that
    is `pinned` (bundle and weights) are never dropped while the job lives."""

    __table_args__ = (Index("file_kind", "job_id", "kind", "number"), Index("file_name", "job_id", "name"))

    id: int | None = Field(default=None, primary_key=True)
    job_id: str = Field(foreign_key="job.id", ondelete="CASCADE")
    attempt: int
    kind: str
    name: str
    path: str
    size: int
    step: int
    number: int | None = None
    pinned: bool = Field(default=False, sa_column_kwargs={"server_default": false()})
    info: dict[str, Any] = Field(default_factory=dict, sa_column=Column(JSON, nullable=False))
    created_at: str = Field(default_factory=now)


class Idempotency(SQLModel, table=True):
    """An Idempotency-Key that made a job, and the digest of the body it came with."""

    key: str = Field(primary_key=True)
    digest: str
    job_id: str


class Worker(SQLModel, table=True):
    """One worker process. `beat` grows while it lives. `problem` is why its device cannot be used, so that it takes no jobs."""

    id: str = Field(primary_key=True)
    host: str
    device: str
    pid: int
    beat: int = 0
    seen_at: str = Field(default_factory=now)
    started_at: str = Field(default_factory=now)
    stopped: bool = False
    archs: list[str] = Field(default_factory=list, sa_column=Column(JSON, nullable=False))
    versions: dict[str, str] = Field(default_factory=dict, sa_column=Column(JSON, nullable=False))
    memory_used: int | None = None
    memory_total: int | None = None
    problem: str | None = None


class ExtensionArch(SQLModel, table=True):
    """An architecture that a worker found in a folder elsewhere. `digest` is that of the folder's source files; `card` and `schemas`
    are empty when `broken` says why it cannot be used."""

    name: str = Field(primary_key=True)
    source: str
    digest: str
    card: dict[str, Any] = Field(default_factory=dict, sa_column=Column(JSON, nullable=False))
    schemas: dict[str, Any] = Field(default_factory=dict, sa_column=Column(JSON, nullable=False))
    broken: str | None = None
    seen_at: str = Field(default_factory=now)


class Session(SQLModel, table=True):
    """A browser's sign-in: the digest of its cookie, never the token."""

    digest: str = Field(primary_key=True)
    expires_at: str
