"""LoKr (LyCORIS, Yeh et al. 2023): the weight's change is a Kronecker product, scale * kron(w1, w2), in fp32 beside a frozen W.

For a weight (out, in) with out = l k and in = m n: w1 is (l, m), w2 is (k, n), or a product of (k, rank) and (rank, n) if that is
smaller and full rank is not asked for. A convolution's w2 has its kernel behind: (k, n, kh, kw), or (k, rank) and (rank, n kh kw).
"""

import math
from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import nn
from torch.nn import functional as F

from models.adapters.lora import Base
from models.errors import UserError


def factorization(size: int, factor: int = -1) -> tuple[int, int]:
    """Two numbers with the product `size`: (factor, size / factor) where that divides; else the most even pair, smaller first, whose
    smaller number is at most `factor`. -1 puts no limit."""
    if factor > 0 and size % factor == 0:
        return factor, size // factor
    most = math.isqrt(size) if factor < 0 else min(factor, math.isqrt(size))
    small = next(number for number in range(max(most, 1), 0, -1) if size % number == 0)
    return small, size // small


class LokrLayer(nn.Module):
    """w1 starts random; w2, or its second factor, at zero: a new adapter changes nothing.

    `left` is (l, m), `right` is (k, n); with a `rank`, w2 is a product and the scale is alpha / rank; without, the scale is 1.
    """

    kind: ClassVar[str] = "lokr"

    def __init__(
        self,
        base: Base,
        left: tuple[int, int],
        right: tuple[int, int],
        rank: int | None,
        alpha: float,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__()
        where = base.weight.device if device is None else device
        self.shape = tuple(base.weight.shape)
        self.left, self.right, self.kernel = left, right, self.shape[2:]
        self.rank, self.alpha = rank, alpha
        (k, n), kernel_size = right, math.prod(self.kernel)
        self.lokr_w1 = nn.Parameter(torch.empty(*left, device=where))
        nn.init.kaiming_uniform_(self.lokr_w1, a=math.sqrt(5))
        if rank is None:
            self.lokr_w2 = nn.Parameter(torch.zeros(k, n, *self.kernel, device=where))
        else:
            self.lokr_w2_a = nn.Parameter(torch.empty(k, rank, device=where))
            self.lokr_w2_b = nn.Parameter(torch.zeros(rank, n * kernel_size, device=where))
            nn.init.kaiming_uniform_(self.lokr_w2_a, a=math.sqrt(5))

    @property
    def scale(self) -> float:
        return 1.0 if self.rank is None else self.alpha / self.rank

    def forward(self, x: torch.Tensor, base: Base, multiplier: float = 1.0) -> torch.Tensor:
        """What is added to the output of `base` for its input `x`, in fp32. Beside a linear layer the product is never built:
        kron(w1, w2) x is w1 X w2^T for X = x as (m, n)."""
        x = x.to(self.lokr_w1.dtype)
        if isinstance(base, nn.Conv2d):
            made: torch.Tensor = base._conv_forward(x, self.delta() * multiplier, None)
            return made
        grid = x.unflatten(-1, (self.left[1], self.right[1]))
        inner = F.linear(grid, self.lokr_w2) if self.rank is None else F.linear(F.linear(grid, self.lokr_w2_b), self.lokr_w2_a)
        strength = multiplier * self.scale
        made = (self.lokr_w1 if strength == 1 else self.lokr_w1 * strength) @ inner
        return made.flatten(-2)

    def delta(self) -> torch.Tensor:
        """What the layer adds to the weight beside it, in that weight's shape."""
        second = self.lokr_w2 if self.rank is None else (self.lokr_w2_a @ self.lokr_w2_b).reshape(*self.right, *self.kernel)
        first = self.lokr_w1.reshape(*self.left, *[1] * len(self.kernel))
        return torch.kron(first, second) * self.scale

    def state(self) -> dict[str, torch.Tensor]:
        """The tensors of a file. alpha is a finite number in every dtype: readers take the scale as 1 where w1 and w2 are both whole,
        whatever alpha says, and as alpha / rank elsewhere."""
        alpha = torch.tensor(1.0 if self.rank is None else float(self.alpha))
        return dict(self.named_parameters()) | {"alpha": alpha}

    @torch.no_grad()
    def load(self, parts: Mapping[str, torch.Tensor]) -> None:
        """Take the tensors of a file; this layer then does what the file's does, whatever its own alpha is."""
        parts = whole(parts)
        for name, param in self.named_parameters():
            param.copy_(parts[name])
        if self.rank is not None:
            scale = float(parts["alpha"]) / self.rank if "alpha" in parts else 1.0
            self.lokr_w1.mul_(scale / self.scale)

    def misfit(self, parts: Mapping[str, torch.Tensor]) -> str | None:
        """Why the tensors of a file cannot be taken."""
        parts = whole(parts)
        for name, own in self.named_parameters():
            if name not in parts:
                return "w2 in two factors, not whole" if self.rank is None else "w2 whole, not in two factors"
            if parts[name].shape != own.shape:
                return f"{name} of shape {tuple(parts[name].shape)}, not {tuple(own.shape)}"
        return None


def new_lokr(
    base: Base, rank: int, alpha: float, factor: int, full_rank: bool, device: torch.device | str | None = None
) -> LokrLayer:
    """A fresh layer. w2 stays whole with `full_rank`, and where the rank is at least half its longer side."""
    out, inner = base.weight.shape[:2]
    left, right = zip(factorization(out, factor), factorization(inner, factor), strict=True)
    return LokrLayer(base, left, right, None if full_rank or rank >= max(right) / 2 else rank, alpha, device)


def lokr_like(base: Base, parts: Mapping[str, torch.Tensor], device: torch.device | str | None = None) -> LokrLayer:
    """A layer with the shapes and numbers that the tensors of a file have. Raises UserError if they do not fit `base`."""
    parts = whole(parts)
    out, inner, *kernel = base.weight.shape
    first = parts["lokr_w1"]
    if first.ndim != 2:
        raise UserError(f"lokr_w1 of shape {tuple(first.shape)}; it has two axes", code="bad_adapter")
    left = first.shape[0], first.shape[1]
    if "lokr_w2" in parts:
        right, rank = (parts["lokr_w2"].shape[0], parts["lokr_w2"].shape[1]), None
    else:
        right = parts["lokr_w2_a"].shape[0], parts["lokr_w2_b"].shape[1] // math.prod(kernel)
        rank = parts["lokr_w2_a"].shape[1]
    if (left[0] * right[0], left[1] * right[1]) != (out, inner):
        raise UserError(f"w1 {left} and w2 {right} make no ({out}, {inner}) weight", code="bad_adapter")
    alpha = float(parts["alpha"]) if "alpha" in parts and rank is not None else float(rank or 1)
    layer = LokrLayer(base, left, right, rank, alpha, device)
    if why := layer.misfit(parts):
        raise UserError(why, code="bad_adapter")
    layer.load(parts)
    return layer


def whole(parts: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
    """The tensors of a file as ours are: w1 in one piece, and the kernel within w2_b's rows. Some trainers keep w1 as a product, whose
    scale is then alpha / rank unless w2 is a product too. Raises UserError for a w2 in three factors (Tucker), which is not read
    here."""
    if "lokr_t2" in parts:
        raise UserError("lokr_t2: a w2 in three factors is not read here", code="bad_adapter")
    if "lokr_w2_b" in parts:
        parts = {**parts, "lokr_w2_b": parts["lokr_w2_b"].flatten(1)}
    if "lokr_w1" in parts or not {"lokr_w1_a", "lokr_w1_b"} <= set(parts):
        return parts
    first = parts["lokr_w1_a"].float() @ parts["lokr_w1_b"].float()
    if "lokr_w2" in parts and "alpha" in parts:
        first = first * (float(parts["alpha"]) / parts["lokr_w1_b"].shape[0])
    return {name: tensor for name, tensor in parts.items() if not name.startswith("lokr_w1_")} | {"lokr_w1": first}
