"""Tiny weights of further ai-toolkit architectures: those whose networks are built from a config or from a class of the folder."""

import importlib
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from models.tiny import byte_tokenizer, tiny_vae
from tests.dropin_parts import TEXT_WIDTH, WORDS, qwen3, qwen_vae, t5_tokenizer

LAYER_STD = 0.05  # of random weights: a network that starts at zero has no gradient at an adapter's first step
TOKENS = {
    "image_token_id": "<|image_pad|>",
    "video_token_id": "<|video_pad|>",
    "vision_start_token_id": "<|vision_start|>",
    "vision_end_token_id": "<|vision_end|>",
}


def beside(module: ModuleType, path: str) -> ModuleType:
    """A module of the same folder, by its path below it."""
    return importlib.import_module(f"{module.__name__.rpartition('.')[0]}.{path}")


def shaken(network: torch.nn.Module) -> torch.nn.Module:
    """The network with random matrices instead of those that start at zero."""
    with torch.no_grad():
        for param in network.parameters():
            if param.ndim > 1:
                param.normal_(std=LAYER_STD)
    return network


def qwen3_vl_config(layers: int) -> Any:
    from transformers import Qwen3VLConfig

    rope = {"rope_type": "default", "mrope_section": [2, 3, 3], "mrope_interleaved": True, "rope_theta": 1e4}
    text = {
        "vocab_size": WORDS, "hidden_size": TEXT_WIDTH, "intermediate_size": 32, "num_hidden_layers": layers, "num_attention_heads": 2,
        "num_key_value_heads": 1, "head_dim": 16, "rope_parameters": rope,
    }  # fmt: skip
    vision = {
        "depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2, "out_hidden_size": TEXT_WIDTH,
        "deepstack_visual_indexes": [0],
    }  # fmt: skip
    tokenizer = byte_tokenizer()
    ids = {key: tokenizer.convert_tokens_to_ids(token) for key, token in TOKENS.items()}
    return Qwen3VLConfig(text_config=text, vision_config=vision, **ids)


def qwen3_vl(folder: Path, layers: int, processor: Path | None = None) -> None:
    """The language model that sees pictures, and its processor."""
    import transformers as t

    t.Qwen3VLForConditionalGeneration(qwen3_vl_config(layers)).save_pretrained(folder)
    if processor is not None:
        pictures = t.Qwen2VLImageProcessor(patch_size=16, merge_size=2, min_pixels=1024, max_pixels=65536)
        tokenizer = byte_tokenizer()
        made = t.Qwen3VLProcessor(pictures, tokenizer, t.Qwen3VLVideoProcessor(), chat_template=tokenizer.chat_template)
        made.save_pretrained(processor)


def flux2_vae(folder: Path) -> None:
    from diffusers import AutoencoderKLFlux2

    AutoencoderKLFlux2(
        block_out_channels=(32,) * 4, down_block_types=("DownEncoderBlock2D",) * 4, up_block_types=("UpDecoderBlock2D",) * 4,
        layers_per_block=1, latent_channels=32,
    ).save_pretrained(folder)  # fmt: skip


def t5_encoder(folder: Path, tokenizer: Path, layers: int = 1) -> None:
    from transformers import T5Config, T5EncoderModel

    sizes = {"vocab_size": WORDS, "d_model": TEXT_WIDTH, "d_kv": 8, "d_ff": 32, "num_heads": 2}
    T5EncoderModel(T5Config(**sizes, num_layers=layers)).save_pretrained(folder)
    t5_tokenizer().save_pretrained(tokenizer)


def boogu(folder: Path, module: ModuleType) -> None:
    shaken(
        beside(module, "src.transformer").BooguImageTransformer2DModel(
            hidden_size=32, num_layers=2, num_double_stream_layers=1, num_refiner_layers=1, num_attention_heads=2, num_kv_heads=1,
            multiple_of=8, axes_dim_rope=(4, 6, 6), axes_lens=(512, 512, 512),
            instruction_feature_configs={
                "instruction_feat_dim": TEXT_WIDTH, "num_instruction_feature_layers": 1, "reduce_type": "mean"
            },
        )
    ).save_pretrained(folder / "transformer")  # fmt: skip
    qwen3_vl(folder / "mllm", 2, folder / "processor")
    tiny_vae(16).save_pretrained(folder / "vae")


def ernie(folder: Path, module: ModuleType) -> None:
    from transformers import Qwen3Model

    shaken(
        beside(module, "transformer").ErnieImageTransformer2DModel(
            hidden_size=32,
            num_attention_heads=2,
            num_layers=2,
            ffn_hidden_size=32,
            text_in_dim=TEXT_WIDTH,
            rope_axes_dim=(4, 6, 6),
        )
    ).save_pretrained(folder / "transformer")
    Qwen3Model(qwen3()).save_pretrained(folder / "text_encoder")
    byte_tokenizer().save_pretrained(folder / "tokenizer")
    flux2_vae(folder / "vae")


