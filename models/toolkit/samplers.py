"""`toolkit.samplers.custom_flowmatch_sampler`: diffusers' flow-matching Euler scheduler with what training asks of it."""

from typing import Any

import torch
from diffusers import FlowMatchEulerDiscreteScheduler

from models import flow
from models.errors import UserError


class CustomFlowMatchEulerDiscreteScheduler(FlowMatchEulerDiscreteScheduler):
    """Noise is added at the timestep itself, on 0..1000; the sigma table is for sampling only."""

    init_noise_sigma = 1.0

    def add_noise(self, original_samples: torch.Tensor, noise: torch.Tensor, timesteps: torch.Tensor) -> torch.Tensor:
        """(1 - t / 1000) clean + t / 1000 noise."""
        return flow.mix(original_samples, noise, timesteps)

    def scale_model_input(self, sample: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        return sample

    def set_train_timesteps(
        self, num_timesteps: int, device: Any = None, timestep_type: str = "linear", **_: Any
    ) -> torch.Tensor:
        """The grid that training draws from, from 1000 down. Raises UserError for a type other than linear and sigmoid."""
        steps = torch.linspace(flow.NUM_TIMESTEPS, 1, num_timesteps, device=device)
        if timestep_type == "sigmoid":
            steps = torch.sigmoid(torch.randn(num_timesteps, device=device)).sort(descending=True).values * flow.NUM_TIMESTEPS
        elif timestep_type != "linear":
            raise UserError(f"timestep type {timestep_type!r} is unknown here; known: linear, sigmoid")
        self.timesteps = steps
        return steps
