"""Parts of tiny random checkpoints, made without a download: real classes and real layouts, only small."""

from typing import Any

import torch
from diffusers import AutoencoderKL
from tokenizers.pre_tokenizers import ByteLevel
from transformers import Qwen2Tokenizer

SPECIALS = (
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>", "<|image_pad|>",
    "<|video_pad|>", "<think>", "</think>",
)  # fmt: skip
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{% if message.content is string %}{{ message.content }}"
    "{% else %}{% for part in message.content %}{% if part.type == 'text' %}{{ part.text }}"
    "{% else %}<|vision_start|><|image_pad|><|vision_end|>{% endif %}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def byte_tokenizer() -> Any:
    """A Qwen tokenizer whose vocabulary is the 256 bytes and the special tokens: it takes any text, one token per byte."""
    words = [*sorted(ByteLevel.alphabet()), *SPECIALS]
    return Qwen2Tokenizer(
        vocab={word: index for index, word in enumerate(words)},
        merges=[],
        additional_special_tokens=list(SPECIALS[1:]),
        chat_template=CHAT_TEMPLATE,
    )


def tiny_vae(latent_channels: int, scaling_factor: float = 0.5, shift_factor: float = 0.1) -> Any:
    """An AutoencoderKL of four stages (8 pixels per latent pixel), with a shift so that forgetting it shows."""
    with torch.random.fork_rng([]):
        torch.manual_seed(1)
        return AutoencoderKL(
            block_out_channels=(8, 8, 8, 8),
            down_block_types=("DownEncoderBlock2D",) * 4,
            up_block_types=("UpDecoderBlock2D",) * 4,
            latent_channels=latent_channels,
            norm_num_groups=4,
            layers_per_block=1,
            scaling_factor=scaling_factor,
            shift_factor=shift_factor,
        )
