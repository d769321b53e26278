"""`toolkit.util.mask`: random masks for inpainting."""

import torch
from torch.nn import functional as F


def generate_random_mask(
    batch_size: int, height: int = 256, width: int = 256, device: str | torch.device = "cpu", cells: int = 8
) -> torch.Tensor:
    """(B, 1, H, W) of zeros and ones: smooth random blobs about as large as a `cells`th of the picture."""
    coarse = torch.rand(batch_size, 1, cells, cells, device=device)
    fine = F.interpolate(coarse, size=(height, width), mode="bicubic")
    return (fine > 0.5).float()


def random_dialate_mask(mask: torch.Tensor, max_percent: float = 0.05) -> torch.Tensor:
    """Grow the ones of (B, 1, H, W) by a random distance of at most that share of the larger side."""
    reach = int(torch.randint(0, max(int(max(mask.shape[-2:]) * max_percent), 1) + 1, (1,)))
    return F.max_pool2d(mask, 2 * reach + 1, stride=1, padding=reach) if reach else mask
