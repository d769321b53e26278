"""No published base is refused: the whole key lists of released repositories go through the loaders that the architectures use.

The lists are those of the repositories' indexes (or, where a repository has none, of its class), written as patterns; the numbers of keys
are the published ones. The tensors are narrow, for widths decide no name.
"""

import itertools
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import AutoencoderKL, AutoencoderKLFlux2, AutoencoderKLWan, Flux2Transformer2DModel, WanTransformer3DModel
from diffusers import ZImageTransformer2DModel as ZImage
from safetensors.torch import save_file
from transformers import (
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen3Config,
    Qwen3Model,
    T5Config,
    T5EncoderModel,
    UMT5Config,
    UMT5EncoderModel,
)  # fmt: skip

from models.archs.flux2_klein.model import NUM_TEXT_LAYERS
from models.components import load_part, load_text_encoder

WB = ".{weight,bias}"


def expand(pattern: str) -> Iterator[str]:
    """`a.{0-2}.{q,k}` stands for six names."""
    pieces = re.split(r"\{([^}]*)\}", pattern)
    for place in range(1, len(pieces), 2):
        first, _, last = pieces[place].partition("-")
        numbers = [str(n) for n in range(int(first), int(last) + 1)] if last else pieces[place].split(",")
        pieces[place] = numbers  # type: ignore[call-overload]
    return ("".join(names) for names in itertools.product(*([piece] if isinstance(piece, str) else piece for piece in pieces)))


QWEN3 = (
    "model.{embed_tokens,norm}.weight",
    "model.layers.{0-35}.{input_layernorm,post_attention_layernorm}.weight",
    "model.layers.{0-35}.self_attn.{q_proj,k_proj,v_proj,o_proj,q_norm,k_norm}.weight",
    "model.layers.{0-35}.mlp.{gate_proj,up_proj,down_proj}.weight",
)
QWEN25_VL = (
    "lm_head.weight",
    "model.{embed_tokens,norm}.weight",
    "model.layers.{0-27}.{input_layernorm,post_attention_layernorm}.weight",
    "model.layers.{0-27}.self_attn.{q_proj,k_proj,v_proj}" + WB,
    "model.layers.{0-27}.self_attn.o_proj.weight",
    "model.layers.{0-27}.mlp.{gate_proj,up_proj,down_proj}.weight",
    "visual.patch_embed.proj.weight",
    "visual.blocks.{0-31}.{norm1,norm2}.weight",
    "visual.blocks.{0-31}.{attn.qkv,attn.proj,mlp.gate_proj,mlp.up_proj,mlp.down_proj}" + WB,
    "visual.merger.ln_q.weight",
    "visual.merger.mlp.{0,2}" + WB,
)
T5_BLOCKS = (
    "encoder.block.{0-23}.layer.0.{SelfAttention.q,SelfAttention.k,SelfAttention.v,SelfAttention.o,layer_norm}.weight",
    "encoder.block.{0-23}.layer.1.{DenseReluDense.wi_0,DenseReluDense.wi_1,DenseReluDense.wo,layer_norm}.weight",
    "encoder.final_layer_norm.weight",
)
T5 = (*T5_BLOCKS, "encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight")
UMT5 = (*T5_BLOCKS, "encoder.block.{0-23}.layer.0.SelfAttention.relative_attention_bias.weight")
KLEIN = (
    "{x_embedder,context_embedder,norm_out.linear,proj_out}.weight",
    "time_guidance_embed.timestep_embedder.{linear_1,linear_2}.weight",
    "{double_stream_modulation_img,double_stream_modulation_txt,single_stream_modulation}.linear.weight",
    "transformer_blocks.{0-4}.attn.{to_q,to_k,to_v,to_out.0,add_q_proj,add_k_proj,add_v_proj,to_add_out}.weight",
    "transformer_blocks.{0-4}.attn.{norm_q,norm_k,norm_added_q,norm_added_k}.weight",
    "transformer_blocks.{0-4}.{ff,ff_context}.{linear_in,linear_out}.weight",
    "single_transformer_blocks.{0-19}.attn.{to_qkv_mlp_proj,to_out,norm_q,norm_k}.weight",
)
FLUX2_VAE = (
    "{encoder,decoder}.{conv_in,conv_norm_out,conv_out}" + WB,
    "{quant_conv,post_quant_conv}" + WB,
    "bn.{running_mean,running_var}",
    "{encoder,decoder}.mid_block.resnets.{0,1}.{norm1,conv1,norm2,conv2}" + WB,
    "{encoder,decoder}.mid_block.attentions.0.{group_norm,to_q,to_k,to_v,to_out.0}" + WB,
    "encoder.down_blocks.{0-3}.resnets.{0,1}.{norm1,conv1,norm2,conv2}" + WB,
    "encoder.down_blocks.{1,2}.resnets.0.conv_shortcut" + WB,
    "encoder.down_blocks.{0-2}.downsamplers.0.conv" + WB,
    "decoder.up_blocks.{0-3}.resnets.{0-2}.{norm1,conv1,norm2,conv2}" + WB,
    "decoder.up_blocks.{2,3}.resnets.0.conv_shortcut" + WB,
    "decoder.up_blocks.{0-2}.upsamplers.0.conv" + WB,
)
WAN = (
    "{patch_embedding,proj_out}" + WB,
    "scale_shift_table",
    "condition_embedder.{time_embedder.linear_1,time_embedder.linear_2,time_proj}" + WB,
    "condition_embedder.text_embedder.{linear_1,linear_2}" + WB,
    "blocks.{0-29}.scale_shift_table",
    "blocks.{0-29}.{attn1,attn2}.{to_q,to_k,to_v,to_out.0}" + WB,
    "blocks.{0-29}.{attn1,attn2}.{norm_q,norm_k}.weight",
    "blocks.{0-29}.{ffn.net.0.proj,ffn.net.2,norm2}" + WB,
)
WAN_I2V = (
    *(pattern.replace("{0-29}", "{0-39}") for pattern in WAN),
    "condition_embedder.image_embedder.{norm1,norm2,ff.net.0.proj,ff.net.2}" + WB,
    "blocks.{0-39}.attn2.{add_k_proj,add_v_proj}" + WB,
    "blocks.{0-39}.attn2.norm_added_{k,q}.weight",  # the class ignores q
)
SD_VAE_OF_BEFORE = ("mid_block.attentions.0.{key,query,value,proj_attn}",)  # today to_k, to_q, to_v, to_out.0

