"""Latents as the transformer takes them: packed, normalised, with positions; and the times a picture is made at."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from diffusers.pipelines.flux2.pipeline_flux2_klein import compute_empirical_mu

REFERENCE_STEP = 10  # along the time axis: references stand at 10, 20, 30, ...


def normalise(mode: torch.Tensor, vae: Any) -> torch.Tensor:
    """The VAE's latents (B, c, 2 h, 2 w) in 2x2 patches, (B, 4 c, h, w), channel = c * 4 + row * 2 + column, with the VAE's batch
    statistics taken out; in fp32."""
    mean, std = _statistics(vae)
    return (torch.nn.functional.pixel_unshuffle(mode.float(), 2) - mean) / std


def restore(latents: torch.Tensor, vae: Any) -> torch.Tensor:
    """The inverse."""
    mean, std = _statistics(vae)
    return torch.nn.functional.pixel_shuffle(latents.float() * std + mean, 2)


def pack(latents: torch.Tensor) -> torch.Tensor:
    """(B, C, h, w) to tokens (B, h w, C), row by row."""
    return latents.flatten(2).transpose(1, 2)


def unpack(tokens: torch.Tensor, height: int, width: int) -> torch.Tensor:
    """The inverse."""
    grid: torch.Tensor = tokens.transpose(1, 2).unflatten(2, (height, width))
    return grid


def positions(sizes: Sequence[tuple[int, int]]) -> torch.Tensor:
    """(N, 4) of (time, row, column, 0) for the target of sizes[0] and the references after it, in latent pixels."""
    grids = [
        torch.cartesian_prod(torch.tensor([REFERENCE_STEP * place]), torch.arange(high), torch.arange(wide), torch.arange(1))
        for place, (high, wide) in enumerate(sizes)
    ]
    return torch.cat(grids)


def text_positions(length: int) -> torch.Tensor:
    """(L, 4) of (0, 0, 0, place)."""
    return torch.nn.functional.pad(torch.arange(length)[:, None], (3, 0))


def sigmas(scheduler: Any, num_steps: int, num_tokens: int) -> torch.Tensor:
    """(num_steps + 1,) from 1 to 0, shifted for the picture's size as diffusers' Flux2KleinPipeline shifts them."""
    even = None if scheduler.config.get("use_flow_sigmas") else np.linspace(1.0, 1 / num_steps, num_steps)
    scheduler.set_timesteps(num_steps, sigmas=even, mu=compute_empirical_mu(num_tokens, num_steps))
    times: torch.Tensor = scheduler.sigmas
    return times


def _statistics(vae: Any) -> tuple[torch.Tensor, torch.Tensor]:
    mean, var = (stat.float().reshape(1, -1, 1, 1) for stat in (vae.bn.running_mean, vae.bn.running_var))
    return mean, torch.sqrt(var + vae.config.batch_norm_eps)