def f_lite(folder: Path, module: ModuleType) -> None:
    network = beside(module, "src.model").DiT(
        in_channels=16, patch_size=2, hidden_size=32, depth=2, num_heads=2, cross_attn_input_size=TEXT_WIDTH
    )
    shaken(network).save_pretrained(folder / "dit_model")
    t5_encoder(folder / "text_encoder", folder / "tokenizer", layers=10)
    tiny_vae(16).save_pretrained(folder / "vae")


def prx(folder: Path, module: ModuleType) -> None:
    from transformers import Qwen3VLTextModel

    shaken(
        beside(module, "src.transformer_prx").PRXTransformer2DModel(
            in_channels=3, patch_size=16, context_in_dim=TEXT_WIDTH, hidden_size=32, num_heads=2, depth=2, axes_dim=[8, 8],
            bottleneck_size=16, resolution_embeds=True,
        )
    ).save_pretrained(folder / "transformer")  # fmt: skip
    Qwen3VLTextModel(qwen3_vl_config(2).text_config).save_pretrained(folder / "text_encoder")
    byte_tokenizer().save_pretrained(folder / "tokenizer")


def nucleus(folder: Path, _module: ModuleType) -> None:
    from diffusers import NucleusMoEImageTransformer2DModel

    shaken(
        NucleusMoEImageTransformer2DModel(
            in_channels=64, out_channels=16, num_layers=2, attention_head_dim=16, num_attention_heads=2,
            joint_attention_dim=TEXT_WIDTH, axes_dims_rope=(4, 6, 6), num_experts=2, moe_intermediate_dim=16, moe_enabled=False,
        )
    ).save_pretrained(folder / "transformer")  # fmt: skip
    qwen3_vl(folder / "text_encoder", 10, folder / "processor")
    qwen_vae(folder / "vae")


def mageflow(folder: Path, module: ModuleType) -> None:
    from safetensors.torch import save_file

    network, vae = beside(module, "src.transformer"), beside(module, "src.vae")
    config = {
        "in_channels": 128, "out_channels": 128, "context_in_dim": TEXT_WIDTH, "hidden_size": 32, "num_heads": 2, "depth": 2,
        "axes_dim": [4, 6, 6], "checkpoint": False, "patch_size": 1,
    }  # fmt: skip
    for part in ("transformer", "vae"):
        (folder / part).mkdir(parents=True)
    (folder / "transformer" / "config.json").write_text(json.dumps(config))
    made = shaken(network.MageFlow(network.MageFlowParams(**config))).state_dict()
    save_file(made, folder / "transformer" / "diffusion_pytorch_model.safetensors")
    parts = {"student.dconv_encoder.": vae._DConvEncoder(), "pipeline.": vae._DConvDenoiser()}
    state = {stem + key: value.clone() for stem, part in parts.items() for key, value in part.state_dict().items()}
    save_file(state, folder / "vae" / "diffusion_pytorch_model.safetensors")
    qwen3_vl(folder / "text_encoder", 2, folder / "text_encoder")


def hidream(folder: Path, module: ModuleType) -> None:
    import transformers as t

    source = beside(module, "src.models.transformers.transformer_hidream_image")
    shaken(
        source.HiDreamImageTransformer2DModel(
            patch_size=2, in_channels=16, out_channels=16, num_layers=1, num_single_layers=1, attention_head_dim=16,
            num_attention_heads=2, caption_channels=[TEXT_WIDTH, TEXT_WIDTH], text_emb_dim=32, num_routed_experts=2,
            num_activated_experts=1, axes_dims_rope=(8, 4, 4), max_resolution=(32, 32), llama_layers=[0, 1],
        )
    ).save_pretrained(folder / "transformer")  # fmt: skip
    words = {word: index for index, word in enumerate([*byte_tokenizer().get_vocab(), "<|startoftext|>"])}
    clip = t.CLIPTextConfig(
        vocab_size=WORDS, hidden_size=16, intermediate_size=16, num_hidden_layers=2, num_attention_heads=2, projection_dim=16,
        max_position_embeddings=248,
    )  # fmt: skip
    for ending in ("", "_2"):
        t.CLIPTextModelWithProjection(clip).save_pretrained(folder / f"text_encoder{ending}")
        t.CLIPTokenizer(vocab=words, merges=[]).save_pretrained(folder / f"tokenizer{ending}")
    t5_encoder(folder / "text_encoder_3", folder / "tokenizer_3")
    tiny_vae(16).save_pretrained(folder / "vae")
    llama = t.LlamaConfig(
        vocab_size=WORDS,
        hidden_size=TEXT_WIDTH,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
    )
    t.LlamaForCausalLM(llama).save_pretrained(folder / "llama")
    inner, end = byte_tokenizer().backend_tokenizer, "<|endoftext|>"
    t.PreTrainedTokenizerFast(tokenizer_object=inner, pad_token=end, eos_token=end).save_pretrained(folder / "llama")


