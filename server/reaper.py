"""The server's heartbeat: gives back the jobs of workers that fell silent and rings for jobs that wait beside an idle worker.

Everything it does is safe to do twice and at any time.
"""

import logging
import threading

from server.store import broker, jobs, workers
from server.store.settings import settings
from server.store.tables import Worker
from server.store.workers import Pulse

EVERY_SECONDS = 1.0

log = logging.getLogger(__name__)


class Reaper(threading.Thread):
    """Runs `sweep` once a second until `stop`."""

    def __init__(self) -> None:
        super().__init__(name="reaper", daemon=True)
        self.leases = Pulse(settings().lease_seconds)
        self.workers = Pulse(settings().lease_seconds)
        self._stopped = threading.Event()

    def run(self) -> None:
        while not self._stopped.wait(EVERY_SECONDS):
            try:
                self.sweep()
            except Exception:
                log.exception("the sweep failed; it is tried again in %s s", EVERY_SECONDS)

    def stop(self) -> None:
        self._stopped.set()
        self.join()

    def sweep(self) -> None:
        for job in (running := jobs.active()):
            if not self.leases.alive((job.id, job.attempt), job.beat):
                log.warning("job %s: worker %s has not renewed its lease for %s s", job.id, job.worker, settings().lease_seconds)
                broker.publish(jobs.give_back(job.id, job.attempt, f"worker {job.worker} fell silent"))
        self.leases.keep({(job.id, job.attempt) for job in running})
        for worker, job_id in workers.listing():
            if job_id is None and self.is_alive_worker(worker) and jobs.any_queued(worker.archs):
                broker.ring([worker.id])

    def is_alive_worker(self, worker: Worker) -> bool:
        """Whether the worker's heartbeat counter still moves."""
        return self.workers.alive(worker.id, worker.beat) and not worker.stopped
