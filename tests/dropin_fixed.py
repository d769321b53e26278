"""Tiny weights of ai-toolkit architectures whose code fixes the sizes of its networks, or the hub repository that a part comes from.

The sizes are made small in the module of the model class, in the process that writes the weights and in the one that trains; the
repositories are written as a hub cache under HF_HOME, which tests.dropin sets to a folder of its own.
"""

import json
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from safetensors.torch import save_file

from models.tiny import byte_tokenizer, tiny_vae
from tests.dropin_more import beside, flux2_vae, qwen3_vl, qwen3_vl_config, shaken, t5_encoder
from tests.dropin_parts import TEXT_WIDTH, WORDS, qwen3, qwen_vae, t5_tokenizer

REVISION = "0" * 40
SMALL_VAE = {"ch": 32, "ch_mult": [1, 1, 1, 1], "num_res_blocks": 1}


def resize(module: ModuleType, **names: dict[str, Any]) -> None:
    """Give the classes of these names in `module` these values in place of their defaults."""
    for name, sizes in names.items():
        setattr(module, name, partial(getattr(module, name), **sizes))


def in_hub_cache(repository: str) -> Path:
    """The snapshot folder of a repository in the hub cache, to write its files into."""
    from huggingface_hub.constants import HF_HUB_CACHE

    home = Path(HF_HUB_CACHE) / f"models--{repository.replace('/', '--')}"
    (home / "refs").mkdir(parents=True)
    (home / "refs" / "main").write_text(REVISION)
    return home / "snapshots" / REVISION


def save(network: torch.nn.Module, path: Path, shake: bool = True) -> None:
    """One file with the network's weights, random where `shake` is on."""
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file({key: value.contiguous() for key, value in (shaken(network) if shake else network).state_dict().items()}, path)


def anima(folder: Path, module: ModuleType) -> None:
    """A modular pipeline: its index names the class and the folder of every component."""
    import diffusers as d
    from transformers import Qwen3Model

    qwen_vae(folder / "vae")
    components = {
        "text_encoder": Qwen3Model(qwen3()),
        "tokenizer": byte_tokenizer(),
        "t5_tokenizer": t5_tokenizer(),
        "vae": d.AutoencoderKLQwenImage.from_pretrained(folder / "vae"),
        "text_conditioner": d.AnimaTextConditioner(
            source_dim=TEXT_WIDTH, target_dim=32, model_dim=32, num_layers=1, num_attention_heads=2, target_vocab_size=WORDS
        ),
        "transformer": shaken(
            d.CosmosTransformer3DModel(
                in_channels=16, out_channels=16, num_attention_heads=2, attention_head_dim=16, num_layers=2, mlp_ratio=2,
                text_embed_dim=32, adaln_lora_dim=4, max_size=(4, 32, 32), patch_size=(1, 2, 2), concat_padding_mask=True,
                extra_pos_embed_type=None,
            )
        ),
        "scheduler": d.FlowMatchEulerDiscreteScheduler(),
    }  # fmt: skip
    index: dict[str, Any] = {"_class_name": "AnimaModularPipeline", "_blocks_class_name": "AnimaAutoBlocks"}
    for name, component in components.items():
        component.save_pretrained(folder / name)
        kind = [type(component).__module__.partition(".")[0], type(component).__name__]
        source = {"pretrained_model_name_or_path": str(folder), "subfolder": name, "variant": None, "revision": None}
        index[name] = [*kind, {**source, "type_hint": kind}]
    (folder / "modular_model_index.json").write_text(json.dumps(index))


def small_chroma(module: ModuleType) -> None:
    """Its stand-in for CLIP says that it is on CUDA; here it is on the CPU."""
    sizes = module.chroma_params
    sizes.hidden_size, sizes.num_heads, sizes.axes_dim = 32, 2, [4, 6, 6]
    sizes.context_in_dim, sizes.approximator_hidden_size = TEXT_WIDTH, 32
    sizes.depth = sizes.depth_single_blocks = 1

    class OnCpu(module.FakeCLIP):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.device = torch.device("cpu")

    module.FakeCLIP = OnCpu  # type: ignore[attr-defined]


def chroma(folder: Path, module: ModuleType) -> None:
    save(module.Chroma(module.chroma_params), folder / "chroma.safetensors")
    extras = in_hub_cache("ostris/Flex.1-alpha")
    t5_encoder(extras / "text_encoder_2", extras / "tokenizer_2")
    tiny_vae(16).save_pretrained(extras / "vae")


def small_flux2(module: ModuleType) -> None:
    network = {"hidden_size": 32, "num_heads": 2, "depth": 1, "depth_single_blocks": 1, "axes_dim": [4, 4, 4, 4]}
    resize(module, Flux2Params={"context_in_dim": 3 * TEXT_WIDTH, **network}, AutoEncoderParams=SMALL_VAE)


