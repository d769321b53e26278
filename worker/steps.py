"""One micro-batch, from clean latents to its loss. The model owns noise, conditioning, prediction and target."""

import torch
from torch.nn import functional as F

from models.base import BaseModel, Embeds
from models.batch import Batch
from models.flow import NUM_TIMESTEPS
from models.spec import TrainSpec
from worker import timesteps
from worker.seeds import seed_for


def train_step(model: BaseModel, spec: TrainSpec, batch: Batch, embeds: Embeds, step: int, first: int) -> torch.Tensor:
    """The mean loss (a scalar, with gradient). `step` counts optimizer steps; `first` is the place of the batch's first sample
    in its step, so that accumulating small batches draws what one large batch would."""
    noise, t = draw_noise(model, spec, batch.latents, step, first)
    noisy = model.condition_noisy_latents(model.add_noise(batch.latents, noise, t), batch)
    torch.manual_seed(seed_for(spec.train.seed, step, first, "forward"))
    prediction = model.predict_noise(noisy.detach(), text_embeddings=embeds, timestep=t, batch=batch)
    target = model.loss_target(noise, batch, t)
    return model.scale_loss(F.mse_loss(prediction.float(), target.float(), reduction="none")).mean()


def draw_noise(
    model: BaseModel, spec: TrainSpec, latents: torch.Tensor, step: int, first: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Noise shaped like the latents and a timestep (B,) for each, every sample from a seed of its own, on the CPU."""
    low, high = model.multistage_range(stage_of(model, spec, step)) if model.is_multistage else (0.0, float(NUM_TIMESTEPS))
    noises, times = [], []
    for place, latent in enumerate(latents):
        torch.manual_seed(seed_for(spec.train.seed, step, first + place))
        times.append(timesteps.draw(spec.train.timestep_type, low, high))
        noises.append(model.get_latent_noise_from_latents(torch.empty(1, *latent.shape)))
    return torch.cat(noises).to(latents), torch.tensor(times, device=latents.device)


def stage_of(model: BaseModel, spec: TrainSpec, step: int) -> int:
    """Which expert of a multistage model this step trains: the trainable ones in turn, `switch_boundary_every` steps each."""
    stages = model.trainable_multistage_boundaries
    return stages[step // spec.train.switch_boundary_every % len(stages)]
