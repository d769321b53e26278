"""A model class of an ai-toolkit folder on this side: its weights quantized and offloaded, its adapters, its clips with sound."""

from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch import nn

from models import memory
from models.adapters.files import network_for
from models.errors import UserError
from models.offload import is_offloaded
from models.quantize import is_quantized
from models.spec import NetworkSpec
from tests.models.toolkit_names import get

pytestmark = pytest.mark.usefixtures("toolkit_names")


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
