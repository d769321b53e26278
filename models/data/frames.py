"""How many frames a video model can take."""

from collections.abc import Callable
from functools import partial
from typing import Any

TEMPORAL_STRIDE = 8  # frames per latent frame where no config says it


def snapper(denoiser: Any, vae: Any) -> Callable[[int], int]:
    """`snap_frames` with the denoiser's temporal_compression_ratio, else the VAE's scale_factor_temporal, else 8; picklable."""
    named = ((denoiser, "temporal_compression_ratio"), (vae, "scale_factor_temporal"))
    found = (getattr(getattr(part, "config", None), key, None) for part, key in named)
    return partial(snap_frames, stride=next((ratio for ratio in found if ratio), TEMPORAL_STRIDE))


def snap_frames(count: int, stride: int) -> int:
    """The most frames, at most `count`, of the form 1 + n * stride; at least 1."""
    return max(0, count - 1) // stride * stride + 1
