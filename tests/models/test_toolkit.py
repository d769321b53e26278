"""The names that ai-toolkit folders import: what they give is checked against diffusers, quanto and plain arithmetic."""

import importlib
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from diffusers import FlowMatchEulerDiscreteScheduler
from torch import nn

from models import toolkit
from models.errors import UserError
from models.spec import ModelSpec
from tests.models.toolkit_names import get

pytestmark = pytest.mark.usefixtures("toolkit_names")

# What architecture folders import, as observed over 21 of them (names and how many use each are public facts).
USED = [
    "toolkit.config_modules.GenerateImageConfig",
    "toolkit.config_modules.ModelConfig",
    "toolkit.config_modules.NetworkConfig",
    "toolkit.basic.flush",
    "toolkit.basic.get_quick_signature_string",
    "toolkit.accelerator.unwrap_model",
    "toolkit.accelerator.get_accelerator",
    "toolkit.samplers.custom_flowmatch_sampler.CustomFlowMatchEulerDiscreteScheduler",
    "toolkit.models.base_model.BaseModel",
    "toolkit.util.quantize.quantize",
    "toolkit.util.quantize.get_qtype",
    "toolkit.util.quantize.quantize_model",
    "toolkit.util.quantize.dequantize_if_quantized",
    "toolkit.prompt_utils.PromptEmbeds",
    "toolkit.memory_management.MemoryManager",
    "toolkit.data_transfer_object.data_loader.DataLoaderBatchDTO",
    "toolkit.advanced_prompt_embeds.AdvancedPromptEmbeds",
    "toolkit.metadata.get_meta_for_safetensors",
    "toolkit.dequantize.patch_dequantization_on_save",
    "toolkit.paths.MODELS_PATH",
    "toolkit.lora_special.LoRASpecialNetwork",
    "toolkit.models.FakeVAE.FakeVAE",
    "toolkit.train_tools.apply_noise_offset",
    "toolkit.print.print_acc",
    "toolkit.train_tools.encode_prompts_flux",
    "toolkit.memory_management.manager.MemoryManager",
    "toolkit.util.mask.generate_random_mask",
    "toolkit.models.flux.add_model_gpu_splitter_to_flux",
    "toolkit.models.flux.bypass_flux_guidance",
    "toolkit.models.flux.restore_flux_guidance",
    "toolkit.util.mask.random_dialate_mask",
    "toolkit.util.comfy_quant_import.import_comfy_quantized_layers",
    "toolkit.util.ostris_quant.OstrisLinear",
    "toolkit.ideogram_caption.digest_caption_string",
    "toolkit.models.wan21.wan21.Wan21",
    "toolkit.models.wan21.wan21.AggressiveWanUnloadPipeline",
    "toolkit.models.wan21.wan_utils.add_first_frame_conditioning",
    "toolkit.models.wan21.wan_utils.add_first_frame_conditioning_v22",
    "toolkit.models.v2.z_image.ZImageTransformer2DModel",
    "toolkit.util.qwen_vae_gradient_checkpointing.patch_qwen_vae_gradient_checkpointing",
]


@pytest.mark.parametrize("name", USED)
def test_every_name_that_folders_import_is_there(name: str) -> None:
    assert get(name) is not None


def test_train_tools_is_importable_as_a_module() -> None:
    from toolkit import train_tools  # type: ignore[import-not-found]

    assert callable(train_tools.encode_prompts_flux)


def test_the_names_are_gone_afterwards_and_a_real_package_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    toolkit.uninstall()
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("toolkit.basic")
    theirs = ModuleType("toolkit")
    monkeypatch.setitem(sys.modules, "toolkit", theirs)
    with toolkit.installed():
        assert get("toolkit.basic.flush")() is None
    assert sys.modules["toolkit"] is theirs
    monkeypatch.delitem(sys.modules, "toolkit")
    toolkit.install()


def test_a_name_that_diffusers_moved_is_found_in_its_old_place() -> None:
    from diffusers.utils import encode_video

    assert get("diffusers.pipelines.ltx2.export_utils.encode_video") is encode_video


def test_a_module_that_is_not_offered_says_so() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"does not offer ai-toolkit's module 'toolkit\.stable_diffusion_model'"):
        importlib.import_module("toolkit.stable_diffusion_model")


