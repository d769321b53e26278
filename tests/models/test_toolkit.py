"""The names that ai-toolkit folders import: what they give is checked against diffusers, quanto and plain arithmetic."""

import importlib
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from diffusers import FlowMatchEulerDiscreteScheduler
from PIL import Image
from torch import nn

from models import memory, toolkit
from models.adapters.files import network_for
from models.errors import UserError
from models.offload import is_offloaded
from models.quantize import is_quantized
from models.spec import ModelSpec, NetworkSpec


@pytest.fixture(autouse=True)
def names() -> Any:
    with toolkit.installed():
        yield


def get(dotted: str) -> Any:
    module, _, name = dotted.rpartition(".")
    return getattr(importlib.import_module(module), name)


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


def test_a_folder_quantizes_and_offloads_as_it_does_elsewhere(tmp_path: Path) -> None:
    """The calls that folders make in load_model; what is done again for the loaded model then finds it done."""
    base, quantize_model = get("toolkit.models.base_model.BaseModel"), get("toolkit.util.quantize.quantize_model")
    manager = get("toolkit.memory_management.MemoryManager")

    class Folder(base):
        def load_model(self) -> None:
            self.model = nn.Module()
            self.model.blocks = nn.ModuleList([nn.Linear(8, 8), nn.Linear(8, 8)])
            self.model.time_in, self.model.pad = nn.Linear(8, 8), nn.Parameter(torch.ones(8))
            quantize_model(self, self.model)
            manager.attach(self.model, self.device_torch, offload_percent=0.0)
            assert not is_offloaded(self.model)
            manager.attach(self.model, self.device_torch, offload_percent=1.0, ignore_modules=[self.model.pad])

        def get_quantization_exclude_modules(self) -> list[str]:
            return ["time_*"]

    config = get("toolkit.config_modules.ModelConfig")(quantize=True, qtype="qint8", layer_offloading=True)
    model = Folder("cpu", config, "fp32")
    model.cache_folder = tmp_path
    model.load_model()
    before = list(model.model.modules())
    memory.settle(model, parked=False)
    assert list(model.model.modules()) == before
    assert is_offloaded(model.model) and not is_quantized(model.model.time_in) and is_quantized(model.model.blocks)
    assert model.model.blocks[0](torch.ones(1, 8)).shape == (1, 8)
    assert len(list((tmp_path / "quantized").iterdir())) == 1


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


def test_the_assistant_adapter_is_merged_for_training_and_taken_off_in_previews() -> None:
    cls = get("toolkit.lora_special.LoRASpecialNetwork")
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 4, bias=False))
    x, plain = torch.randn(1, 4), net[0].weight.detach().clone()
    a, b = torch.randn(2, 4), torch.randn(4, 2)
    network = cls(text_encoder=None, unet=net, multiplier=1.0, network_type="lora", is_transformer=True)
    network.apply_to(None, net, apply_text_encoder=False, apply_unet=True)
    network.load_weights({"transformer.0.lora_A.weight": a, "transformer.0.lora_B.weight": b})
    network.merge_in(merge_weight=1.0)
    network.is_merged_in = False
    network.multiplier, network.is_active = -1.0, False
    assert torch.allclose(net(x), x @ (plain + b @ a).T, atol=1e-5)  # fp32 sums in another order
    with network:
        assert torch.allclose(net(x), x @ plain.T, atol=1e-5)
    with pytest.raises(UserError, match="type 'lokr'"):
        cls(network_type="lokr")


def layers(*names: str) -> nn.Module:
    """A denoiser with a linear layer in each of these places."""
    root = nn.Module()
    for name in names:
        *parents, last = name.split(".")
        home = root
        for parent in parents:
            if not hasattr(home, parent):
                home.add_module(parent, nn.Module())
            home = getattr(home, parent)
        home.add_module(last, nn.Linear(4, 4))
    return root


ATTACHED = [  # by ai-toolkit's rule for a class that names no blocks: (layers there are, those that an adapter takes)
    (
        ("x_embedder", "transformer_blocks.0", "single_transformer_blocks.0", "proj_out"),
        ["transformer_blocks.0", "single_transformer_blocks.0"],
    ),
    (("img_in", "double_blocks.0", "single_blocks.0", "final"), ["double_blocks.0", "single_blocks.0"]),
    (("patch_embed", "blocks.0", "blocks.1", "final"), ["blocks.0", "blocks.1"]),
    (("inside.blocks.0", "head"), ["inside.blocks.0", "head"]),  # the rule looks at the module's own attributes
]


@pytest.mark.parametrize(("there", "taken"), ATTACHED)
def test_adapters_take_the_layers_of_ai_toolkits_rule_under_the_classs_own_names(
    there: tuple[str, ...], taken: list[str]
) -> None:
    model = get("toolkit.models.base_model.BaseModel")("cpu", get("toolkit.config_modules.ModelConfig")(), "fp32")
    model.model = layers(*there)
    network = network_for(model, NetworkSpec(linear=2))
    assert [path for path, _ in network.named_layers()] == taken
    state = network.public_state()
    assert set(state) == {f"transformer.{path}.lora_{side}.weight" for path in taken for side in "AB"}
    assert model.convert_lora_weights_before_load(model.convert_lora_weights_before_save(state)) == state


def test_versions_of_the_spaces_can_be_assigned_in_a_constructor_and_default_to_the_arch() -> None:
    class Folder(get("toolkit.models.base_model.BaseModel")):  # type: ignore[misc]
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            self.latent_space_version = f"{self.arch}_v2"

    model = Folder("cpu", get("toolkit.config_modules.ModelConfig")(arch="a"), "fp32")
    assert (model.latent_space_version, model.text_embedding_space_version) == ("a_v2", "a")


@pytest.mark.parametrize("kind", ["tensor", "array", "pictures"])
def test_a_clip_that_comes_as_a_dict_with_its_sound_is_a_clip(kind: str) -> None:
    frames = torch.arange(2 * 4 * 6 * 3, dtype=torch.uint8).reshape(2, 4, 6, 3)
    pictures = [Image.fromarray(frame.numpy()) for frame in frames]
    video = {"tensor": frames, "array": frames.numpy(), "pictures": pictures}[kind]

    class Folder(get("toolkit.models.base_model.BaseModel")):  # type: ignore[misc]
        def get_generation_pipeline(self) -> None: ...

        def generate_single_image(self, pipeline: Any, gen_config: Any, *_: Any) -> Any:
            gen_config._before = gen_config.save_image
            gen_config.save_image = gen_config.log_image = lambda *_: pytest.fail("previews are written by the worker")
            gen_config.output_ext = "mp4"
            sound = torch.ones(2, 8) if gen_config.prompt == "loud" else None
            return {"video": video, "fps": 24, "audio": sound, "audio_sample_rate": 16000, "output_path": None}

    model = Folder("cpu", get("toolkit.config_modules.ModelConfig")(), "fp32")
    wanted = [get("toolkit.config_modules.GenerateImageConfig")(prompt) for prompt in ("loud", "silent")]
    loud, silent = model.generate_images(wanted, lambda _: (None, None))
    assert [frame.tobytes() for frame in loud.frames] == [frame.tobytes() for frame in pictures] and loud.fps == 24
    assert loud.audio.sample_rate == 16000 and loud.audio.waveform.shape == (2, 8) and silent.audio is None


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