def flux2(folder: Path, module: ModuleType) -> None:
    """The text encoder's states after layers 10, 20 and 30 are what the denoiser reads."""
    import transformers as t

    save(module.Flux2(module.Flux2Params()), folder / "flux2-dev.safetensors")
    save(module.AutoEncoder(module.AutoEncoderParams()), folder / "ae.safetensors", shake=False)
    at = in_hub_cache(module.MISTRAL_PATH)
    text = t.MistralConfig(
        vocab_size=WORDS, hidden_size=TEXT_WIDTH, intermediate_size=32, num_hidden_layers=31, num_attention_heads=2,
        num_key_value_heads=1, head_dim=16,
    )  # fmt: skip
    vision = t.PixtralVisionConfig(
        hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, image_size=32, patch_size=16
    )
    t.Mistral3ForConditionalGeneration(t.Mistral3Config(text_config=text, vision_config=vision)).save_pretrained(at)
    tokenizer = byte_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": ["[IMG]", "[IMG_BREAK]", "[IMG_END]"]})
    processor = t.PixtralProcessor(t.PixtralImageProcessor(), tokenizer, chat_template=tokenizer.chat_template)
    processor.save_pretrained(at)


def small_ideogram(module: ModuleType) -> None:
    network = {
        "emb_dim": 32, "num_layers": 2, "num_heads": 2, "intermediate_size": 32, "adanln_dim": 16,
        "llm_features_dim": 13 * TEXT_WIDTH, "mrope_section": (2, 2, 2),
    }  # fmt: skip
    resize(module, Ideogram4Config=network, AutoEncoderParams=SMALL_VAE)


def ideogram(folder: Path, module: ModuleType) -> None:
    network = module.Ideogram4Transformer2DModel(module.Ideogram4Config())
    save(network, folder / "transformer" / "diffusion_pytorch_model.safetensors")
    flux2_vae(folder / "vae")
    qwen3_vl(folder / "te", 36)
    byte_tokenizer().save_pretrained(folder / "te")


def small_zeta(module: ModuleType) -> None:
    network = {
        "dim": 32, "n_layers": 2, "n_refiner_layers": 1, "n_heads": 2, "n_kv_heads": 2, "cap_feat_dim": TEXT_WIDTH,
        "axes_dims": [4, 6, 6], "axes_lens": [1536, 64, 64], "decoder_hidden_size": 32, "decoder_num_res_blocks": 1,
    }  # fmt: skip
    resize(module, ZImageDCTParams=network)


def zeta(folder: Path, module: ModuleType) -> None:
    """It works on pixels, in patches of 32 x 32, and predicts the clean picture."""
    from transformers import Qwen3ForCausalLM

    sizes = module.ZImageDCTParams(patch_size=1, in_channels=32 * 32 * 3, use_x0=True)
    save(module.ZImageDCT(sizes), folder / "zeta.safetensors")
    Qwen3ForCausalLM(qwen3()).save_pretrained(folder / "text_encoder")
    byte_tokenizer().save_pretrained(folder / "tokenizer")


def small_minimax(module: ModuleType) -> None:
    """The audio VAE has no sizes to set and stays as it is."""
    network = {
        "hidden_size": 32, "num_layers": 2, "token_refiner_num_layers": 1, "num_attention_heads": 2, "attention_head_dim": 32,
        "ffn_hidden_size": 32, "text_dim": TEXT_WIDTH, "timestep_input_dim": 16, "time_embed_hidden_size": 32, "time_embed_dim": 16,
        "rope_inv_freq_len": 4,
    }  # fmt: skip
    vae = {
        "block_out_channels": (8,) * 6, "layers_per_block": 1, "norm_num_groups": 4, "decoder_num_layers": 1, "decoder_heads": 2,
        "decoder_head_dim": 32,
    }  # fmt: skip
    resize(module, MiniMaxH3TransformerParams=network, MiniMaxH3VideoVAE=vae)


def minimax(folder: Path, module: ModuleType) -> None:
    """Offline, transformers loads a tokenizer from the hub cache only with a config.json beside it."""
    files = module.COMFY_FILES
    save(
        beside(module, "src.transformer").MiniMaxH3Transformer(module.MiniMaxH3TransformerParams()),
        folder / files["dit_fl2va_pruned"],
    )
    save(module.MiniMaxH3VideoVAE(), folder / files["video_vae"], shake=False)
    save(module.MiniMaxH3AudioVAE(), folder / files["audio_vae"], shake=False)
    at = in_hub_cache(module.ORIGINAL_REPO) / "FL2VA"
    qwen3_vl(folder / "te", module.TEXT_ENCODER_LAYER, at / "processor")
    byte_tokenizer().save_pretrained(at / "tokenizer")
    for name in ("tokenizer", "processor"):
        qwen3_vl_config(module.TEXT_ENCODER_LAYER).save_pretrained(at / name)