# real depths and kinds of layers
qwen3 = Qwen3Config(
    vocab_size=8, hidden_size=4, intermediate_size=4, num_hidden_layers=36, num_attention_heads=2, num_key_value_heads=1, head_dim=2,
    tie_word_embeddings=True, bos_token_id=None, eos_token_id=None,
)  # fmt: skip
qwen25_vl = Qwen2_5_VLConfig(
    text_config={
        "vocab_size": 8, "hidden_size": 4, "intermediate_size": 4, "num_hidden_layers": 28, "num_attention_heads": 1,
        "num_key_value_heads": 1, "bos_token_id": None, "eos_token_id": None,
        "rope_parameters": {"mrope_section": [1, 1], "rope_type": "default", "rope_theta": 1e6},
    },
    vision_config={"depth": 32, "hidden_size": 4, "intermediate_size": 4, "num_heads": 1, "out_hidden_size": 4},
    tie_word_embeddings=False,
)  # fmt: skip
t5 = {"vocab_size": 8, "d_model": 4, "d_kv": 2, "d_ff": 4, "num_layers": 24, "num_heads": 2, "feed_forward_proj": "gated-gelu"}
umt5 = UMT5Config(**t5)
wan = {"num_attention_heads": 1, "attention_head_dim": 12, "ffn_dim": 4, "num_layers": 30, "text_dim": 4, "freq_dim": 4}
wan_i2v = {**wan, "num_layers": 40, "in_channels": 36, "image_dim": 4, "added_kv_proj_dim": 12}
klein = {
    "num_layers": 5, "num_single_layers": 20, "num_attention_heads": 1, "attention_head_dim": 16, "joint_attention_dim": 4,
    "in_channels": 4, "axes_dims_rope": (4, 4, 4, 4), "guidance_embeds": False, "timestep_guidance_channels": 4,
}  # fmt: skip
narrow = {"block_out_channels": (2, 4, 8, 8), "norm_num_groups": 2}
vae8 = {
    **narrow, "down_block_types": ("DownEncoderBlock2D",) * 4, "layers_per_block": 2, "up_block_types": ("UpDecoderBlock2D",) * 4
}  # fmt: skip
zimage = {"dim": 12, "n_heads": 1, "n_kv_heads": 1, "cap_feat_dim": 4, "axes_dims": [4, 4, 4]}


def same(name: str) -> str:
    return name


def inner(name: str) -> str:
    return name.removeprefix("model.")


def qwen_name(name: str) -> str:
    """As transformers' class has it today."""
    return re.sub(r"^(visual|model)\.", lambda found: f"model.{'visual' if found[1] == 'visual' else 'language_model'}.", name)


