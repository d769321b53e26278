"""`python -m tests.dropin_tiny ARCH FOLDER`: tiny random weights in the layout that an ai-toolkit architecture loads; with JOB and RUN
behind them, that job instead, with the same sizes.

Run inside tests.dropin, whose SAFELIGHT_EXTENSIONS names the package; a recipe builds the folder's own network classes where it has some.
"""

import importlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from tests import dropin_fixed as fixed
from tests import dropin_more as more
from tests.dropin_parts import TEXT_WIDTH, WORDS, qwen3, qwen25_vl, qwen_vae, t5_tokenizer


@dataclass(frozen=True)
class Recipe:
    """`write(folder, module)` makes the weights, `module` being the one that the class is in; `options(folder)` are the model_kwargs.
    `control` is on for a model that cannot make a picture without a control image. `shrink(module)` sets small sizes where the code fixes
    them; `file` is the one in the folder that a job's name_or_path has to name."""

    write: Callable[[Path, ModuleType], None]
    options: Callable[[Path], dict[str, object]] = lambda _folder: {}
    control: bool = False
    shrink: Callable[[ModuleType], None] = lambda _module: None
    file: str = ""


def example(folder: Path, module: ModuleType) -> None:
    """The denoiser has no config: it comes in its real size, 0.9 GB."""
    from safetensors.torch import save_file
    from transformers import Qwen3Model

    from models.tiny import tiny_vae

    (folder / "transformer").mkdir(parents=True)
    save_file(module.ExampleTransformer2DModel().state_dict(), folder / "transformer" / "model.safetensors")
    Qwen3Model(qwen3(hidden_size=2048, num_hidden_layers=1)).save_pretrained(folder / "text_encoder")
    t5_tokenizer().save_pretrained(folder / "tokenizer")
    tiny_vae(16).save_pretrained(folder / "vae")


def zimage(folder: Path, module: ModuleType) -> None:
    from diffusers import ZImageTransformer2DModel
    from transformers import Qwen3ForCausalLM

    from models.tiny import byte_tokenizer, tiny_vae

    ZImageTransformer2DModel(
        dim=32, n_layers=2, n_refiner_layers=1, n_heads=2, n_kv_heads=2, cap_feat_dim=TEXT_WIDTH, axes_dims=[4, 6, 6],
        axes_lens=[1024, 64, 64],
    ).save_pretrained(folder / "transformer")  # fmt: skip
    Qwen3ForCausalLM(qwen3()).save_pretrained(folder / "text_encoder")
    byte_tokenizer().save_pretrained(folder / "tokenizer")
    tiny_vae(16).save_pretrained(folder / "vae")


KREA = {
    "features": 32, "tdim": 16, "txtdim": TEXT_WIDTH, "heads": 2, "kvheads": 1, "multiplier": 2, "layers": 2, "patch": 2, "channels": 16,
    "txtheads": 2, "txtkvheads": 2, "txtlayers": 12,
}  # fmt: skip


def krea(folder: Path, module: ModuleType) -> None:
    from safetensors.torch import save_file
    from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration

    from models.tiny import byte_tokenizer

    network = module.SingleStreamDiT(module.SingleMMDiTConfig(**KREA))
    for param in network.parameters():
        param.data.normal_(std=0.05)
    folder.mkdir(parents=True)
    save_file(network.state_dict(), folder / "model.safetensors")
    text = {
        "vocab_size": WORDS, "hidden_size": TEXT_WIDTH, "intermediate_size": 32, "num_hidden_layers": 36, "num_attention_heads": 2,
        "num_key_value_heads": 1, "head_dim": 16,
        "rope_parameters": {"rope_type": "default", "mrope_section": [2, 3, 3], "mrope_interleaved": True, "rope_theta": 1e4},
    }  # fmt: skip
    vision = {
        "depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2, "out_hidden_size": TEXT_WIDTH,
        "deepstack_visual_indexes": [0],
    }  # fmt: skip
    Qwen3VLForConditionalGeneration(Qwen3VLConfig(text_config=text, vision_config=vision)).save_pretrained(folder / "te")
    byte_tokenizer().save_pretrained(folder / "te")
    qwen_vae(folder / "extras" / "vae")


def omnigen(folder: Path, module: ModuleType) -> None:
    from transformers import CLIPImageProcessor, CLIPProcessor

    from models.tiny import byte_tokenizer, tiny_vae

    module.OmniGen2Transformer2DModel(
        hidden_size=32, num_layers=2, num_refiner_layers=1, num_attention_heads=2, num_kv_heads=1, multiple_of=8,
        axes_dim_rope=(4, 6, 6), axes_lens=(512, 512, 512), text_feat_dim=TEXT_WIDTH,
    ).save_pretrained(folder / "transformer")  # fmt: skip
    qwen25_vl(folder / "mllm")
    CLIPProcessor(CLIPImageProcessor(), byte_tokenizer()).save_pretrained(folder / "processor")
    tiny_vae(16).save_pretrained(folder / "vae")


def qwen_image(folder: Path, module: ModuleType) -> None:
    from diffusers import QwenImageTransformer2DModel

    from models.tiny import byte_tokenizer

    QwenImageTransformer2DModel(
        in_channels=64, out_channels=16, num_layers=2, attention_head_dim=16, num_attention_heads=2, joint_attention_dim=TEXT_WIDTH,
        axes_dims_rope=(4, 6, 6),
    ).save_pretrained(folder / "transformer")  # fmt: skip
    qwen25_vl(folder / "text_encoder")
    byte_tokenizer().save_pretrained(folder / "tokenizer")
    qwen_vae(folder / "vae")


