"""Which noise level a training sample gets, from one even draw through the inverse of the wanted distribution.

A distribution is a falling curve: at place p of 1000 levels sorted from noise to clean (p in 0..1) lies the level t / 1000.

    linear, weighted    1 - p
    sigmoid             logit-normal(0, 1) (Esser et al. 2024, section 3.1)
    shift               the arch's scheduler: s x / (1 + (s - 1) x) at x = 1 - p, s being its shift, or for dynamic shifting e^mu of
                        the number of image tokens; then its stretch to a last level, its Karras, exponential or beta spacing
    lognorm_blend       three quarters 1 - x / m with x log-normal(0, 0.333), cut off at m; one quarter even
    one_step ...        1000, or the 2, 4 or 8 levels that a distilled model samples at

`content` takes p as the cube of an even number (much noise), `style` as one minus that. A range of levels, be it an expert's or
min_denoising_steps .. max_denoising_steps (t = 1000 - step), gives the same distribution on condition that t lies in it, exactly.
`train.as_in_ai_toolkit` draws from worker.training.grids instead.
"""

import bisect
import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from statistics import NormalDist
from typing import Any

import torch

from models.base import BaseModel
from models.errors import UserError
from models.flow import NUM_TIMESTEPS
from models.spec import TrainSettings
from models.spec.train import FEW_STEPS
from worker.training.grids import Grids
from worker.training.shift import shift_curve

Pick = Callable[[], float]
NORMAL = NormalDist()
BLEND_SIGMA, BLEND_SHARE = 0.333, 0.75
# The median of the largest of the 750 log-normal numbers by which the original divides; it draws them anew at every step.
BLEND_MOST = math.exp(BLEND_SIGMA * NORMAL.inv_cdf(0.5 ** (1 / 750)))

# ai-toolkit's loss weights at places 0, 25, ... 975, 999 of 1000, place 0 being pure noise.
WEIGHT_PLACES: list[int] = [*range(0, 1000, 25), 999]
WEIGHTS: list[float] = [
    0.9057, 1.2201, 1.3748, 1.4705, 1.5068, 1.5215, 1.5069, 1.4809, 1.4413, 1.4004, 1.3549, 1.3094, 1.2636, 1.2178,
    1.1720, 1.1265, 1.0826, 1.0406, 1.0004, 0.9620, 0.9254, 0.8915, 0.8596, 0.8307, 0.8049, 0.7820, 0.7618, 0.7448,
    0.7312, 0.7214, 0.7152, 0.7136, 0.7161, 0.7215, 0.7285, 0.7321, 0.7162, 0.6663, 0.5822, 0.4934, 0.4473,
]  # fmt: skip


class Curve:
    """`level(place)` falls from the most noise to the least; `place(level)` is its inverse, 0 above and 1 below its ends."""

    def __init__(self, level: Callable[[float], float], place: Callable[[float], float]) -> None:
        self.level, self.place = level, place


class Timesteps:
    """The draws of one job."""

    def __init__(self, model: BaseModel, train: TrainSettings) -> None:
        """Raises UserError when the model's scheduler has no shift to follow."""
        self.kind, self.train = train.timestep_type, train
        self.grids = Grids(model, train) if train.as_in_ai_toolkit else None
        self._curve_at = shift_curve(model) if self.kind == "shift" and not self.grids else None
        self._picks: dict[Any, Pick] = {}

    def picker(self, latent_shape: Sequence[int], low: float = 0.0, high: float = NUM_TIMESTEPS) -> Pick:
        """A function that reads one number from torch's generator and answers a timestep in low < t <= high, for latents (C, ..., h, w).
        Raises UserError when the kind has no level there."""
        if self.grids:
            return self.grids.picker(latent_shape, low, high)
        low = max(low, NUM_TIMESTEPS - self.train.max_denoising_steps)
        high = min(high, NUM_TIMESTEPS - self.train.min_denoising_steps)
        key = (tuple(latent_shape) if self._curve_at else None, low, high)
        if key not in self._picks:
            self._picks[key] = self._make(latent_shape, low, high)
        return self._picks[key]

    def _make(self, latent_shape: Sequence[int], low: float, high: float) -> Pick:
        if few := FEW_STEPS.get(self.kind):
            return _one_of([t for i in range(few) if low < (t := NUM_TIMESTEPS * (1 - i / few)) <= high], self.kind, low, high)
        curve = Curve(*self._curve_at(latent_shape)) if self._curve_at else CURVES[self.kind]
        emphasis, spread = EMPHASES[self.train.content_or_style]
        first, last = (emphasis(curve.place(t / NUM_TIMESTEPS)) for t in (high, low))
        if not first < last:
            raise UserError(f"timestep_type '{self.kind}' never draws a level between {low:g} and {high:g}", code="no_timesteps")

        def pick() -> float:
            place = spread(first + float(torch.rand((), dtype=torch.float64)) * (last - first))
            # rounding must not carry a level over the edge of its range, which may be another expert's
            return min(max(curve.level(place) * NUM_TIMESTEPS, math.nextafter(low, math.inf)), high)

        return pick


