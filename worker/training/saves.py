"""When a run's checkpoints are written, told of and removed; `worker.training.checkpoint` has how."""

import contextlib
import re
import time
from pathlib import Path

import torch

from models.base import BaseModel
from models.bundles import newest, passed_over
from models.spec import TrainSpec
from worker.data.batches import Batches
from worker.report import NonFinite, Reporter, Wish
from worker.training import checkpoint
from worker.training.export import write_weights
from worker.training.state import TrainState

MAX_SAVING_SHARE = 0.02  # of the time; recovery bundles come less often where they would cost more


class Saver:
    """Goes on from the newest bundle, writes bundles, tells of them, and removes those that are not needed any more."""

    def __init__(self, model: BaseModel, spec: TrainSpec, state: TrainState, reporter: Reporter) -> None:
        self.model, self.spec, self.state, self.reporter = model, spec, state, reporter
        self.data: Batches | None = None  # what files say of the data, once it is known
        self.kept_step = 0
        self._saved_at = time.monotonic()
        self._seconds = 0.0

    def go_on(self) -> None:
        """Take over the newest whole bundle that the reporter knows, if there is one, and say from where the run goes on."""
        bundles = self.reporter.bundles()
        found = newest(bundles)
        if found is not None:
            checkpoint.load(found, self.state)
            self.reporter.saved_step = self.state.step
            self.kept_step = self.state.step if checkpoint.is_kept(found) else 0
        for said in passed_over(bundles, self.state.step):
            self.reporter.log(said, "WARNING")
        told, here = self.reporter.told_step(), self.state.step
        if found is not None or told:
            again = f"; steps {here + 1} to {told} are done again" if told > here else ""
            self.reporter.log(f"goes on from step {here} ({found.name if found else 'the start'}){again}")

    def recovery_is_due(self) -> bool:
        wanted = max(self.spec.save.recover_every_seconds, self._seconds / MAX_SAVING_SHARE)
        return time.monotonic() - self._saved_at >= wanted

    def keep(self) -> None:
        """Have a kept checkpoint of this step: one that is there already answers who asks for it."""
        if self.kept_step == self.state.step:
            self.reporter.answered("checkpoint")
        else:
            self.save(kept=True)

    def leave(self, wish: Wish) -> None:
        """The last save of a run that is stopped. One that is canceled, be it while this saves, leaves weights for users; the others go
        on later."""
        if wish in ("pause", "requeue"):
            if self.state.step > self.reporter.saved_step:
                self.save(kept=False)
            wish = self.reporter.wished() or wish
        if wish == "cancel" and self.state.step > self.kept_step:
            self.save(kept=True)

    def save(self, *, kept: bool) -> None:
        """Write a bundle and tell of it, then remove what it made obsolete. Raises OSError when the disk is full; what was saved
        before is then as it was."""
        self.reporter.flush()  # raises NonFiniteLoss before bad weights are written
        # The step itself may have broken the weights, which only the next one's loss would tell.
        check_finite(self.state, self.reporter.saved_step)
        self.reporter.phase("saving")
        began = time.monotonic()
        write = self._write_weights if kept else None
        folder = self.reporter.workdir / "bundles"
        bundle, weights = checkpoint.save(folder, self.state, kept=kept, write_weights=write, name=file_stem(self.spec.name))
        self.reporter.saved(bundle, self.state.step, weights)
        self.reporter.saved_step = self.state.step
        self.kept_step = self.state.step if kept else self.kept_step
        obsolete = checkpoint.obsolete(self.reporter.bundles(), self.spec.save.max_step_saves_to_keep, self.reporter.pinned())
        checkpoint.remove({*self.reporter.forget(obsolete), *self.reporter.leftovers()})
        self._saved_at = time.monotonic()
        self._seconds = self._saved_at - began
        self.reporter.phase("training")

    def _write_weights(self, path: Path) -> None:
        done = self.state.step * self.spec.train.gradient_accumulation
        with self.state.ema.applied() if self.state.ema else contextlib.nullcontext():
            write_weights(
                self.model,
                self.spec,
                path,
                step=self.state.step,
                epoch=done // self.data.num_batches if self.data else 0,
                dataset_hash=self.data.dataset_hash if self.data else None,
                tell=self.reporter.log,
            )


def check_finite(state: TrainState, saved_step: int) -> None:
    """Raises NonFinite naming a parameter that is not finite any more."""
    whole = torch.stack([torch.isfinite(param.detach()).all() for param in state.params.values()])
    if not bool(whole.all()):
        name = list(state.params)[int(whole.int().argmin())]
        raise NonFinite(f"weights of {name} are not finite after step {state.step}", saved_step)


def file_stem(name: str) -> str:
    """A job's name as the start of a file name: letters, digits, dots and dashes."""
    return re.sub(r"[^\w.-]+", "-", name).strip("-.") or "job"
