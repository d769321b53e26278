"""The worker's parent and predictions: one short child at a time works a job's memory out. No torch here."""

import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable

from server.store import plans
from server.store.settings import settings

LONGEST_SECONDS = 540
NICENESS = 10  # a running job goes first

log = logging.getLogger("worker")


class Planner:
    """Called once a second by the supervisor; waits for nothing. `total` gives the device's memory in bytes if it is known."""

    def __init__(self, worker: str, device: str, total: Callable[[], int | None] = lambda: None) -> None:
        self.worker, self.device, self.total = worker, device, total
        self._process: subprocess.Popen[bytes] | None = None
        self._digests: list[str] = []
        self._began = 0.0

    def tick(self) -> None:
        if self._process is not None:
            self._look()
        elif asked := plans.take(self.worker):
            self._start(asked)

    def end(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            self._process.wait()

    def _start(self, asked: plans.Answer) -> None:
        file = settings().home / "workers" / f"plan-{self.worker}.json"
        file.write_text(json.dumps(asked["spec"]))
        options = {"--answer": asked["digest"], "--texts": asked["texts"], "--device": self.device, "--total": self.total()}
        given = [word for name, value in options.items() if value for word in (name, str(value))]
        # a preexec_fn would run fork hooks in this thread, which can wait for ever for a lock of the others'
        nice = ["nice", "-n", str(NICENESS)]
        command = [*nice, sys.executable, "-m", "worker.planning.plan", str(file), *given]
        # the child works with a GPU's memory as a number and never touches one
        env = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "TQDM_DISABLE": "1"}
        self._process = subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        self._digests, self._began = [asked[name] for name in ("digest", "texts") if asked[name]], time.monotonic()

    def _look(self) -> None:
        assert self._process is not None
        code = self._process.poll()
        if code is None and time.monotonic() - self._began < LONGEST_SECONDS:
            for digest in self._digests:
                plans.still_asked(digest)
            return
        if code is None:
            self._process.kill()
            self._process.wait()
        if code != 0:
            why = f"it took longer than {LONGEST_SECONDS} s" if code is None else f"its process ended with code {code}"
            log.warning("a prediction failed: %s", why)
            for digest in self._digests:
                if plans.answer(digest) is None:
                    plans.remember(digest, {"error": why})
        self._process = None
