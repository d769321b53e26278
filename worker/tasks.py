"""The one Celery task: claim the best queued job that this worker can run, and run it. Lives in the pool's child process.

torch is imported here, inside the task, and nowhere in the parent: torch used before a fork deadlocks the children.
"""

import ctypes
import faulthandler
import logging
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from typing import Any

from sqlalchemy.exc import OperationalError

from models import catalog
from models.errors import DISK_FULL, SpecError, UserError
from server.store import broker, jobs, verbs
from server.store.engine import forget
from server.store.events import LeaseLost
from server.store.files import stderr_file
from server.store.settings import settings
from server.store.tables import Event, Job, Status
from worker import extensions, gpus, stderr

log = logging.getLogger(__name__)

TRACEBACK_CHARACTERS = 8000
LAST_WORD_TRIES, LAST_WORD_SECONDS = 20, 1.0
ENDS = {"cancel": Status.CANCELED, "pause": Status.PAUSED, "requeue": Status.QUEUED, "lost": None}
PR_SET_PDEATHSIG = 1  # linux/prctl.h


class Child:
    """What the pool's child keeps between tasks: the warm model, and the clock that ends an idle child. One that is `ending` takes
    no more jobs."""

    def __init__(self) -> None:
        self.worker, self.device, self.can_work = "", "cpu", True  # the parent sets these before it forks
        self.slot: Any = None
        self.ending = False
        self._idle: threading.Timer | None = None

    def begins_work(self) -> None:
        if self._idle:
            self._idle.cancel()

    def ends_work(self) -> None:
        """A child that has loaded torch gives all of its memory back by ending, once it has been idle for a while; the pool
        starts a fresh one. A task that comes in the same instant is lost with it, and rung for again."""
        if self.slot is not None or self.ending:
            self._idle = threading.Timer(settings().warm_seconds if not self.ending else 0.1, os._exit, (0,))
            self._idle.daemon = True
            self._idle.start()


child = Child()


@broker.celery().task(name=broker.BELL)  # type: ignore[untyped-decorator]
def run_next() -> None:
    """Answer the bell: run one job, then ring again for the next. Without a job that fits there is nothing to do."""
    if child.ending or not child.can_work:
        return
    child.begins_work()
    try:
        if extensions.stale():  # edited code needs a fresh child; the supervisor rings again for it
            child.ending = True
            return
        if not jobs.any_queued(extensions.archs()):
            return
        make_ready()
        job = jobs.claim_next(child.worker, extensions.archs())
        if job is not None:
            log.info("job %s: attempt %s begins", job.id, job.attempt)
            work(job)
            broker.ring([child.worker])
    finally:
        child.ends_work()


def make_ready() -> None:
    """Import what a job needs. Before the claim: that takes seconds, and the heart that keeps a lease beats only afterwards."""
    os.environ.setdefault("TQDM_DISABLE", "1")  # libraries draw progress bars into the log otherwise
    os.environ.setdefault("HF_HUB_OFFLINE", str(int(settings().offline)))
    gpus.set_allocator()
    import torch

    from worker.load import Slot

    torch.set_num_threads(settings().cpu_threads)
    child.slot = child.slot or Slot()


def work(job: Job) -> None:
    """Run a claimed job and say how it ended. A lost lease says nothing: the job is another's. After a pause the child ends: a process
    that is gone holds no memory. So does one whose device may be unusable now: the next job gets a fresh one."""
    from worker.report import Stop

    status, error = Status.SUCCEEDED, None
    try:
        _run(job)
    except Stop as stop:
        status = ENDS[stop.wish]  # type: ignore[assignment]
        child.ending = child.ending or stop.wish == "pause"
    except SpecError as refused:
        status, error = Status.FAILED, _error(refused.code, "; ".join(p.message for p in refused.problems), refused.hint)
    except UserError as refused:
        status, error = Status.FAILED, _error(refused.code, refused.message, refused.hint)
        child.ending = child.ending or (refused.code == "out_of_memory" and child.device != "cpu")
    except Exception as bug:
        from models.memory import is_device_lost

        status, error = Status.FAILED, _unexpected(bug, job)
        child.ending = child.ending or child.device != "cpu" or is_device_lost(bug)
        log.exception("job %s failed", job.id)
    if status is not None:
        _say(job, status, error)


def leave(job: Job, wish: str) -> None:
    """Say the last word on a run that loads and does not hear this wish, and end the process: nothing else ends a call into code that is
    not ours, and what it has loaded so far is no loss. Called by the thread of the heartbeat, with the run's own held up."""
    status = ENDS[wish]
    if status is not None:
        _say(job, status)
    log.info("job %s: %s while it was loading; this process ends", job.id, status or wish)
    os._exit(0)


def _say(job: Job, status: Status, error: dict[str, Any] | None = None) -> None:
    try:
        broker.publish(_finish(job, status, error))
    except LeaseLost:
        log.warning("job %s ended as %s here, but it is another attempt's by now", job.id, status)


def _finish(job: Job, status: Status, error: dict[str, Any] | None) -> Sequence[Event]:
    """The last word on a run, said again for a while if the database cannot take it: what filled the disk may just be gone."""
    for _ in range(LAST_WORD_TRIES):
        try:
            return jobs.finish(job.id, job.attempt, status, error)
        except OperationalError as refused:
            log.error("job %s ended as %s, but the database does not take it: %s", job.id, status, refused.orig)
            time.sleep(LAST_WORD_SECONDS)
    return jobs.finish(job.id, job.attempt, status, error)


def _run(job: Job) -> None:
    make_ready()
    from worker.places import find_places
    from worker.report_store import StoreReporter
    from worker.run import run

    with stderr.kept(stderr_file(job.id, job.attempt)), StoreReporter(job, leave) as reporter, extensions.names():
        if found := extensions.load(job.arch):
            reporter.code(found.source, found.digest)
        spec = catalog.parse_job(job.spec)
        run(spec, find_places(spec), reporter, child.device, child.slot)


def _unexpected(bug: Exception, job: Job) -> dict[str, Any]:
    text = "".join(traceback.format_exception(bug))[-TRACEBACK_CHARACTERS:]
    if full := disk_is_full(bug):
        step = verbs.goes_on_from(job)
        kept = f"the last good save is of step {step}" if step else "nothing was saved yet"
        file = getattr(full, "filename", None) or "a file"
        return _error(
            "no_space",
            f"no space left to write {file}; {kept if job.kind == 'train' else f'there are {step} pictures'}",
            "Free some space and resume: earlier saves are intact.",
        )
    return {**_error("unexpected", f"{type(bug).__name__}: {bug}", "The traceback says where."), "traceback": text}


def disk_is_full(bug: BaseException | None) -> BaseException | None:
    """The error in this one's chain of causes that says so, from the system or from the database."""
    while bug is not None:
        if isinstance(bug, OSError) and bug.errno in DISK_FULL:
            return bug
        if isinstance(bug, OperationalError) and "disk is full" in str(bug.orig):
            return bug
        bug = bug.__cause__ or bug.__context__
    return None


def _error(code: str, message: str, hint: str | None = None) -> dict[str, Any]:
    return {"code": code, "message": message, "hint": hint, "traceback": None}


def after_fork(**_: Any) -> None:
    """A pool child starts with connections of its own, and never outlives its parent, however that ends."""
    forget()
    broker.client.cache_clear()
    faulthandler.enable(file=stderr.STDERR, all_threads=False)  # a crash says where it was
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
