"""Which noise level a training sample gets."""

import torch

from models.flow import NUM_TIMESTEPS


def draw(kind: str) -> float:
    """One timestep on 0..1000 from torch's generator. `sigmoid`: logit-normal(0, 1) (Esser et al. 2024, section 3.1);
    `linear`: even."""
    u = torch.sigmoid(torch.randn(())) if kind == "sigmoid" else torch.rand(())
    return float(u) * NUM_TIMESTEPS
