"""The Reporter: the only way a loop speaks outward or hears "stop".

This one speaks to the terminal and keeps its files in a folder; `worker.report_store` has the one that speaks to the database.
"""

import contextlib
import logging
import math
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch

from models.errors import UserError
from models.spec.train import MOST_SKIPPED
from worker.training import checkpoint

log = logging.getLogger("safelight")

FLUSH_SECONDS = 0.5
SPEED_STEPS = 50  # the speed shown is the mean over this many steps

Phase = Literal["reading", "loading", "caching", "training", "sampling", "saving"]
Wish = Literal["cancel", "pause", "requeue", "lost"]
Ask = Literal["sample", "checkpoint"]


class Stop(BaseException):
    """The run is to end now: canceled, paused, to be queued again, or its lease is lost. Not an Exception, so that no
    `except Exception` in a model's code swallows it."""

    def __init__(self, wish: Wish) -> None:
        super().__init__(wish)
        self.wish = wish


class Asked(BaseException):
    """Inside `Reporter.heeding`: someone asked for this now, and what is being done goes on afterwards."""


MEND = "Lower the learning rate, lengthen the warm-up, or train in fp32"
MEND_UNTRAINED = (
    "The learning rate is not the cause. Train in bf16 or fp32 if this is fp16; else the weights of the model, or of the adapter that "
    "training starts from, are damaged: download them again"
)


class NonFinite(UserError):
    """`what` became NaN or infinite; the run can go on from what it saved at `saved_step`, 0 being nothing."""

    def __init__(self, what: str, saved_step: int, also: str = "", mend: str = MEND) -> None:
        kept = f"the last good save is of step {saved_step}" if saved_step else "nothing was saved yet"
        resumed = f"goes on from step {saved_step}" if saved_step else "begins anew"
        super().__init__(
            f"{what}; training stopped; {kept}",
            code="non_finite_loss",
            hint=f"{mend}{also}; resume {resumed}.",
        )


class NonFiniteLoss(NonFinite):
    """The loss (or the gradient, which is the loss of the next step) became NaN or infinite at a step."""

    def __init__(self, told: "StepTold", saved_step: int) -> None:
        what, also = f"the {told.fault()} at step {told.step}", "; train.on_non_finite 'skip' passes over a single bad step"
        if told.skipped:
            what, also = f"{what}, the last of {told.skipped} in a row that were skipped", ""
        super().__init__(what, saved_step, also, MEND_UNTRAINED if told.step == max(told.skipped, 1) else MEND)
        self.step = told.step


class NonFiniteUntrained(NonFinite):
    """The loss of the first step is not finite: nothing was trained yet, so `cause` names what came in; None if that is not known."""

    def __init__(self, loss: float, cause: str | None) -> None:
        why = f": {cause} (NaN or infinite)" if cause else ""
        super().__init__(f"the loss is {loss} at step 1, before anything was trained{why}", 0, mend=MEND_UNTRAINED)


@dataclass(frozen=True)
class StepTold:
    """One optimizer step; losses and `grad_norm` stay on the device until they are read. `parts` are what the loss is made of. `skipped`
    counts the steps in a row up to this one that were passed over and changed nothing; 0 for one that was done."""

    step: int
    loss: torch.Tensor
    grad_norm: torch.Tensor
    lr: float
    parts: Mapping[str, torch.Tensor] = field(default_factory=dict)
    skipped: int = 0

    def fault(self) -> str | None:
        """What is not finite, in words."""
        loss, grad_norm = float(self.loss), float(self.grad_norm)
        if math.isfinite(loss):
            return None if math.isfinite(grad_norm) else f"gradient's norm became {grad_norm}"
        return f"loss became {loss}"

    def read(self) -> dict[str, Any]:
        """The numbers, for which the device is waited for."""
        return {
            "step": self.step,
            "loss": float(self.loss) if not self.skipped else math.nan,
            "lr": self.lr,
            "grad_norm": float(self.grad_norm),
            **{name: float(part) for name, part in self.parts.items()},
        }


@dataclass(frozen=True)
class PreviewTold:
    """A finished preview: its files, and the record that users see. `picture` is what was made, be it a picture, a clip or a sound;
    clips also come as an `animation`."""

    picture: Path
    thumbnail: Path
    record: dict[str, Any]
    animation: Path | None = None


