"""Flow matching with straight paths (Lipman et al. 2023; Liu et al. 2023): x_t = (1 - t) x_0 + t n, and its velocity n - x_0.

Timesteps here are the contract's: 0..1000, where 1000 is pure noise.
"""

from typing import Any

import torch

NUM_TIMESTEPS = 1000


def mix(clean: torch.Tensor, noise: torch.Tensor, timesteps: torch.Tensor) -> torch.Tensor:
    """x_t for clean latents and noise of one shape (B, ...) and timesteps (B,) or (1,). Computed in fp32 at least, for in bf16 the
    timesteps 501 to 503 are all one; the dtype is that of `clean`."""
    wide = torch.promote_types(clean.dtype, torch.float32)
    t = (timesteps.to(clean.device, wide) / NUM_TIMESTEPS).reshape(-1, *[1] * (clean.ndim - 1))
    return ((1 - t) * clean + t * noise).to(clean.dtype)


def has_shift(scheduler: Any) -> bool:
    """Whether a noise scheduler has a shift, and so a schedule of its own that training can follow."""
    return hasattr(scheduler, "shift") and hasattr(scheduler, "set_timesteps")


def velocity(clean: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
    """The training target, dx_t/dt."""
    return noise - clean
