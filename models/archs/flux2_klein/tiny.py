"""A random checkpoint in the real layout: every class as released, every number small."""

from pathlib import Path
from typing import Any

import torch
from diffusers import AutoencoderKLFlux2, FlowMatchEulerDiscreteScheduler, Flux2Transformer2DModel
from transformers import Qwen3Config

from models.tiny import byte_tokenizer

TEXT_WIDTH = 16
LATENT_CHANNELS = 4  # 32 in the released one; packed, 16 for 128
LAYERS = 30  # deep enough for the layers that the real one is read at, and two that are never needed


def write_tiny(folder: Path) -> None:
    """A pipeline folder that `Flux2KleinPipeline.from_pretrained` loads, with a tokenizer of bytes; about 1 MB, always the same."""
    from diffusers import Flux2KleinPipeline  # training needs none of what it imports

    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        pipeline: Any = Flux2KleinPipeline(
            scheduler=FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True, time_shift_type="exponential"),
            vae=_vae(),
            text_encoder=_text_encoder(),
            tokenizer=byte_tokenizer(),
            transformer=_transformer(),
        )
    pipeline.save_pretrained(folder)


def _transformer() -> Any:
    transformer: Any = Flux2Transformer2DModel(
        in_channels=4 * LATENT_CHANNELS,
        num_layers=2,
        num_single_layers=2,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=3 * TEXT_WIDTH,
        timestep_guidance_channels=64,
        axes_dims_rope=(4, 4, 4, 4),
        guidance_embeds=False,
    )
    # a fresh network hardly listens to its blocks, and a picture would not show what the text or guidance did
    for name, weight in transformer.named_parameters():
        if "modulation" in name or name.startswith("proj_out"):
            weight.data.mul_(4)
    return transformer


def _vae() -> Any:
    vae: Any = AutoencoderKLFlux2(
        latent_channels=LATENT_CHANNELS, block_out_channels=(8, 8, 8, 8), layers_per_block=1, norm_num_groups=4, sample_size=64
    )
    # the statistics of a trained one; the fresh ones are 0 and 1 and would hide a forgotten normalisation
    vae.bn.running_mean.normal_(std=0.3)
    vae.bn.running_var.uniform_(0.3, 2.0)
    return vae.eval()


def _text_encoder() -> Any:
    from transformers import Qwen3ForCausalLM

    config = Qwen3Config(
        vocab_size=272,
        hidden_size=TEXT_WIDTH,
        intermediate_size=32,
        num_hidden_layers=LAYERS,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        bos_token_id=None,
        eos_token_id=None,
        tie_word_embeddings=True,
        initializer_range=0.2,  # the released 0.02 would leave captions nearly alike at this width
    )
    return Qwen3ForCausalLM(config).eval()
