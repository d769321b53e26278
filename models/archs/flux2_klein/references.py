"""Reference pictures: brought to a size the model takes, the same way in training and in previews."""

import math
from collections.abc import Sequence

import numpy as np
import torch
from PIL import Image

from models.batch import Batch
from models.errors import UserError

MULTIPLE = 16  # pixels per token
MAX_AREA = 1024 * 1024
MATCHED_MULTIPLE = 32


def fit(pixels_CHW: torch.Tensor, target_area: int | None = None) -> torch.Tensor:
    """A picture (3, H, W) in [0, 1] with sides that are multiples of 16, by a centre crop.

    Larger than 1024 x 1024 it is scaled down to that area first (Lanczos on 8 bits, as diffusers' Flux2ImageProcessor does it);
    with `target_area` (in pixels) it is scaled to that area, up or down, and its sides are rounded to 32. Raises UserError for a
    picture with a side below 16.
    """
    height, width = pixels_CHW.shape[-2:]
    if target_area is not None:
        scale = math.sqrt(target_area / (width * height))
        sides = (max(1, round(side * scale / MATCHED_MULTIPLE)) * MATCHED_MULTIPLE for side in (width, height))
        pixels_CHW = _resized(pixels_CHW, *sides)
    elif width * height > MAX_AREA:
        scale = math.sqrt(MAX_AREA / (width * height))
        pixels_CHW = _resized(pixels_CHW, int(width * scale), int(height * scale))
    height, width = pixels_CHW.shape[-2:]
    high, wide = height // MULTIPLE * MULTIPLE, width // MULTIPLE * MULTIPLE
    if not high or not wide:
        raise UserError(f"a control image of {width}x{height} pixels is too small; its sides need at least {MULTIPLE}")
    top, left = (height - high) // 2, (width - wide) // 2
    return pixels_CHW[:, top : top + high, left : left + wide]


def unit_pixels(image: Image.Image) -> torch.Tensor:
    """(3, H, W) in [0, 1] of an RGB picture."""
    return torch.from_numpy(np.array(image)).permute(2, 0, 1).float() / 255


def of_batch(batch: Batch | None, num_latents: int) -> Sequence[Sequence[torch.Tensor]]:
    """Per item its reference pictures (3, H, W) in [0, 1]. Twice as many latents as items (guidance) get them twice."""
    if batch is None or (batch.control_tensor_list is None and batch.control_tensor is None):
        return [[]] * num_latents
    listed: Sequence[Sequence[torch.Tensor]]
    if batch.control_tensor_list is not None:
        listed = batch.control_tensor_list
    else:
        assert batch.control_tensor is not None
        control = batch.control_tensor
        listed = [list(item) for item in (control if control.ndim == 5 else control[:, None])]
    return [*listed, *listed] if num_latents == 2 * len(listed) else listed


def _resized(pixels_CHW: torch.Tensor, width: int, height: int) -> torch.Tensor:
    levels_HWC = (pixels_CHW.clamp(0, 1) * 255).round().to("cpu", torch.uint8).permute(1, 2, 0).numpy()
    resized = Image.fromarray(levels_HWC).resize((width, height), Image.Resampling.LANCZOS)
    return unit_pixels(resized).to(pixels_CHW)
