"""Which noise level a training sample gets: u even on (0, 1), through the inverse of the wanted distribution."""

import math

import torch

from models.flow import NUM_TIMESTEPS


def draw(kind: str, low: float = 0.0, high: float = NUM_TIMESTEPS) -> float:
    """One timestep in low < t <= high, from torch's generator. `sigmoid`: logit-normal(0, 1) (Esser et al. 2024, section 3.1);
    `linear`: even; both given that t lies in that range, which is an expert's in multistage models."""
    share = float(torch.rand((), dtype=torch.float64))
    if kind == "linear":
        return high - share * (high - low)
    first, last = _cdf(low / NUM_TIMESTEPS), _cdf(high / NUM_TIMESTEPS)
    u = torch.tensor(last - share * (last - first), dtype=torch.float64)
    return float(torch.sigmoid(math.sqrt(2) * torch.erfinv((2 * u - 1).clamp(-1 + 1e-12, 1 - 1e-12)))) * NUM_TIMESTEPS


def _cdf(t: float) -> float:
    """P(sigmoid(z) <= t) for z ~ N(0, 1)."""
    if t <= 0 or t >= 1:
        return float(t >= 1)
    return 0.5 * (1 + math.erf(math.log(t / (1 - t)) / math.sqrt(2)))
