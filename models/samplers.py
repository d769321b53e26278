"""Samplers: pure functions from noise to a clean latent, each as its paper writes it."""

from collections.abc import Callable, Mapping
from itertools import pairwise

import torch

from models.flow import NUM_TIMESTEPS

Velocity = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
Sampler = Callable[[Velocity, torch.Tensor, torch.Tensor], torch.Tensor]


def flow_timesteps(num_steps: int, shift: float = 1.0) -> torch.Tensor:
    """(num_steps + 1,) from 1000 down to 0; `shift` > 1 spends more of them at high noise (Esser et al. 2024, eq. 23)."""
    t = torch.linspace(1, 0, num_steps + 1, dtype=torch.float64)
    return (NUM_TIMESTEPS * shift * t / (1 + (shift - 1) * t)).float()


@torch.no_grad()
def euler(velocity: Velocity, noise: torch.Tensor, timesteps: torch.Tensor) -> torch.Tensor:
    """Integrate dx/dt = velocity(x, t) from the first timestep (noise) to the last (clean), one Euler step between each two.

    `velocity` takes x (B, ...) and t (1,) on 0..1000 and returns n - x_0, shaped like x.
    """
    x = noise
    for t, t_next in pairwise(timesteps):
        x = x + (t_next - t).to(x) / NUM_TIMESTEPS * velocity(x, t.reshape(1))
    return x


@torch.no_grad()
def heun(velocity: Velocity, noise: torch.Tensor, timesteps: torch.Tensor) -> torch.Tensor:
    """The same by Heun's method: each step goes with the mean of the velocities at its two ends, the second looked up where an Euler
    step would land. The last step is Euler's, for no velocity is defined at the clean end (Karras et al. 2022, algorithm 1).

    Asks for a velocity 2 n - 1 times in n steps; the error falls with the square of n.
    """
    x = noise
    for t, t_next in pairwise(timesteps):
        length = (t_next - t).to(x) / NUM_TIMESTEPS
        here = velocity(x, t.reshape(1))
        if t_next > 0:
            here = (here + velocity(x + length * here, t_next.reshape(1))) / 2
        x = x + length * here
    return x


FLOW_SAMPLERS: Mapping[str, Sampler] = {"euler": euler, "heun": heun}