def ltx2(folder: Path, _module: ModuleType) -> None:
    """Clips with sound: two VAEs, a vocoder, and connectors between the text encoder and both halves of the denoiser."""
    import diffusers as d
    import transformers as t
    from diffusers.pipelines.ltx2.connectors import LTX2TextConnectors
    from diffusers.pipelines.ltx2.vocoder import LTX2Vocoder

    rope = {"rope_double_precision": False, "rope_type": "split"}
    shaken(
        d.LTX2VideoTransformer3DModel(
            in_channels=4, out_channels=4, num_attention_heads=2, attention_head_dim=8, cross_attention_dim=16, audio_in_channels=4,
            audio_out_channels=4, audio_num_attention_heads=2, audio_attention_head_dim=4, audio_cross_attention_dim=8, num_layers=2,
            caption_channels=TEXT_WIDTH, **rope,
        )
    ).save_pretrained(folder / "transformer")  # fmt: skip
    halves = {
        f"{half}_connector_{key}": value
        for half in ("video", "audio")
        for key, value in {
            "num_attention_heads": 4, "attention_head_dim": 8, "num_layers": 1, "num_learnable_registers": None
        }.items()
    }  # fmt: skip
    connectors = LTX2TextConnectors(
        caption_channels=TEXT_WIDTH, text_proj_in_factor=3, connector_rope_base_seq_len=32, **halves, **rope
    )
    connectors.save_pretrained(folder / "connectors")
    d.AutoencoderKLLTX2Video(
        in_channels=3, out_channels=3, latent_channels=4, block_out_channels=(8,), down_block_types=("LTX2VideoDownBlock3D",),
        decoder_block_out_channels=(8,), layers_per_block=(1,), decoder_layers_per_block=(1, 1), spatio_temporal_scaling=(True,),
        decoder_spatio_temporal_scaling=(True,), decoder_inject_noise=(False, False), downsample_type=("spatial",),
        upsample_type=("spatiotemporal",), upsample_residual=(False,), upsample_factor=(1,), timestep_conditioning=False, patch_size=1,
        patch_size_t=1, encoder_causal=True, decoder_causal=False,
    ).save_pretrained(folder / "vae")  # fmt: skip
    d.AutoencoderKLLTX2Audio(
        base_channels=4, output_channels=2, ch_mult=(1,), num_res_blocks=1, attn_resolutions=None, in_channels=2, resolution=32,
        latent_channels=2, norm_type="pixel", causality_axis="height", mid_block_add_attention=False, sample_rate=16000,
        mel_hop_length=160, is_causal=True, mel_bins=8,
    ).save_pretrained(folder / "audio_vae")  # fmt: skip
    LTX2Vocoder(
        in_channels=16, hidden_channels=32, out_channels=2, upsample_kernel_sizes=[4, 4], upsample_factors=[2, 2],
        resnet_kernel_sizes=[3], resnet_dilations=[[1, 3, 5]], output_sampling_rate=16000,
    ).save_pretrained(folder / "vocoder")  # fmt: skip
    text = {
        "vocab_size": WORDS, "hidden_size": TEXT_WIDTH, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
        "num_key_value_heads": 1, "head_dim": 16,
    }  # fmt: skip
    vision = {
        "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 28, "patch_size": 14
    }  # fmt: skip
    config = t.Gemma3Config(text_config=text, vision_config=vision, mm_tokens_per_image=4, image_token_index=500)
    t.Gemma3ForConditionalGeneration(config).save_pretrained(folder / "text_encoder")
    gemma_tokenizer().save_pretrained(folder / "tokenizer")


def gemma_tokenizer() -> Any:
    """One token for each printable ASCII character, behind the one that begins a text."""
    from tokenizers.processors import TemplateProcessing
    from transformers import GemmaTokenizerFast

    words = ["<pad>", "<eos>", "<bos>", "<unk>", *map(chr, range(32, 127)), "▁"]
    made = GemmaTokenizerFast(vocab={word: index for index, word in enumerate(words)}, merges=[])
    made._tokenizer.post_processor = TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", 2)])
    return made