def loss_weights(timesteps: Sequence[float], *, raw: bool = False) -> list[float]:
    """The weights of `weighted` at these timesteps: the original's table, linear between its points; divided by its mean, so that
    the loss keeps its size, unless `raw`."""
    return [_weight(NUM_TIMESTEPS - t) / (1.0 if raw else _mean_weight()) for t in timesteps]


def _weight(place: float) -> float:
    upper = min(max(bisect.bisect_right(WEIGHT_PLACES, place), 1), len(WEIGHTS) - 1)
    left, right = WEIGHT_PLACES[upper - 1], WEIGHT_PLACES[upper]
    share = min(max((place - left) / (right - left), 0.0), 1.0)
    return WEIGHTS[upper - 1] + share * (WEIGHTS[upper] - WEIGHTS[upper - 1])


@lru_cache
def _mean_weight() -> float:
    """Of the table drawn on through place 1000."""
    areas = [(WEIGHT_PLACES[i + 1] - WEIGHT_PLACES[i]) * (WEIGHTS[i] + WEIGHTS[i + 1]) / 2 for i in range(len(WEIGHT_PLACES) - 1)]
    return (sum(areas) + WEIGHTS[-1] * (NUM_TIMESTEPS - WEIGHT_PLACES[-1])) / NUM_TIMESTEPS


def _one_of(levels: Sequence[float], kind: str, low: float, high: float) -> Pick:
    if not levels:
        raise UserError(f"timestep_type '{kind}' has no level between {low:g} and {high:g}", code="no_timesteps")
    return lambda: levels[int(float(torch.rand((), dtype=torch.float64)) * len(levels))]


def _sigmoid_level(place: float) -> float:
    return 1 / (1 + math.exp(NORMAL.inv_cdf(min(max(place, 1e-12), 1 - 1e-12))))


def _sigmoid_place(level: float) -> float:
    if not 0 < level < 1:
        return float(level <= 0)
    return NORMAL.cdf(math.log((1 - level) / level))


def _blend_place(level: float) -> float:
    even = min(max(1 - level, 0.0), 1.0)
    if even == 0:
        return 0.0
    bell = NORMAL.cdf(math.log(BLEND_MOST * even) / BLEND_SIGMA) / NORMAL.cdf(math.log(BLEND_MOST) / BLEND_SIGMA)
    return BLEND_SHARE * bell + (1 - BLEND_SHARE) * even


def _blend_level(place: float) -> float:
    low, high = 0.0, 1.0
    for _ in range(52):  # the bits of a float64
        middle = (low + high) / 2
        low, high = (middle, high) if _blend_place(middle) > place else (low, middle)
    return high


def _even(value: float) -> float:
    return 1 - value


_LINEAR = Curve(_even, lambda level: min(max(1 - level, 0.0), 1.0))
CURVES = {
    "linear": _LINEAR,
    "weighted": _LINEAR,
    "sigmoid": Curve(_sigmoid_level, _sigmoid_place),
    "lognorm_blend": Curve(_blend_level, _blend_place),
}

# (the share of draws that lie before a place, its inverse)
EMPHASES: dict[str, tuple[Callable[[float], float], Callable[[float], float]]] = {
    "balanced": (lambda place: place, lambda share: share),
    "content": (math.cbrt, lambda share: share**3),
    "style": (lambda place: 1 - math.cbrt(1 - place), lambda share: 1 - (1 - share) ** 3),
}
