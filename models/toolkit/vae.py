"""`toolkit.models.FakeVAE` for models that work on pixels, and the gradient checkpointing switch of Qwen's VAE."""

from types import SimpleNamespace
from typing import Any, Self

import torch
from torch import nn


class FakeVAE(nn.Module):
    """An identity with a VAE's face: (B, C, H, W) in, the same times `scaling_factor` out, and back."""

    def __init__(self, scaling_factor: float = 1.0) -> None:
        super().__init__()
        self._dtype, self._device = torch.float32, torch.device("cpu")
        self.config = _Config(
            scaling_factor=scaling_factor, shift_factor=0.0, block_out_channels=[1], latent_channels=3, in_channels=3
        )

    @property
    def dtype(self) -> torch.dtype:
        return self._dtype

    @property
    def device(self) -> torch.device:
        return self._device

    def to(self, *args: Any, **kwargs: Any) -> Self:
        device, dtype, *_ = torch._C._nn._parse_to(*args, **kwargs)
        self._device = device or self._device
        self._dtype = dtype or self._dtype
        return self

    def encode(self, pixels: torch.Tensor) -> Any:
        """An object with `latent_dist`, whose `sample()` and `mode()` are the pixels."""
        return SimpleNamespace(latent_dist=SimpleNamespace(sample=lambda *_: pixels, mode=lambda: pixels))

    def decode(self, latents: torch.Tensor, return_dict: bool = True, **_: Any) -> Any:
        return SimpleNamespace(sample=latents) if return_dict else (latents,)


class _Config(dict[str, Any]):
    """Readable by key and by attribute, as diffusers' configs are."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


def patch_qwen_vae_gradient_checkpointing() -> None:
    """Nothing to do: a VAE is frozen here and never in a backward pass."""