def wan(folder: Path, module: ModuleType) -> None:
    """Text to video with a VAE of 16 pixels per latent pixel: one frame here."""
    from diffusers import AutoencoderKLWan, WanTransformer3DModel
    from transformers import UMT5Config, UMT5EncoderModel

    from models.tiny import byte_tokenizer

    WanTransformer3DModel(
        num_attention_heads=2, attention_head_dim=12, in_channels=48, out_channels=48, text_dim=TEXT_WIDTH, freq_dim=16, ffn_dim=32,
        num_layers=2,
    ).save_pretrained(folder / "transformer")  # fmt: skip
    encoder = UMT5Config(vocab_size=WORDS, d_model=TEXT_WIDTH, d_kv=8, d_ff=32, num_layers=1, num_heads=2)
    UMT5EncoderModel(encoder).save_pretrained(folder / "text_encoder")
    byte_tokenizer().save_pretrained(folder / "tokenizer")
    AutoencoderKLWan(
        base_dim=8, decoder_base_dim=8, z_dim=48, dim_mult=[1, 1, 1, 1], num_res_blocks=1, temperal_downsample=[False, True, True],
        latents_mean=[0.0] * 48, latents_std=[1.0] * 48, is_residual=True, in_channels=12, out_channels=12, patch_size=2,
        scale_factor_spatial=16, scale_factor_temporal=4,
    ).save_pretrained(folder / "vae")  # fmt: skip


def kontext(folder: Path, module: ModuleType) -> None:
    from diffusers import FluxTransformer2DModel
    from transformers import CLIPTextConfig, CLIPTextModel, CLIPTokenizer, T5Config, T5EncoderModel

    from models.tiny import byte_tokenizer, tiny_vae

    FluxTransformer2DModel(
        in_channels=64, num_layers=1, num_single_layers=1, attention_head_dim=16, num_attention_heads=2, joint_attention_dim=TEXT_WIDTH,
        pooled_projection_dim=16, guidance_embeds=True, axes_dims_rope=(4, 6, 6),
    ).save_pretrained(folder / "transformer")  # fmt: skip
    shared = {"vocab_size": WORDS, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    CLIPTextModel(CLIPTextConfig(**shared)).save_pretrained(folder / "text_encoder")
    words = {word: index for index, word in enumerate(byte_tokenizer().get_vocab())}
    words |= {"<|startoftext|>": len(words)}
    CLIPTokenizer(vocab=words, merges=[]).save_pretrained(folder / "tokenizer")
    T5EncoderModel(T5Config(vocab_size=WORDS, d_model=TEXT_WIDTH, d_kv=8, d_ff=32, num_layers=1, num_heads=2)).save_pretrained(
        folder / "text_encoder_2"
    )
    t5_tokenizer().save_pretrained(folder / "tokenizer_2")
    tiny_vae(16).save_pretrained(folder / "vae")


RECIPES = {
    "example": Recipe(example),
    "zimage": Recipe(zimage),
    "krea2": Recipe(krea, lambda at: {"mmdit_config": KREA, "text_encoder_path": str(at / "te"), "vae_path": str(at / "extras")}),
    "omnigen2": Recipe(omnigen),
    "qwen_image": Recipe(qwen_image),
    "wan22_5b": Recipe(wan),
    "flux_kontext": Recipe(kontext, control=True),
    "boogu_image": Recipe(more.boogu),
    "ernie_image": Recipe(more.ernie),
    "f-lite": Recipe(more.f_lite),
    "prx_pixel": Recipe(more.prx),
    "nucleus_image": Recipe(more.nucleus),
    "mageflow": Recipe(more.mageflow),
    "ltx2": Recipe(more.ltx2),
    "hidream": Recipe(more.hidream, lambda at: {"llama_model_path": str(at / "llama")}),
    "anima": Recipe(fixed.anima),
    "chroma": Recipe(fixed.chroma, shrink=fixed.small_chroma, file="chroma.safetensors"),
    "flux2": Recipe(fixed.flux2, shrink=fixed.small_flux2),
    "ideogram4": Recipe(fixed.ideogram, lambda at: {"text_encoder_path": str(at / "te")}, shrink=fixed.small_ideogram),
    "zeta_chroma": Recipe(
        fixed.zeta, lambda at: {"extras_name_or_path": str(at)}, shrink=fixed.small_zeta, file="zeta.safetensors"
    ),
    "minimax_h3": Recipe(fixed.minimax, lambda at: {"te_name_or_path": str(at / "te")}, shrink=fixed.small_minimax),
}


def main(arch: str, folder: str, *job_and_run: str) -> int:
    import torch

    from models import toolkit
    from worker import extensions, run

    torch.manual_seed(0)
    toolkit.install()
    found = extensions.load_from_folders(arch)
    assert found is not None and found.card is not None
    recipe, module = RECIPES[arch.removesuffix(".theirs")], importlib.import_module(found.card.code.partition(":")[0])
    recipe.shrink(module)
    if job_and_run:
        return run.main(*job_and_run)
    recipe.write(Path(folder), module)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
