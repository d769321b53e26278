"""One micro-batch, from clean latents to its loss. The model owns noise, conditioning, prediction and target."""

import inspect

import torch
from torch.nn import functional as F

from models.base import BaseModel, Batch
from models.prompt_embeds import AdvancedPromptEmbeds
from models.spec import TrainSpec
from worker import timesteps
from worker.seeds import seed_for


def train_step(
    model: BaseModel, spec: TrainSpec, batch: Batch, embeds: AdvancedPromptEmbeds, step: int, first: int
) -> torch.Tensor:
    """The mean loss (a scalar, with gradient). `step` counts optimizer steps; `first` is the place of the batch's first sample
    in its step, so that accumulating small batches draws what one large batch would."""
    noise, t = draw_noise(model, spec, batch.latents, step, first)
    noisy = model.condition_noisy_latents(model.add_noise(batch.latents, noise, t), batch)
    torch.manual_seed(seed_for(spec.train.seed, step, first, "forward"))
    prediction = model.predict_noise(noisy.detach(), text_embeddings=embeds, timestep=t, batch=batch)
    wanted = inspect.signature(model.get_loss_target).parameters
    target = model.get_loss_target(noise=noise, batch=batch, **({"timesteps": t} if "timesteps" in wanted else {}))
    return F.mse_loss(prediction.float(), target.float())


def draw_noise(
    model: BaseModel, spec: TrainSpec, latents: torch.Tensor, step: int, first: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Noise shaped like the latents and a timestep (B,) for each, every sample from a seed of its own, on the CPU."""
    noises, times = [], []
    for place, latent in enumerate(latents):
        torch.manual_seed(seed_for(spec.train.seed, step, first + place))
        times.append(timesteps.draw(spec.train.timestep_type))
        noises.append(model.get_latent_noise_from_latents(torch.empty(1, *latent.shape)))
    return torch.cat(noises).to(latents), torch.tensor(times, device=latents.device)
