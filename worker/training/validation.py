"""The loss on pictures that are not trained on, by noise level.

Every held-out item is tried at each of the job's levels with noise of its own, which depends on the validation's seed and the item's
place alone. So a value at a step is a function of the weights: the same after a resume, and comparable between steps. Dropout is off,
and neither weights nor random numbers of the training change.
"""

import contextlib
import math
from collections import defaultdict
from collections.abc import Callable, Iterable

import torch

from models.base import BaseModel
from models.spec import TrainSpec, ValidationSpec
from worker.data.batches import TrainBatch
from worker.report import Reporter
from worker.sampling.attempts import evaluating
from worker.seeds import sow
from worker.training.ema import Ema
from worker.training.losses import elementwise
from worker.training.steps import TrainStep, sown

LOSS = "val/loss"


class Validation:
    """Made once for a run. `held_out` answers the held-out batches, the same ones each time."""

    def __init__(
        self, train_step: TrainStep, held_out: Callable[[], Iterable[TrainBatch]], ema: Ema | None, reporter: Reporter
    ) -> None:
        self.train_step, self.held_out, self.ema, self.reporter = train_step, held_out, ema, reporter

    @property
    def model(self) -> BaseModel:
        return self.train_step.model

    def run(self, wanted: ValidationSpec, step: int) -> None:
        """Tell `val/loss`, the mean over items and levels, and `val/loss/LEVEL` for each level, of the averaged weights if the job
        averages them. Raises what `reporter.check` does, between two passes."""
        sums: dict[float, torch.Tensor] = defaultdict(lambda: torch.zeros((), device=self.model.device_torch))
        count = 0
        devices = [self.model.device_torch] if self.model.device_torch.type == "cuda" else []
        with contextlib.ExitStack() as for_now:
            for_now.enter_context(torch.random.fork_rng(devices))
            for_now.enter_context(torch.no_grad())
            if self.ema:
                for_now.enter_context(self.ema.applied())
            for_now.enter_context(evaluating(self.model))
            for taken in self.held_out():
                noise = self._noise(wanted.seed, taken)
                for level in wanted.timesteps:
                    self.reporter.check()
                    sums[level] += self._loss(wanted.seed, taken, noise, level).sum()
                count += len(taken.batch.latents)
        if count:
            by_level = {level: float(total) / count for level, total in sums.items()}
            mean = math.fsum(by_level.values()) / len(by_level)
            self.reporter.metrics(step, {LOSS: mean} | {f"{LOSS}/{level:g}": value for level, value in by_level.items()})

    def _noise(self, seed: int, taken: TrainBatch) -> torch.Tensor:
        model, batch, blank = self.model, taken.batch, torch.empty(1, *taken.batch.latents.shape[1:])
        places = [(seed, "validation", taken.first + place) for place in range(len(batch.latents))]
        if batch.audio_latents is not None:
            shape = batch.audio_latents.shape[1:]
            batch.audio_noise = sown(places, lambda: torch.randn(1, *shape), batch.audio_latents)
        return sown(places, lambda: model.get_latent_noise_from_latents(blank), batch.latents)

    def _loss(self, seed: int, taken: TrainBatch, noise: torch.Tensor, level: float) -> torch.Tensor:
        """(B,): the job's kind of loss, with no weights but the model's own."""
        model, batch = self.model, taken.batch
        times = self.train_step.times_of([level] * len(noise), noise.device)
        noisy = model.condition_noisy_latents(model.add_noise(batch.latents, noise, times), batch)
        sow(noise.device, seed, "validation", taken.first, level, "forward")
        prediction = model.predict_noise(noisy, text_embeddings=taken.embeds, timestep=times, batch=batch)
        target = model.loss_target(noise, batch, times)
        loss: torch.Tensor = model.scale_loss(elementwise(prediction, target, self.train_step.train))
        return loss.flatten(1).mean(dim=1)


def is_due(step: int, spec: TrainSpec) -> bool:
    """Before the first step, every `validation.every` steps, and at the end. A run that goes on from such a step tells it again: it is
    the same number."""
    return spec.validation is not None and (step % spec.validation.every == 0 or step == spec.train.steps)