def old_attention(name: str) -> str:
    for old, new in (("query", "to_q"), ("key", "to_k"), ("value", "to_v"), ("proj_attn", "to_out.0")):
        name = name.replace(f"attentions.0.{old}.", f"attentions.0.{new}.")
    return name


@dataclass(frozen=True)
class Base:
    """`keys` are patterns (None: the class's own), `extras` more of them that the class does not have, or not under that name. `count` is
    how many keys the repository publishes."""

    cls: Any
    config: Any
    keys: tuple[str, ...] | None
    count: int
    extras: tuple[str, ...] = ()
    name: Callable[[str], str] = same
    arguments: dict[str, Any] = field(default_factory=dict)


BASES = {
    "FLUX.2-klein-4B transformer": Base(Flux2Transformer2DModel, klein, KLEIN, 169),
    "FLUX.2 VAE": Base(AutoencoderKLFlux2, narrow, FLUX2_VAE, 251, ("bn.num_batches_tracked",)),
    "FLUX.2 VAE without the counter": Base(AutoencoderKLFlux2, narrow, FLUX2_VAE, 250),
    "Qwen3-4B": Base(Qwen3Model, qwen3, QWEN3, 398, name=inner, arguments={"num_layers": NUM_TEXT_LAYERS}),
    "Qwen3-4B with its tied head": Base(Qwen3Model, qwen3, QWEN3, 399, ("lm_head.weight",), inner, {"num_layers": NUM_TEXT_LAYERS}),
    "Qwen2.5-VL-7B without its vision tower": Base(
        Qwen2_5_VLForConditionalGeneration, qwen25_vl, QWEN25_VL, 729, name=qwen_name, arguments={"drop": ("model.visual",)}
    ),
    "T5 v1.1 XXL with both names and its decoder": Base(
        T5EncoderModel, T5Config(**t5), (*T5, "shared.weight", "encoder.embed_tokens.weight"), 223,
        ("lm_head.weight", "decoder.final_layer_norm.weight", "decoder.embed_tokens.weight"),
    ),
    "UMT5 XXL, shared": Base(UMT5EncoderModel, umt5, (*UMT5, "shared.weight"), 242),
    "UMT5 XXL, embed_tokens": Base(UMT5EncoderModel, umt5, (*UMT5, "encoder.embed_tokens.weight"), 242),
    "Wan2.1-T2V-1.3B": Base(WanTransformer3DModel, wan, WAN, 825),
    "Wan2.1-I2V-14B": Base(WanTransformer3DModel, wan_i2v, WAN_I2V, 1343),
    "Wan2.1 VAE": Base(AutoencoderKLWan, {"base_dim": 4}, None, 194),
    "Z-Image transformer": Base(ZImage, zimage, None, 521),
    "FLUX.1 VAE": Base(AutoencoderKL, {**vae8, "use_quant_conv": False, "use_post_quant_conv": False}, None, 244),
    "sd-vae-ft-mse": Base(AutoencoderKL, vae8, None, 248, name=old_attention),
}  # fmt: skip


def blank_class(base: Base) -> Any:
    with torch.device("meta"):
        return base.cls(**base.config) if isinstance(base.config, dict) else base.cls(base.config)


def write_base(base: Base, folder: Path) -> int:
    """The base's config and files; how many keys they have."""
    model = blank_class(base)
    wanted = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    names = list(wanted) if base.keys is None else [name for pattern in base.keys for name in expand(pattern)]
    if base.name is old_attention:
        to_old = {new: old for old in expand("{encoder,decoder}." + SD_VAE_OF_BEFORE[0] + WB) for new in [old_attention(old)]}
        names = [to_old.get(name, name) for name in names]
    names += [name for pattern in base.extras for name in expand(pattern)]
    tensors = {name: torch.zeros(wanted.get(base.name(name), (1,))) for name in names}
    assert len(tensors) == len(names)
    if isinstance(base.config, dict):
        model.save_config(folder)
    else:
        base.config.save_pretrained(folder)
    save_file(tensors, folder / "model.safetensors")
    return len(tensors)


@pytest.mark.parametrize("name", BASES)
def test_a_published_base_is_not_refused(name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    base = BASES[name]
    assert write_base(base, tmp_path) == base.count
    if isinstance(base.config, dict):
        made = load_part(base.cls, tmp_path, torch.bfloat16)
    else:
        made = load_text_encoder(str(tmp_path), "text_encoder", base.cls, torch.bfloat16, **base.arguments)
    assert type(made) is base.cls and not any(tensor.is_meta for tensor in [*made.parameters(), *made.buffers()])
    assert [record.getMessage() for record in caplog.records if record.name.startswith("models")] == []
