"""Runs jobs, kills them with SIGKILL at chosen moments, lets them go on, and says what they ended with. `python -m tests.worker.killing`

Each run is a child of this process, forked with the model loaded: torch is imported once, and must use one thread (OMP_NUM_THREADS=1).
On standard input is a list of `{"job": spec, "folder": path, "seeds": [...]}`; on standard output the answers, as JSON.
"""

import gc
import hashlib
import json
import os
import random
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from models import catalog
from models.weights import load_tensors, read_metadata
from worker import run
from worker.data.fingerprint import tensor_bytes
from worker.load import Slot
from worker.places import find_places
from worker.report import Phase, Reporter, StepTold
from worker.training import checkpoint
from worker.training.steps import TrainStep


class Clock:
    """Counts the moments of a run, by name, and kills it at one of them. It starts with training: how much there is to cache before
    depends on earlier runs."""

    def __init__(self, fatal: int | None) -> None:
        self.fatal, self.moments = fatal, list[str]()
        self.training = self.saving = False

    def tick(self, name: str) -> None:
        if not self.training:
            return
        if len(self.moments) == self.fatal:
            os.kill(os.getpid(), signal.SIGKILL)
        self.moments.append(("save: " if self.saving else "") + name)


def after(owner: Any, name: str, clock: Clock, moment: str) -> None:
    """From now on each call of `owner.name` is followed by a moment."""
    call = getattr(owner, name)

    def timed(*args: Any, **kwargs: Any) -> Any:
        answer = call(*args, **kwargs)
        clock.tick(moment)
        return answer

    setattr(owner, name, timed)


class Told(Reporter):
    def __init__(self, folder: Path, steps: int, clock: Clock) -> None:
        super().__init__(folder, steps)
        self.clock, self.steps = clock, list[int]()

    def phase(self, phase: Phase, done: int | None = None, total: int | None = None) -> None:
        self.clock.training = self.clock.training or phase == "training"

    def step(self, told: StepTold) -> None:
        self.steps.append(told.step)
        super().step(told)


def one_run(case: dict[str, Any], folder: Path, slot: Slot, fatal: int | None) -> dict[str, Any]:
    """In a child of its own: the job in this folder, from wherever it is to its end or its death."""
    clock = Clock(fatal)
    after(TrainStep, "__call__", clock, "micro-batch")
    after(checkpoint, "save_tensors", clock, "state written")
    after(os, "fsync", clock, "flushed")
    after(Path, "rename", clock, "renamed")
    save = checkpoint.save

    def saving(*args: Any, **kwargs: Any) -> Any:
        clock.tick("begins")
        clock.saving = True
        try:
            return save(*args, **kwargs)
        finally:
            clock.saving = False

    checkpoint.save = saving  # type: ignore[assignment]
    spec = catalog.parse_job(case["job"])
    reporter = Told(folder, case["job"]["train"]["steps"], clock)
    run.run(spec, find_places(spec), reporter, "cpu", slot)
    return {"steps": reporter.steps, "moments": clock.moments}


def child(work: Callable[[], dict[str, Any]]) -> dict[str, Any] | None:
    """What `work` answers in a forked child; None if it was killed."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(reading)
            with os.fdopen(writing, "w") as out:
                json.dump(work(), out)
            os._exit(0)
        except BaseException:
            traceback.print_exc()
        os._exit(1)
    os.close(writing)
    with os.fdopen(reading) as answer:
        text = answer.read()
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status):
        return None
    assert os.waitstatus_to_exitcode(status) == 0, "a run failed; its traceback is above"
    found: dict[str, Any] = json.loads(text)
    return found


def ends(folder: Path) -> dict[str, str]:
    """A digest of the tensors, and of the optimizer's numbers, in every file of every kept checkpoint."""
    found = {}
    for path in sorted(folder.glob("bundles/step_*/*.safetensors")):
        digest = hashlib.sha256(read_metadata(path).get(checkpoint.NUMBERS, "").encode())
        for name, tensor in sorted(load_tensors(path).items()):
            digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
            digest.update(tensor_bytes(tensor))
        found[str(path.relative_to(folder))] = digest.hexdigest()
    return found


def there(folder: Path) -> list[str]:
    """All that lies where bundles do."""
    return sorted(path.name for path in folder.glob("bundles/*"))


def one_case(case: dict[str, Any], slot: Slot) -> dict[str, Any]:
    """The job undisturbed, and killed at a moment that each seed draws: of the run if it is even, within a save if it is odd."""
    base = Path(case["folder"])
    whole = child(lambda: one_run(case, base / "whole", slot, None))
    assert whole is not None
    moments, killed = whole["moments"], []
    in_saves = [number for number, name in enumerate(moments) if name.startswith("save: ")]
    for seed in case["seeds"]:
        folder = base / str(seed)
        fatal = random.Random(seed).choice(in_saves if seed % 2 else range(len(moments)))
        died = child(lambda: one_run(case, folder, slot, fatal)) is None  # noqa: B023
        rest = child(lambda: one_run(case, folder, slot, None))  # noqa: B023
        assert rest is not None
        facts = {"steps": rest["steps"], "ends": ends(folder), "there": there(folder)}
        killed.append({"died": died, "at": moments[fatal], **facts})
    return {"steps": whole["steps"], "ends": ends(base / "whole"), "there": there(base / "whole"), "killed": killed}


def main() -> None:
    cases = json.load(sys.stdin)
    slot = Slot()
    spec = catalog.parse_job(cases[0]["job"])
    slot.take(spec, find_places(spec), "cpu")
    gc.freeze()  # a child's collections then leave alone what it shares with this process
    answers = [one_case(case, slot) for case in cases]
    json.dump(answers, sys.stdout)


if __name__ == "__main__":
    main()
