"""`toolkit.models.wan21.wan_utils`: a clip whose first frame is given."""

from typing import Any

import torch

FRAMES_PER_LATENT = 4


def normalised(vae: Any, latents: torch.Tensor) -> torch.Tensor:
    """(z - mean) / std with the VAE's own channel statistics; latents (B, C, F, h, w)."""
    mean, std = _statistics(vae, latents)
    return (latents - mean) / std


def original(vae: Any, latents: torch.Tensor) -> torch.Tensor:
    """The inverse of `normalised`."""
    mean, std = _statistics(vae, latents)
    return latents * std + mean


def add_first_frame_conditioning(latent_model_input: torch.Tensor, first_frame: torch.Tensor, vae: Any) -> torch.Tensor:
    """Noisy latents (B, C, F, h, w) with a mask and the condition behind them on the channel axis: (B, 2 C + 4, F, h, w). The mask is 1 in
    the first latent frame; the condition is the clip of the first frame (B, 3, H, W) in [-1, 1] followed by grey ones."""
    noisy = latent_model_input
    num_frames = (noisy.shape[2] - 1) * FRAMES_PER_LATENT + 1
    clip = first_frame.new_zeros(*first_frame.shape[:2], num_frames, *first_frame.shape[2:])
    clip[:, :, 0] = first_frame
    condition = normalised(vae, vae.encode(clip.to(vae.device, vae.dtype)).latent_dist.mode()).to(noisy)
    mask = noisy.new_zeros(noisy.shape[0], FRAMES_PER_LATENT, *noisy.shape[2:])
    mask[:, :, 0] = 1
    return torch.cat([noisy, mask, condition.expand(noisy.shape[0], *condition.shape[1:])], dim=1)


def add_first_frame_conditioning_v22(
    latent_model_input: torch.Tensor,
    first_frame: torch.Tensor | None = None,
    vae: Any = None,
    first_frame_latents: torch.Tensor | None = None,
    **_: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Latents (B, C, F, h, w) whose first frame is clean, and a mask of their shape: 0 where clean, 1 where noise is left."""
    if first_frame_latents is None:
        if first_frame is None:
            raise ValueError("give first_frame or first_frame_latents")
        encoded = vae.encode(first_frame[:, :, None].to(vae.device, vae.dtype)).latent_dist.mode()
        first_frame_latents = normalised(vae, encoded)
    conditioned, mask = latent_model_input.clone(), torch.ones_like(latent_model_input)
    clean = first_frame_latents.to(conditioned)
    conditioned[:, :, 0] = clean[:, :, 0] if clean.ndim == 5 else clean
    mask[:, :, 0] = 0
    return conditioned, mask


def _statistics(vae: Any, latents: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    mean, std = (
        torch.tensor(getattr(vae.config, name)).view(1, -1, 1, 1, 1).to(latents) for name in ("latents_mean", "latents_std")
    )
    return mean, std