class Reporter:
    """Speaks to the terminal. Steps are told in batches, so that the device is not waited for at every step."""

    def __init__(self, workdir: Path, total_steps: int) -> None:
        self.workdir = workdir
        self.total_steps = total_steps
        self.saved_step = 0  # of the newest save that this run has made or gone on from
        self._pending: list[StepTold] = []
        self._recent: list[float] = []
        self._flushed_at = time.monotonic()  # when the numbers of the last step that was told were there
        self._wish: Wish | None = None
        self._heeded: Ask | None = None
        # Both only grow, so a number that comes late asks for nothing that has been answered.
        self._presses: dict[Ask, int] = {"sample": 0, "checkpoint": 0}
        self._answered: dict[Ask, int] = {"sample": 0, "checkpoint": 0}

    # -- what loops call ----------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Raises Stop when someone wishes it, and Asked for what is heeded. Called before every unit of work."""
        if self._wish:
            raise Stop(self._wish)
        if self._heeded and self.asked(self._heeded):
            raise Asked(self._heeded)

    def wished(self) -> Wish | None:
        """What someone wishes of the run by now."""
        return self._wish

    @contextlib.contextmanager
    def heeding(self, what: Ask) -> Iterator[None]:
        """Inside, `check` also raises Asked when someone asks for this: a long round of work is left for it."""
        self._heeded = what
        try:
            yield
        finally:
            self._heeded = None

    def asked(self, what: Ask) -> bool:
        """Whether someone wants this now, and has not got it yet."""
        return self._presses[what] > self._answered[what]

    def answered(self, what: Ask) -> None:
        """It is done with the weights as they are: that answers every press so far. One that comes later is another."""
        if self.asked(what):
            presses = self._presses[what]
            self._tell_answered(what, presses)
            self._answered[what] = presses

    def phase(self, phase: Phase, done: int | None = None, total: int | None = None) -> None:
        """What is being done, and how far."""
        if done in (None, total):
            log.info("%s%s", phase, "" if total is None else f" {done}/{total}")

    def log(self, message: str, level: str = "INFO") -> None:
        """A line for people."""
        log.log(getattr(logging, level), message)

    def step(self, told: StepTold) -> None:
        """A step is done, or was skipped. The first of a run is reported at once, later ones every FLUSH_SECONDS. Raises NonFiniteLoss
        when a loss or a gradient that is read now was not finite, unless its step was skipped and is not the last of too many in a row."""
        self._pending.append(told)
        if told.skipped:
            self.log(f"step {told.step} is skipped and changes nothing: its {told.fault()}", "WARNING")
        due = not self._recent or time.monotonic() - self._flushed_at >= FLUSH_SECONDS
        if due or told.skipped >= MOST_SKIPPED:
            self.flush()

    def flush(self) -> None:
        """Tell all steps that wait. Called before anything is saved, so that what follows a bad loss is never kept. A step's time is its
        share of what passed between two of these, since a GPU computes a step long after the loop has issued it."""
        steps, self._pending = self._pending, []
        told = [each.read() for each in steps]
        before, self._flushed_at = self._flushed_at, time.monotonic()
        if not told:
            return
        seconds = (self._flushed_at - before) / len(told)
        told = [{**each, "step_seconds": seconds} for each in told]
        self._recent = (self._recent + [seconds] * len(told))[-SPEED_STEPS:]
        speed = len(self._recent) / max(sum(self._recent), 1e-9)
        self._tell_steps(told, speed)
        for step, row in zip(steps, told, strict=True):
            whole = math.isfinite(row["loss"]) and math.isfinite(row["grad_norm"])
            if step.skipped >= MOST_SKIPPED or not (step.skipped or whole):
                raise NonFiniteLoss(step, self.saved_step)

    def aside(self, began: float) -> None:
        """Leave out of the steps' time what passed since `began`, on the monotonic clock, or since a `flush` in between: up to that one the
        device still computed steps."""
        self._flushed_at += time.monotonic() - max(began, self._flushed_at)

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        """Further numbers of a step that is done, by the name of their series."""
        log.info("step %d  %s", step, "  ".join(f"{name} {value:.4f}" for name, value in values.items()))

    def preview(self, told: PreviewTold, done: int | None = None) -> None:
        """A preview's files are complete. `done` is set by sampling jobs: how many of their pictures there are now."""
        log.info("preview %s", told.picture)

    def config(self, path: Path) -> None:
        """The job as it runs, with all defaults, as a file."""

    def saved(self, bundle: Path, step: int, weights: Sequence[Path]) -> None:
        """A bundle is complete; everything up to `step` can go on from it. With weights it answers who asked for a checkpoint."""
        self.flush()
        if weights:
            self.answered("checkpoint")
        log.info("saved %s", ", ".join(map(str, weights)) or bundle)

    # -- what loops ask -----------------------------------------------------------------------------------------------------

    def bundles(self) -> list[Path]:
        """The bundles that count, oldest first."""
        whole = [path.parent for path in self.workdir.glob("bundles/[!.]*/bundle.json")]
        return sorted(whole, key=lambda path: path.stat().st_mtime_ns)

    def leftovers(self) -> list[Path]:
        """What lies beside the bundles and is none: runs that were killed amid a save, or amid the removal of a bundle, left it."""
        whole = set(self.bundles())
        return [path for path in self.workdir.glob("bundles/*") if checkpoint.is_named_so(path) and path not in whole]

    def pinned(self) -> Collection[Path]:
        """The bundles that people want to keep."""
        return ()

    def forget(self, bundles: Sequence[Path]) -> Sequence[Path]:
        """These bundles may be deleted; the answer is those that nobody pinned meanwhile."""
        return bundles

    def previews_at(self, step: int) -> set[int]:
        """The prompts that already have a preview of this step."""
        return set()

    def made(self) -> list[dict[str, Any]]:
        """The records of a sampling job's pictures that there are already."""
        return []

    def told_step(self) -> int:
        """The last step that an earlier run of this job told of; a death may have come before it was saved."""
        return 0

    def _tell_answered(self, what: Ask, presses: int) -> None:
        pass

    def _tell_steps(self, told: list[dict[str, Any]], speed: float) -> None:
        last = told[-1]
        log.info("step %d/%d  loss %.4f  %.2f steps/s", last["step"], self.total_steps, last["loss"], speed)
