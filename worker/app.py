"""One worker process for one device: `python -m worker.app --device cpu`.

The parent (this file) is a Celery worker with one prefork child. It never imports torch and touches no job's work: it keeps the
worker's row alive, rings for waiting jobs, passes a SIGTERM on as a wish to save, and gives back the job of a child that died.
"""

import argparse
import contextlib
import fcntl
import importlib.metadata
import logging
import os
import platform
import re
import signal
import socket
import sys
import threading
import warnings
from collections.abc import Iterator
from typing import Any

import celery.apps.worker
from celery import signals
from celery.exceptions import SecurityWarning

from server.store import broker, jobs, workers
from server.store.engine import migrate
from server.store.parent import end_with_parent
from server.store.settings import settings
from server.store.tables import Worker
from worker import extensions, gpus, tasks
from worker.planning import planner
from worker.probe import probe

EVERY_SECONDS = 1.0
KILLED = "the usual cause is that the machine ran out of memory"  # then the system sends this signal; so may people
SHOWN_VERSIONS = ("safelight", "torch", "diffusers", "transformers")

log = logging.getLogger("worker")


class Supervisor(threading.Thread):
    """The parent's second thread. It holds `guard` while it is in the database, and a fork takes `guard` first, so that no child
    is born with a lock that this thread held."""

    def __init__(self, worker: Worker) -> None:
        super().__init__(name="supervisor", daemon=True)
        self.worker = worker
        self.watch = extensions.Watch()
        self.gauge = gpus.Gauge(tasks.child.device, worker.memory_total)
        self.planner = planner.Planner(worker.id, tasks.child.device, lambda: self.gauge.total)
        self.stopping = threading.Event()
        self._ended = threading.Event()
        self.guard = threading.Lock()
        os.register_at_fork(before=self.guard.acquire, after_in_parent=self.guard.release, after_in_child=self.guard.release)

    def run(self) -> None:
        self.gauge.start()
        while not self._ended.wait(EVERY_SECONDS):
            try:
                with self.guard:
                    self._tick()
            except Exception:
                log.exception("the supervisor's round failed; it is tried again in %s s", EVERY_SECONDS)

    def end(self) -> None:
        self._ended.set()
        self.join()
        self.gauge.end()
        self.watch.end()
        self.planner.end()

    def child_died(self, how: str) -> bool:
        """Give back what it held; the answer is whether that was anything."""
        held = jobs.held_by(self.worker.id)
        for job in held:
            told = jobs.give_back(job.id, job.attempt, how, KILLED if "SIGKILL" in how else None)
            log.warning("job %s: %s", job.id, told[0].data["message"] if told else how)
            broker.publish(told)
        self._ring()
        return bool(held)

    def _tick(self) -> None:
        self.watch.tick()
        self.planner.tick()
        self.worker.archs = _able(self.worker)
        told = {"memory_used": self.gauge.used, "memory_total": self.gauge.total, "archs": self.worker.archs}
        workers.beat(self.worker.id, **told, stopped=self.stopping.is_set())
        if self.stopping.is_set():
            jobs.wish_requeue(self.worker.id)
        elif not jobs.held_by(self.worker.id) and jobs.any_queued(self.worker.archs):
            self._ring()

    def _ring(self) -> None:
        if not self.stopping.is_set():
            broker.ring([self.worker.id])


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="safelight worker")
    parser.add_argument("--device", default=None, help="cpu, mps, cuda:N or a card's UUID; default: the first there is")
    wanted = parser.parse_args(arguments).device
    # Until Celery has handlers of its own: a container's first process ignores signals that it does not handle.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        device = gpus.choose(wanted)
    except ValueError as error:
        parser.error(str(error))
    logging.basicConfig(level=settings().log_level, format="%(asctime)s worker %(levelname)s %(message)s")
    _quieten_celery()
    worker = Worker(
        id=re.sub(r"[^A-Za-z0-9_-]", "-", f"{socket.gethostname()}-{device.label.replace(':', '')}"),
        host=socket.gethostname(), device=device.label, pid=os.getpid(), archs=[], versions=_versions(),
    )  # fmt: skip
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(_one_per_device(worker.id))
        except BlockingIOError:
            print(f"a worker for {device.label} already runs with {settings().home}", file=sys.stderr)  # noqa: T201
            return 1
        if share := broker.hold():
            stack.callback(share.close)
        migrate()
        found = probe(device.torch)
        worker.problem, worker.memory_total = found.problem, found.total
        worker.archs = _able(worker)
        workers.register(worker)
        tasks.child.worker, tasks.child.device, tasks.child.can_work = worker.id, device.torch, worker.problem is None
        supervisor = Supervisor(worker)
        supervisor.child_died(f"worker {worker.id} was stopped without notice")  # what an earlier life of this worker left
        _connect(supervisor)
        supervisor.start()
        end_with_parent()
        _celery_worker(worker).start()
        supervisor.end()
        workers.beat(worker.id, stopped=True)
    return 0