def test_classes_are_the_same_under_both_names_and_after_a_second_install() -> None:
    from models.toolkit.base_model import BaseModel

    first = get("toolkit.models.base_model.BaseModel")
    toolkit.uninstall()
    toolkit.install()
    assert first is get("toolkit.models.base_model.BaseModel") is BaseModel


def test_noise_is_mixed_at_the_timestep_and_sampling_is_diffusers_own() -> None:
    cls = get("toolkit.samplers.custom_flowmatch_sampler.CustomFlowMatchEulerDiscreteScheduler")
    ours, theirs = cls(shift=3.0), FlowMatchEulerDiscreteScheduler(shift=3.0)
    clean, noise = torch.ones(2, 1, 1, 1), torch.zeros(2, 1, 1, 1)
    mixed = ours.add_noise(clean, noise, torch.tensor([250.0, 1000.0]))
    assert mixed.flatten().tolist() == [0.75, 0.0]
    ours.set_timesteps(4)
    theirs.set_timesteps(4)
    assert torch.equal(ours.timesteps, theirs.timesteps) and torch.equal(ours.sigmas, theirs.sigmas)


def test_quantizing_by_name_is_quanto_and_the_saved_state_is_plain() -> None:
    from optimum import quanto

    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(32, 32), nn.Linear(32, 32))
    want = net[0].weight.detach().clone()
    get("toolkit.dequantize.patch_dequantization_on_save")(net)
    get("toolkit.util.quantize.quantize")(net, weights=get("toolkit.util.quantize.get_qtype")("qint8"), exclude=["1"])
    quanto.freeze(net)
    assert isinstance(net[0].weight, quanto.QTensor) and isinstance(net[1], nn.Linear) and not isinstance(net[1], quanto.QLinear)
    state = net.state_dict()
    assert set(state) == {"0.weight", "0.bias", "1.weight", "1.bias"}
    assert not isinstance(state["0.weight"], quanto.QTensor)
    # int8 with a scale per row: half a step of the row's largest value
    assert torch.all((state["0.weight"] - want).abs() <= want.abs().amax(1, keepdim=True) / 127 * 0.51)


def test_an_unknown_qtype_names_the_known_ones() -> None:
    with pytest.raises(UserError, match="qtype 'nvfp4' is unknown here; known: qint2, qint4, qint8, qfloat8"):
        get("toolkit.util.quantize.get_qtype")("nvfp4")


def test_a_job_section_becomes_a_config_with_a_plain_dict_of_options() -> None:
    from models.extensions import FreeOptions

    spec = ModelSpec.model_construct(
        arch="a", name_or_path="/w", dtype="fp32", model_kwargs=FreeOptions(low_vram=True, train_high_noise=False)
    )
    config = get("toolkit.config_modules.ModelConfig").of(spec)
    assert (config.name_or_path, config.extras_name_or_path, config.low_vram) == ("/w", "/w", True)
    assert config.model_kwargs == {"low_vram": True, "train_high_noise": False}


@pytest.mark.parametrize("kind", ["tensor", "per prompt", "per encoder"])
def test_embeds_of_every_shape_count_join_and_survive_a_file(kind: str, tmp_path: Path) -> None:
    embeds = get("toolkit.prompt_utils.PromptEmbeds")

    def made(length: int) -> Any:
        if kind == "tensor":
            return embeds([torch.ones(1, length, 4), torch.ones(1, 2)])
        if kind == "per prompt":
            return embeds([[torch.ones(length, 4)], None])
        return embeds([[torch.ones(1, length, 4), torch.ones(1, 2 * length, 3)], None])

    joined = get("toolkit.prompt_utils.concat_prompt_embeds")([made(2), made(3)])
    assert len(joined) == 2 and len(made(2)) == 1
    if kind == "tensor":
        assert joined.text_embeds[:, :, 0].tolist() == [[1, 1, 0], [1, 1, 1]] and joined.pooled_embeds.shape == (2, 2)
    elif kind == "per prompt":
        assert [item.shape[0] for item in joined.text_embeds] == [2, 3]
    else:
        assert [tuple(item.shape) for item in joined.text_embeds] == [(2, 3, 4), (2, 6, 3)]
    parts = get("toolkit.prompt_utils.split_prompt_embeds")(joined)
    assert [len(part) for part in parts] == [1, 1]
    made(2).save(tmp_path / "e.safetensors")
    back = embeds.load(tmp_path / "e.safetensors")
    assert len(back) == 1 and type(back.text_embeds) is type(made(2).text_embeds)


