"""A minimal DiT (Peebles & Xie 2023): patches and text tokens attend to each other, the timestep modulates every block.

Shapes: B batch, C channels, h w latent size, N image tokens, L text tokens, D width. Two patterns here are worth copying: gradient
checkpointing under `torch.is_grad_enabled()`, and an attention kernel chosen by a flag on each attention module.
"""

import math
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from models.attention import attention


class Attention(nn.Module):
    """Self-attention whose kernel can change at run time: the weights stay, only the branch in `forward` differs."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_backend = "native"
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x_BND: torch.Tensor, mask_BN: torch.Tensor) -> torch.Tensor:
        batch, tokens, width = x_BND.shape
        qkv = self.qkv(x_BND).reshape(batch, tokens, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        mask = None if mask_BN.all() else mask_BN[:, None, None, :]
        seen = attention(qkv[0], qkv[1], qkv[2], mask, self.attention_backend)
        out: torch.Tensor = self.out(seen.transpose(1, 2).reshape(batch, tokens, width))
        return out


class Block(nn.Module):
    """Attention and MLP, each scaled, shifted and gated by the timestep (adaLN-zero)."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width, elementwise_affine=False)
        self.attn = Attention(width, heads)
        self.norm2 = nn.LayerNorm(width, elementwise_affine=False)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.modulation = nn.Linear(width, 6 * width)

    def forward(self, x_BND: torch.Tensor, time_BD: torch.Tensor, mask_BN: torch.Tensor) -> torch.Tensor:
        shift1, scale1, gate1, shift2, scale2, gate2 = self.modulation(F.silu(time_BD))[:, None].chunk(6, dim=-1)
        x_BND = x_BND + gate1 * self.attn(self.norm1(x_BND) * (1 + scale1) + shift1, mask_BN)
        more: torch.Tensor = gate2 * self.mlp(self.norm2(x_BND) * (1 + scale2) + shift2)
        return x_BND + more


class ExampleTransformer2DModel(nn.Module):
    """(B, C_in, h, w), times (B,) in 0..1, text (B, L, D_text) with mask (B, L) to (B, C_out, h, w); h and w multiples of `patch`.

    Sizes are kept in `config`, from which a checkpoint rebuilds the network.
    """

    def __init__(
        self, in_channels: int = 16, out_channels: int = 16, text_features: int = 1024, width: int = 1024, depth: int = 16,
        heads: int = 16, patch: int = 2,
    ) -> None:  # fmt: skip
        super().__init__()
        self.config: dict[str, Any] = {
            "in_channels": in_channels, "out_channels": out_channels, "text_features": text_features, "width": width, "depth": depth,
            "heads": heads, "patch": patch,
        }  # fmt: skip
        self.gradient_checkpointing = False
        self.patch = patch
        self.image_in = nn.Linear(in_channels * patch**2, width)
        self.text_in = nn.Linear(text_features, width)
        self.time_in = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, width))
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(width, elementwise_affine=False)
        self.image_out = nn.Linear(width, out_channels * patch**2)

    def forward(
        self, latents_BChw: torch.Tensor, time_B: torch.Tensor, text_BLD: torch.Tensor, text_mask_BL: torch.Tensor
    ) -> torch.Tensor:
        batch, _, height, width = latents_BChw.shape
        rows, columns = height // self.patch, width // self.patch
        image = self.image_in(_patches(latents_BChw, self.patch))
        image = image + _positions(rows, columns, image.shape[-1]).to(image)
        x = torch.cat([self.text_in(text_BLD), image], dim=1)
        mask = torch.cat([text_mask_BL, text_mask_BL.new_ones(batch, rows * columns)], dim=1)
        time = self.time_in(_frequencies(time_B * 1000, self.image_in.out_features).to(x))
        for block in self.blocks:
            # Under grad mode, never under self.training: previews run without grad and training may run in eval mode.
            if self.gradient_checkpointing and torch.is_grad_enabled():
                x = checkpoint(block, x, time, mask, use_reentrant=False)
            else:
                x = block(x, time, mask)
        patches: torch.Tensor = self.image_out(self.norm(x[:, text_BLD.shape[1] :]))
        patches = patches.reshape(batch, rows, columns, -1, self.patch, self.patch)
        return patches.permute(0, 3, 1, 4, 2, 5).reshape(batch, -1, height, width)


def _patches(latents_BChw: torch.Tensor, patch: int) -> torch.Tensor:
    """(B, C, h, w) to (B, h/p * w/p, C * p * p)."""
    return F.unfold(latents_BChw, patch, stride=patch).transpose(1, 2)


def _positions(rows: int, columns: int, width: int) -> torch.Tensor:
    """(rows * columns, width): half of the features tell the row, half the column."""
    y = _frequencies(torch.arange(rows, dtype=torch.float32), width // 2)
    x = _frequencies(torch.arange(columns, dtype=torch.float32), width // 2)
    return torch.cat([y[:, None].expand(-1, columns, -1), x[None].expand(rows, -1, -1)], dim=-1).reshape(rows * columns, width)


def _frequencies(values_B: torch.Tensor, width: int) -> torch.Tensor:
    """(B, width) sines and cosines at geometric frequencies (Vaswani et al. 2017, section 3.5)."""
    rates = torch.exp(-math.log(10000) * torch.arange(width // 2, dtype=torch.float32, device=values_B.device) / (width // 2))
    angles = values_B.float()[:, None] * rates
    return torch.cat([angles.cos(), angles.sin()], dim=-1)
