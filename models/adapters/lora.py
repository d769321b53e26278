"""LoRA (Hu et al. 2021): y = W x + (alpha / rank) * B A x, in fp32 beside a frozen W."""

import math
from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import nn
from torch.nn import functional as F

from models.errors import UserError

Base = nn.Linear | nn.Conv2d  # what adapters stand beside; optimum-quanto's layers are subclasses


class LoraLayer(nn.Module):
    """A starts random, B at zero: a new adapter changes nothing.

    Beside a linear layer A is (rank, in) and B (out, rank). Beside a convolution A is (rank, in, kh, kw), with the layer's own
    stride, padding and dilation, and B (out, rank, 1, 1). `dropout` is the share of A x that is dropped, while the layer beside it
    is in training mode.
    """

    kind: ClassVar[str] = "lora"

    def __init__(
        self, base: Base, rank: int, alpha: float, dropout: float = 0.0, device: torch.device | str | None = None
    ) -> None:
        super().__init__()
        where = base.weight.device if device is None else device
        self.shape = tuple(base.weight.shape)
        out, inner, *kernel = self.shape
        self.lora_A = nn.Parameter(torch.empty(rank, inner, *kernel, device=where))
        self.lora_B = nn.Parameter(torch.zeros(out, rank, *[1] * len(kernel), device=where))
        self.rank, self.alpha, self.dropout = rank, alpha, dropout
        nn.init.kaiming_uniform_(self.lora_A, a=math.sqrt(5))

    @property
    def scale(self) -> float:
        return self.alpha / self.rank

    def forward(self, x: torch.Tensor, base: Base, multiplier: float = 1.0) -> torch.Tensor:
        """What is added to the output of `base` for its input `x`, in fp32."""
        x = x.to(self.lora_A.dtype)
        inner = base._conv_forward(x, self.lora_A, None) if isinstance(base, nn.Conv2d) else F.linear(x, self.lora_A)
        if self.dropout:
            inner = F.dropout(inner, self.dropout, base.training)
        if (strength := multiplier * self.scale) != 1:
            inner = inner * strength
        return F.conv2d(inner, self.lora_B) if isinstance(base, nn.Conv2d) else F.linear(inner, self.lora_B)

    def delta(self) -> torch.Tensor:
        """What the layer adds to the weight beside it, in that weight's shape."""
        return (self.lora_B.flatten(1) @ self.lora_A.flatten(1)).reshape(self.shape) * self.scale

    def state(self) -> dict[str, torch.Tensor]:
        """The tensors of a file. alpha / rank is folded into B and no alpha is written, because readers differ in whether they look
        at one; all agree that without it the scale is 1."""
        return {"lora_A.weight": self.lora_A, "lora_B.weight": self.lora_B * self.scale}

    @torch.no_grad()
    def load(self, parts: Mapping[str, torch.Tensor]) -> None:
        """Take the tensors of a file; this layer then does what the file's does, whatever its own alpha is."""
        scale = float(parts["alpha"]) / self.rank if "alpha" in parts else 1.0
        self.lora_A.copy_(parts["lora_A.weight"])
        self.lora_B.copy_(parts["lora_B.weight"] * (scale / self.scale))

    def misfit(self, parts: Mapping[str, torch.Tensor]) -> str | None:
        """Why the tensors of a file cannot be taken."""
        given = parts["lora_A.weight"].shape[0]
        if given != self.rank:
            return f"rank {given}, not {self.rank}"
        for name, own in (("lora_A.weight", self.lora_A), ("lora_B.weight", self.lora_B)):
            if parts[name].shape != own.shape:
                return f"{name} of shape {tuple(parts[name].shape)}, not {tuple(own.shape)}"
        return None


def lora_like(base: Base, parts: Mapping[str, torch.Tensor], device: torch.device | str | None = None) -> LoraLayer:
    """A layer of the rank and alpha that the tensors of a file have, with their numbers. Raises UserError if they do not fit `base`."""
    rank = parts["lora_A.weight"].shape[0]
    layer = LoraLayer(base, rank, float(parts.get("alpha", rank)), device=device)
    if why := layer.misfit(parts):
        raise UserError(why, code="bad_adapter")
    layer.load(parts)
    return layer
