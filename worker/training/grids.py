"""ai-toolkit's timesteps, number for number: a grid of 1000 falling levels is made at every step and an index into it drawn.

Unlike worker.training.timesteps it never draws level 1 (the index is upper-exclusive), an expert's last level, or two equal sigmoid grids.
"""

import math
from collections.abc import Callable, Sequence

import torch

from models.base import BaseModel
from models.flow import NUM_TIMESTEPS
from models.spec import TrainSettings
from worker.training import shift

STRIDES = {"one_step": (0,), "two_step": (0, 499), "four_step": (0, 250, 500, 750), "eight_step": tuple(range(0, 1000, 125))}
BLEND_COUNT, BLEND_SIGMA = 750, 0.333


class Grids:
    """`train.as_in_ai_toolkit`: emphasis and range are places in the grid, which for `sigmoid` and `shift` are not levels."""

    def __init__(self, model: BaseModel, train: TrainSettings) -> None:
        self.model, self.train = model, train
        self.scheduler = shift.scheduler_of(model) if train.timestep_type == "shift" else None

    def picker(self, latent_shape: Sequence[int], low: float, high: float) -> Callable[[], float]:
        """Draws the grid now, from torch's generator; each call of the answer then draws an index."""
        levels = self.levels(latent_shape)
        first, last = self.train.min_denoising_steps, self.train.max_denoising_steps
        if (low, high) != (0.0, NUM_TIMESTEPS):  # an expert's range replaces the job's
            inside = ((levels > low) & (levels <= high)).nonzero().flatten()
            first, last = (int(inside[0]), int(inside[-1])) if len(inside) else (0, NUM_TIMESTEPS - 1)
        return lambda: float(levels[self._index(first, last)])

    def levels(self, latent_shape: Sequence[int]) -> torch.Tensor:
        """(1000,) timesteps, falling."""
        if self.scheduler is not None:
            config = self.scheduler.config
            mu = shift.dynamic_mu(self.model, config, latent_shape) if config.get("use_dynamic_shifting") else None
            return torch.tensor(shift.grid(self.scheduler, NUM_TIMESTEPS, mu)) * NUM_TIMESTEPS
        if self.train.timestep_type == "sigmoid":
            return (NUM_TIMESTEPS * (1 - torch.randn(NUM_TIMESTEPS).sigmoid())).sort(descending=True).values
        if self.train.timestep_type == "lognorm_blend":
            bell = (BLEND_SIGMA * torch.randn(BLEND_COUNT)).exp()
            even = torch.linspace(NUM_TIMESTEPS, 1, NUM_TIMESTEPS - BLEND_COUNT)
            return torch.cat([NUM_TIMESTEPS * (1 - bell / bell.max()), even]).sort(descending=True).values.trunc()
        return torch.linspace(NUM_TIMESTEPS, 1, NUM_TIMESTEPS)

    def _index(self, first: int, last: int) -> int:
        if few := STRIDES.get(self.train.timestep_type):
            return few[int(torch.randint(len(few), ()))]
        if self.train.content_or_style == "balanced":
            return int(torch.randint(first, max(last, first + 1), ()))
        cube = float(torch.rand(())) ** 3
        place = NUM_TIMESTEPS * (cube if self.train.content_or_style == "content" else 1 - cube)
        rescaled = first + place * (last - first) / (NUM_TIMESTEPS - 1)
        return min(max(math.floor(rescaled), first), last, NUM_TIMESTEPS - 1)
