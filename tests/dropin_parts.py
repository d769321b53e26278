"""Tiny parts that several ai-toolkit architectures load: language models, tokenizers, VAEs."""

from pathlib import Path
from typing import Any

TEXT_WIDTH = 32
WORDS = 512


def qwen3(**changes: Any) -> Any:
    from transformers import Qwen3Config

    sizes = {
        "vocab_size": WORDS, "hidden_size": TEXT_WIDTH, "intermediate_size": 32, "num_hidden_layers": 3, "num_attention_heads": 2,
        "num_key_value_heads": 1, "head_dim": 8, "bos_token_id": None, "eos_token_id": None,
    }  # fmt: skip
    return Qwen3Config(**{**sizes, **changes})


def qwen25_vl(folder: Path) -> None:
    from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

    text = {
        "vocab_size": WORDS, "hidden_size": TEXT_WIDTH, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
        "num_key_value_heads": 1, "rope_scaling": {"type": "mrope", "rope_type": "default", "mrope_section": [2, 3, 3]},
        "bos_token_id": None, "eos_token_id": None,
    }  # fmt: skip
    vision = {"depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2, "out_hidden_size": TEXT_WIDTH}
    Qwen2_5_VLForConditionalGeneration(Qwen2_5_VLConfig(text_config=text, vision_config=vision)).save_pretrained(folder)


def qwen_vae(folder: Path) -> None:
    from diffusers import AutoencoderKLQwenImage

    statistics = {"latents_mean": [0.0] * 16, "latents_std": [1.0] * 16}
    AutoencoderKLQwenImage(base_dim=8, z_dim=16, dim_mult=[1, 1, 1, 1], num_res_blocks=1, **statistics).save_pretrained(folder)


def t5_tokenizer() -> Any:
    from transformers import T5TokenizerFast

    return T5TokenizerFast(
        vocab=[("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), *((chr(n), -1.0) for n in range(32, 127))], extra_ids=0
    )
