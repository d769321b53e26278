"""`toolkit.train_tools`: what folders call of it."""

from collections.abc import Sequence
from typing import Any

import torch


def apply_noise_offset(noise: torch.Tensor, noise_offset: float) -> torch.Tensor:
    """Shift every channel of (B, C, ...) noise by its own random amount, `noise_offset` being the standard deviation."""
    if not noise_offset:
        return noise
    return noise + noise_offset * torch.randn(*noise.shape[:2], *[1] * (noise.ndim - 2)).to(noise)


@torch.no_grad()
def encode_prompts_flux(
    tokenizer: Sequence[Any],
    text_encoder: Sequence[Any],
    prompts: str | Sequence[str],
    truncate: bool = True,
    max_length: int = 512,
    **_: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """T5 features (B, max_length, D) and CLIP's pooled features (B, P), as diffusers' FLUX pipeline makes them."""
    texts = [prompts] if isinstance(prompts, str) else list(prompts)
    clip, t5 = text_encoder
    short = tokenizer[0](texts, padding="max_length", max_length=77, truncation=True, return_tensors="pt")
    long = tokenizer[1](texts, padding="max_length", max_length=max_length, truncation=truncate, return_tensors="pt")
    pooled = clip(short.input_ids.to(clip.device), output_hidden_states=False).pooler_output.to(clip.dtype)
    features = t5(long.input_ids.to(t5.device), output_hidden_states=False)[0].to(t5.dtype)
    return features, pooled
