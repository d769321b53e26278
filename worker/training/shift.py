"""The noise levels that an architecture's own scheduler spends its steps at: static shift, or one that grows with the picture."""

import bisect
import copy
import math
from collections.abc import Callable, Sequence
from typing import Any

from models.base import BaseModel
from models.errors import UserError
from models.flow import NUM_TIMESTEPS, has_shift

Curves = tuple[Callable[[float], float], Callable[[float], float]]


def shift_curve(model: BaseModel) -> Callable[[Sequence[int]], Curves]:
    """A function from the shape of latents (C, ..., h, w) to (level at a place, place of a level), both on 0..1 and falling.

    Raises UserError if the model has no scheduler with a shift.
    """
    scheduler = scheduler_of(model)
    config = scheduler.config
    terminal = float(config.get("shift_terminal") or 0.0)
    spaced = any(config.get(f"use_{name}_sigmas") for name in ("karras", "exponential", "beta"))

    def curve(latent_shape: Sequence[int]) -> Curves:
        mu = dynamic_mu(model, config, latent_shape) if config.get("use_dynamic_shifting") else None
        if spaced:  # a spacing is defined only for a number of steps; between them we interpolate
            return _through(grid(scheduler, NUM_TIMESTEPS, mu))
        exponential = config.get("time_shift_type", "exponential") == "exponential"
        strength = float(scheduler.shift) if mu is None else math.exp(mu) if exponential else mu

        def level(place: float) -> float:
            even = 1 - place
            return terminal + (1 - terminal) * strength * even / (1 + (strength - 1) * even)

        def place(level: float) -> float:
            inner = min(max((level - terminal) / (1 - terminal), 0.0), 1.0)
            return 1 - inner / (strength - (strength - 1) * inner)

        return level, place

    return curve


def scheduler_of(model: BaseModel) -> Any:
    """Raises UserError if there is none with a shift."""
    scheduler = model.noise_scheduler
    if not has_shift(scheduler):
        raise UserError(
            f"timestep_type 'shift' follows the schedule of arch '{model.arch}', and it has none; take sigmoid, linear or weighted",
            code="no_shift",
        )
    return scheduler


def dynamic_mu(model: BaseModel, config: Any, latent_shape: Sequence[int]) -> float:
    """The line through (base_image_seq_len, base_shift) and (max_image_seq_len, max_shift), at the number of image tokens."""
    short, long = config["base_image_seq_len"], config["max_image_seq_len"]
    slope = (config["max_shift"] - config["base_shift"]) / (long - short)
    return float(config["base_shift"] + slope * (num_tokens(model, latent_shape) - short))


def num_tokens(model: BaseModel, latent_shape: Sequence[int]) -> int:
    """How many tokens the denoiser makes of latents (C, h, w) or (C, F, h, w).

    Its config's `patch_size` says how many latent pixels become one. Where it says 1 although the denoiser takes k² times the
    channels of the latents, the model packs k x k of them before the call.
    """
    channels, *sizes = latent_shape
    config = getattr(model.get_model_to_train(), "config", None) or {}
    patch = _entry(config, "patch_size") or 1
    patches = list(patch) if isinstance(patch, Sequence) else [patch] * 2
    if max(patches) == 1:
        side = math.isqrt((_entry(config, "in_channels") or channels) // channels)
        packed = side**2 * channels == (_entry(config, "in_channels") or channels)
        patches = [side if packed else 1] * 2
    patches = [1] * (len(sizes) - len(patches)) + patches[-len(sizes) :]
    return math.prod(size // patch for size, patch in zip(sizes, patches, strict=True))


def grid(scheduler: Any, count: int, mu: float | None) -> list[float]:
    """The scheduler's own `count` levels, on 0..1, falling; it is not changed."""
    fresh = copy.deepcopy(scheduler)
    fresh.set_timesteps(count, device="cpu", **({} if mu is None else {"mu": mu}))
    return [float(t) / fresh.config["num_train_timesteps"] for t in fresh.timesteps]


def _through(levels: list[float]) -> Curves:
    rising = levels[::-1]

    def level(place: float) -> float:
        at = place * (len(levels) - 1)
        left = min(int(at), len(levels) - 2)
        return levels[left] + (at - left) * (levels[left + 1] - levels[left])

    def place(level: float) -> float:
        right = bisect.bisect_left(rising, level)
        if right in (0, len(rising)):
            return float(right == 0)
        share = (level - rising[right - 1]) / (rising[right] - rising[right - 1])
        return (len(levels) - right - share) / (len(levels) - 1)

    return level, place


def _entry(config: Any, key: str) -> Any:
    return config.get(key) if hasattr(config, "get") else getattr(config, key, None)