def _able(worker: Worker) -> list[str]:
    """The architectures that it can run: none on a device that torch cannot use, so that it gets and takes no job."""
    return [] if worker.problem else extensions.archs()


def _celery_worker(worker: Worker) -> Any:
    app = broker.celery()
    return app.Worker(
        hostname=f"{worker.id}@safelight",
        queues=[broker.queue_of(worker.id)],
        pool="prefork",
        concurrency=1,
        prefetch_multiplier=1,
        loglevel=settings().log_level,
        quiet=True,
        without_gossip=True,
        without_mingle=True,
        without_heartbeat=True,
        task_events=False,
    )


def _quieten_celery() -> None:
    """Celery and kombu speak of their own insides at every start and stop, and warn of root rights for the sake of messages that they would
    unpickle; ours are JSON, and hold nothing."""
    logging.getLogger("celery").setLevel("WARNING")
    logging.getLogger("kombu").setLevel("ERROR")  # it warns of a bell that comes while it stops
    warnings.simplefilter("ignore", SecurityWarning)
    celery.apps.worker.safe_say = lambda *_: None  # "worker: Warm shutdown (MainProcess)"


def _connect(supervisor: Supervisor) -> None:
    """Celery's signals that matter here. Receivers are kept strongly: they are closures."""

    def keep_our_logging(**_: Any) -> None:
        pass

    def lost(exception: BaseException, **_: Any) -> None:
        if type(exception).__name__ == "WorkerLostError":
            how = f"the training process died ({exception})"
            by_itself = "exitcode 0" in how  # see worker.tasks.leave, which has said why
            if not supervisor.child_died(how) and not by_itself:
                log.warning(how)

    def ready(**_: Any) -> None:
        worker = supervisor.worker
        if worker.problem:
            log.warning("%s takes no jobs: %s cannot be used: %s", worker.id, worker.device, worker.problem)
        else:
            log.info("%s is ready; data folder: %s", worker.id, settings().home)

    def stop(**_: Any) -> None:
        supervisor.stopping.set()

    logging.getLogger("celery.worker.request").addFilter(_is_worth_saying)
    signals.setup_logging.connect(keep_our_logging, weak=False)
    signals.task_failure.connect(lost, weak=False)
    signals.worker_ready.connect(ready, weak=False)
    signals.worker_shutting_down.connect(stop, weak=False)
    signals.worker_process_init.connect(tasks.after_fork, weak=False)


def _is_worth_saying(record: logging.LogRecord) -> bool:
    """Celery tells of a child's death with a traceback of its own insides, where we have said it in a line, and of every bell that expired
    while nobody could hear it, as it is meant to."""
    kind = record.exc_info[0] if record.exc_info else None
    return (kind is None or kind.__name__ != "WorkerLostError") and not str(record.msg).startswith("Discarding revoked task")


@contextlib.contextmanager
def _one_per_device(worker_id: str) -> Iterator[None]:
    folder = settings().home / "workers"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f"{worker_id}.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in SHOWN_VERSIONS:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


if __name__ == "__main__":
    sys.exit(main())
