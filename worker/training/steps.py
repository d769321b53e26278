"""One micro-batch, from clean latents to its loss, and how the micro-batches of a step add up."""

import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch
from torch.nn import functional as F

from models.adapters.attach import AdapterNetwork
from models.base import BaseModel, Embeds
from models.declared import declares
from models.errors import UserError
from models.flow import NUM_TIMESTEPS
from models.precise import not_finite
from models.spec import TrainSpec
from worker.data.batches import TrainBatch
from worker.seeds import sow
from worker.training.losses import audio_loss, discrete_scheduler, elementwise, mask_weights, snr_table
from worker.training.timesteps import Timesteps, loss_weights


@dataclass(frozen=True)
class Drawn:
    """Noise shaped like the latents, and timesteps (B,): floats on 0..1000, or the whole numbers of a DDPM scheduler. `levels` are
    the same on the CPU."""

    noise: torch.Tensor
    timesteps: torch.Tensor
    levels: list[float]


class TrainStep:
    """Made once for a run: what does not change from step to step is looked up here.

    Every draw comes from a seed of (job's seed, step, place of the sample in its step), so batching, accumulation and resumes give
    each sample the same numbers.
    """

    def __init__(self, model: BaseModel, spec: TrainSpec) -> None:
        """Raises UserError when the job asks for what this model does not have: a shift, an SNR, a noise offset."""
        self.model, self.spec, self.train = model, spec, spec.train
        self.times = Timesteps(model, spec.train)
        self.snr = snr_table(model, spec.train)
        scheduler = discrete_scheduler(model)
        self.num_levels: int | None = scheduler and scheduler.config.num_train_timesteps
        takes_offset = declares(model.get_latent_noise_from_latents, "noise_offset")
        if spec.train.noise_offset and not takes_offset:
            raise UserError(
                f"arch '{spec.model.arch}' draws its own noise and has no noise_offset; {spec.train.noise_offset:g} must be 0",
                code="no_noise_offset",
            )
        self._noise_options = {"noise_offset": spec.train.noise_offset} if takes_offset else {}

    def __call__(self, taken: TrainBatch) -> dict[str, torch.Tensor]:
        """The loss of a micro-batch as the mean over its samples: `loss` with gradient, and without gradient what it is made of, where
        that is more than one thing: `loss/normal`, `loss/audio`, `loss/preservation`, `loss/preservation_audio`."""
        model, batch = self.model, taken.batch
        drawn = self.draw(batch.latents, taken.step, taken.first)
        if (sounds := batch.audio_latents) is not None:
            places = [(self.train.seed, taken.step, taken.first + place, "audio") for place in range(len(sounds))]
            batch.audio_noise = sown(places, lambda: torch.randn(1, *sounds.shape[1:]), sounds)
        noisy = model.add_noise(batch.latents, drawn.noise, drawn.timesteps)
        noisy = model.condition_noisy_latents(noisy, batch).detach()
        prior = self._without_adapter(taken, noisy, drawn, taken.embeds) if taken.prior_reg else None
        prediction = self._predict(taken, noisy, drawn, taken.embeds)
        target = model.loss_target(drawn.noise, batch, drawn.timesteps) if prior is None else prior
        if prior is not None:
            batch.audio_target = batch.audio_pred_prior
        loss = self._mean(prediction, target, taken, drawn)
        parts = {"loss/normal": loss}
        if (sound := audio_loss(batch)) is not None:
            parts["loss/audio"] = sound
            loss = loss + sound * self.train.audio_loss_multiplier
        if (more := model.get_additional_loss(prediction, target)) is not None:
            loss = loss + more
        if taken.preservation_embeds is not None:
            kept, kept_parts = self._preservation(taken, noisy, drawn, taken.preservation_embeds)
            loss, parts = loss + kept, parts | kept_parts
        if taken.is_reg and self.train.reg_weight != 1:
            loss = loss * self.train.reg_weight
        return {"loss": loss} | ({name: part.detach() for name, part in parts.items()} if len(parts) > 1 else {})

    def first_fault(self, taken: TrainBatch) -> str | None:
        """Say what is not finite in a micro-batch of the first step, when nothing was trained yet; None if that is none of the latents, the
        embeds and the predictions without and with the adapter."""
        model, batch = self.model, taken.batch
        files = ", ".join(item.path for item in batch.file_items)
        for what, found in (("latents", batch.latents), ("embeds", taken.embeds)):
            if not_finite(found):
                return f"the {what} of {files} are not finite"
        drawn = self.draw(batch.latents, taken.step, taken.first)
        with torch.no_grad():
            noisy = model.condition_noisy_latents(model.add_noise(batch.latents, drawn.noise, drawn.timesteps), batch)
            if not_finite(noisy):
                return f"the noisy latents of {files}, with the model's conditioning, are not finite"
            with adapter_off(model.network) if model.network is not None else contextlib.nullcontext():
                if not_finite(self._predict(taken, noisy, drawn, taken.embeds)):
                    return f"the base model's prediction for {files} is not finite"
            if model.network is not None and not_finite(self._predict(taken, noisy, drawn, taken.embeds)):
                return f"the prediction for {files} with the adapter that training starts from is not finite"
        return None

    def draw(self, latents: torch.Tensor, step: int, first: int) -> Drawn:
        """Noise and timesteps for the samples at places first, first + 1, ... of a step, made on the CPU."""
        model, seed = self.model, self.train.seed
        stage = (model.multistage_range(stage_of(model, self.spec, step)),) if model.is_multistage else ()
        if self.times.grids:
            sow(latents.device, seed, step, first, "grid")
        pick = self.times.picker(latents.shape[1:], *(stage[0] if stage else ()))
        noises, levels = [], []
        blank = torch.empty(1, *latents.shape[1:])
        for place in range(latents.shape[0]):
            sow(latents.device, seed, step, first + place)
            levels.append(pick())
            noises.append(model.get_latent_noise_from_latents(blank, **self._noise_options))
        return Drawn(_send(torch.cat(noises).to(latents.dtype), latents.device), self.times_of(levels, latents.device), levels)

    def times_of(self, levels: list[float], device: torch.device) -> torch.Tensor:
        """Levels on 0..1000 as the model's timesteps: as they are, or the k of a DDPM scheduler's N for which k < t N / 1000 <= k + 1."""
        times = torch.tensor(levels)
        if self.num_levels is not None:
            times = (times * (self.num_levels / NUM_TIMESTEPS)).ceil().long() - 1
        return _send(times, device)

    def _predict(self, taken: TrainBatch, noisy: torch.Tensor, drawn: Drawn, embeds: Embeds) -> torch.Tensor:
        sow(noisy.device, self.train.seed, taken.step, taken.first, "forward")  # for dropout; each pass draws the same
        return self.model.predict_noise(noisy, text_embeddings=embeds, timestep=drawn.timesteps, batch=taken.batch)

    def _mean(self, prediction: torch.Tensor, target: torch.Tensor, taken: TrainBatch, drawn: Drawn) -> torch.Tensor:
        loss = self.model.scale_loss(elementwise(prediction, target, self.train))
        literal = self.train.as_in_ai_toolkit
        if self.train.timestep_type == "weighted":
            weights = _send(torch.tensor(loss_weights(drawn.levels, raw=literal)), loss.device)
            loss = loss * weights.reshape(-1, *[1] * (loss.ndim - 1))
        if taken.batch.mask_tensor is not None:
            loss = loss * mask_weights(taken.batch.mask_tensor, loss, joint_mean=literal)
        per_sample = loss.flatten(1).mean(dim=1)
        if taken.loss_multiplier != 1:
            per_sample = per_sample * taken.loss_multiplier
        if self.snr is not None:
            per_sample = per_sample * self.snr[drawn.timesteps]
        return per_sample.mean()

    def _preservation(
        self, taken: TrainBatch, noisy: torch.Tensor, drawn: Drawn, embeds: Embeds
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """What the adapter changes where it should change nothing, times its weight; and the parts without it."""
        train, batch = self.train, taken.batch
        by_class = train.diff_output_preservation
        weight = train.diff_output_preservation_multiplier if by_class else train.blank_prompt_preservation_multiplier
        before = self._without_adapter(taken, noisy, drawn, embeds)
        with _second_pass(taken, "audio_pred_preservation"):
            now = self._predict(taken, noisy, drawn, embeds)
        picture = F.mse_loss(now.float(), before.float())
        loss, parts = picture * weight, {"loss/preservation": picture}
        if batch.audio_pred_preservation is not None and batch.audio_pred_prior is not None:
            sound = F.mse_loss(batch.audio_pred_preservation.float(), batch.audio_pred_prior.float())
            loss, parts["loss/preservation_audio"] = loss + sound * weight * train.audio_loss_multiplier, sound
        return loss, parts

    @torch.no_grad()
    def _without_adapter(self, taken: TrainBatch, noisy: torch.Tensor, drawn: Drawn, embeds: Embeds) -> torch.Tensor:
        assert self.model.network is not None, "models.fit refuses a full fine-tune here"
        with adapter_off(self.model.network), _second_pass(taken, "audio_pred_prior"):
            return self._predict(taken, noisy, drawn, embeds)


class Gathered:
    """The gradients of a step's micro-batches, gathered into the mean over all of the step's samples.

    A micro-batch counts by its number of samples, so N batches give the gradient of one batch of all their samples, also when the
    last of a bucket is short. `train.as_in_ai_toolkit` lets gradients add up instead; the loss that is told is a mean either way.
    """

    def __init__(self, spec: TrainSpec) -> None:
        self._several = spec.train.gradient_accumulation > 1
        self._full = spec.train.gradient_accumulation * spec.train.batch_size
        self._summing = spec.train.as_in_ai_toolkit
        self._samples = 0
        self._sums: dict[str, torch.Tensor] = {}

    def add(self, losses: dict[str, torch.Tensor], num_samples: int) -> None:
        """Run the backward pass of a micro-batch's `loss`."""
        self._samples += num_samples
        # Full batches are the rule, so a share is known before the step's last batch is; `mean` sets it right where one was short.
        share = num_samples / self._full if self._several else 1.0
        loss = losses["loss"]
        (loss if self._summing or share == 1 else loss * share).backward()
        for name, part in losses.items():
            weighted = part.detach() * num_samples
            self._sums[name] = self._sums[name] + weighted if name in self._sums else weighted

    def mean(self, params: Iterable[torch.nn.Parameter]) -> dict[str, torch.Tensor]:
        """Make the gradients the step's mean, and answer the mean of every loss, on the device."""
        if self._several and self._samples != self._full and not self._summing:
            torch._foreach_mul_([p.grad for p in params if p.grad is not None], self._full / self._samples)
        return {name: total / self._samples for name, total in self._sums.items()}


def sown(places: Iterable[tuple[object, ...]], make: Callable[[], torch.Tensor], like: torch.Tensor) -> torch.Tensor:
    """What `make` draws, (1, ...) for each sample's place, joined, on the device and in the dtype of `like`."""
    rows = []
    for place in places:
        sow(like.device, *place)
        rows.append(make())
    return _send(torch.cat(rows).to(like.dtype), like.device)


def stage_of(model: BaseModel, spec: TrainSpec, step: int) -> int:
    """Which expert of a multistage model this step trains: the trainable ones in turn, `switch_boundary_every` steps each."""
    stages = model.trainable_multistage_boundaries
    return stages[step // spec.train.switch_boundary_every % len(stages)]


@contextlib.contextmanager
def adapter_off(network: AdapterNetwork) -> Iterator[None]:
    """Inside, the model predicts what it did before training."""
    own, network.multiplier = network.multiplier, 0.0
    try:
        yield
    finally:
        network.multiplier = own


@contextlib.contextmanager
def _second_pass(taken: TrainBatch, slot: str) -> Iterator[None]:
    """A further pass over a batch: its sound goes to `slot`, and what the first one left stays."""
    batch = taken.batch
    kept = batch.audio_pred, batch.audio_target
    batch.audio_pred_slot = slot
    try:
        yield
    finally:
        batch.audio_pred, batch.audio_target = kept
        batch.audio_pred_slot = None


def _send(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """A CPU tensor on the device, without waiting for it."""
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)