def test_a_first_frame_is_put_in_front_with_its_mask() -> None:
    class Vae:
        device, dtype = "cpu", torch.float32
        config = type("Config", (), {"latents_mean": [1.0, 1.0], "latents_std": [2.0, 2.0]})

        def encode(self, clip: torch.Tensor) -> Any:
            latents = clip[:, :2, ::4, ::8, ::8]
            return type("Out", (), {"latent_dist": type("Dist", (), {"mode": staticmethod(lambda: latents)})})

    noisy, frame = torch.zeros(1, 2, 3, 2, 2), torch.full((1, 3, 16, 16), 3.0)
    joined = get("toolkit.models.wan21.wan_utils.add_first_frame_conditioning")(noisy, frame, Vae())
    assert joined.shape == (1, 2 + 4 + 2, 3, 2, 2)
    assert joined[0, 2:6, :, 0, 0].tolist() == [[1, 0, 0]] * 4
    assert joined[0, 6, :, 0, 0].tolist() == [1.0, -0.5, -0.5]  # (3 - 1) / 2, then grey (0 - 1) / 2
    mixed, mask = get("toolkit.models.wan21.wan_utils.add_first_frame_conditioning_v22")(noisy, frame, Vae())
    assert mixed[0, 0, :, 0, 0].tolist() == [1.0, 0.0, 0.0] and mask[0, 0, :, 0, 0].tolist() == [0, 1, 1]


def test_guidance_is_bypassed_and_comes_back() -> None:
    from diffusers.models.embeddings import CombinedTimestepGuidanceTextProjEmbeddings as Embeddings

    embed = Embeddings(8, 4)
    holder = type("Transformer", (), {"time_text_embed": embed})()
    t, guidance, pooled = torch.tensor([10.0]), torch.tensor([3.5]), torch.ones(1, 4)
    full = embed(t, guidance, pooled)
    get("toolkit.models.flux.bypass_flux_guidance")(holder)
    without = embed.timestep_embedder(embed.time_proj(t)) + embed.text_embedder(pooled)
    assert torch.equal(embed(t, guidance, pooled), without) and not torch.equal(full, without)
    get("toolkit.models.flux.restore_flux_guidance")(holder)
    assert torch.equal(embed(t, guidance, pooled), full)


def test_small_helpers(tmp_path: Path) -> None:
    meta = get("toolkit.metadata.get_meta_for_safetensors")({"name": "[name]", "steps": 3}, name="run")
    assert meta["name"] == "run" and meta["steps"] == "3" and meta["format"] == "pt"
    assert get("toolkit.ideogram_caption.digest_caption_string")('{ "a": 1 }') == '{"a":1}'
    assert get("toolkit.ideogram_caption.digest_caption_string")("a red { apple") == "a red { apple"
    vae = get("toolkit.models.FakeVAE.FakeVAE")().to("cpu", dtype=torch.bfloat16)
    pixels = torch.rand(1, 3, 2, 2)
    assert vae.dtype == torch.bfloat16 and torch.equal(vae.decode(vae.encode(pixels).latent_dist.sample()).sample, pixels)
    (tmp_path / "f").write_text("one")
    before = get("toolkit.basic.get_quick_signature_string")(tmp_path / "f")
    (tmp_path / "f").write_text("longer")
    assert get("toolkit.basic.get_quick_signature_string")(tmp_path / "f") != before
    mask = get("toolkit.util.mask.generate_random_mask")(2, 16, 24)
    assert mask.shape == (2, 1, 16, 24) and set(mask.unique().tolist()) <= {0.0, 1.0}
    grown = get("toolkit.util.mask.random_dialate_mask")(mask, 0.2)
    assert torch.all(grown >= mask)
    with pytest.raises(UserError, match="already quantized"):
        get("toolkit.util.comfy_quant_import.import_comfy_quantized_layers")(nn.Linear(1, 1), {"a.weight_scale": torch.ones(1)})
