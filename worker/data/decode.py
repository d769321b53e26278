"""From a picture file to the pixels that a bucket wants."""

import math
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from models.datasets import open_picture


def pixels(path: Path, width: int, height: int) -> torch.Tensor:
    """(3, H, W) in [-1, 1]: upright, scaled to cover width x height (bicubic), centre-cropped."""
    image = open_picture(path)
    scale = max(width / image.width, height / image.height)
    covering = max(width, math.ceil(image.width * scale)), max(height, math.ceil(image.height * scale))
    if covering != image.size:
        image = image.resize(covering, Image.Resampling.BICUBIC)
    left, top = (image.width - width) // 2, (image.height - height) // 2
    return unit_pixels(image.crop((left, top, left + width, top + height))) * 2 - 1


def unit_pixels(image: Image.Image) -> torch.Tensor:
    """(3, H, W) in [0, 1] of an RGB picture."""
    levels_HWC = np.asarray(image)
    return torch.from_numpy(levels_HWC.copy()).permute(2, 0, 1).float() / 255
