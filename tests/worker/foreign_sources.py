"""Two extension folders as people write them, one in each form, for the tests to put on disk."""

from pathlib import Path

import torch
from safetensors.torch import save_file

THEIRS = """
import os
import torch
from diffusers import FlowMatchEulerDiscreteScheduler
from PIL import Image
from safetensors.torch import load_file
from toolkit.advanced_prompt_embeds import AdvancedPromptEmbeds
from toolkit.basic import flush
from toolkit.config_modules import GenerateImageConfig, ModelConfig
from toolkit.models.base_model import BaseModel
from toolkit.samplers.custom_flowmatch_sampler import CustomFlowMatchEulerDiscreteScheduler

SHADE = 10


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = torch.nn.ModuleList([torch.nn.Linear(3, 3)])
        self.head = torch.nn.Linear(3, 3)

    def forward(self, x):
        return self.head(torch.tanh(self.blocks[0](x.movedim(1, -1)))).movedim(-1, 1)


class TinyModel(BaseModel):
    arch = "tiny_theirs"
    use_old_lokr_format = False

    def __init__(self, device, model_config: ModelConfig, dtype="bf16", custom_pipeline=None, noise_scheduler=None, **kwargs):
        super().__init__(device, model_config, dtype, custom_pipeline, noise_scheduler, **kwargs)
        self.is_flow_matching = True
        self.is_transformer = True
        self.target_lora_modules = ["Net"]
        self.scale = model_config.model_kwargs.get("scale", 1.0)

    @staticmethod
    def get_train_scheduler():
        return CustomFlowMatchEulerDiscreteScheduler(shift=3.0)

    def get_bucket_divisibility(self):
        return 8

    def load_model(self):
        self.print_and_status_update("Loading")
        self.model = Net()
        self.model.load_state_dict(load_file(os.path.join(self.model_config.name_or_path, "net.safetensors")))
        self.model.to(self.device_torch, dtype=self.torch_dtype)
        flush()

    def encode_images(self, image_list, device=None, dtype=None):
        return torch.stack(list(image_list)).to(device or self.device_torch, dtype or self.torch_dtype)

    def get_prompt_embeds(self, prompt):
        return AdvancedPromptEmbeds(text_embeds=[torch.ones(2, 3) for _ in prompt])

    def get_noise_prediction(self, latent_model_input, timestep, text_embeddings, **kwargs):
        return self.model(latent_model_input) * self.scale

    def get_loss_target(self, *args, **kwargs):
        return (kwargs.get("noise") - kwargs.get("batch").latents).detach()

    def get_generation_pipeline(self):
        return self

    def generate_single_image(self, pipeline, gen_config: GenerateImageConfig, conditional_embeds, unconditional_embeds, generator, extra):
        return Image.new("RGB", (gen_config.width, gen_config.height), (SHADE, 0, 0))

    def get_model_has_grad(self):
        return False

    def get_te_has_grad(self):
        return False

    def get_transformer_block_names(self):
        return ["blocks"]

    def convert_lora_weights_before_save(self, state_dict):
        return {k.replace("transformer.", "diffusion_model."): v for k, v in state_dict.items()}

    def convert_lora_weights_before_load(self, state_dict):
        return {k.replace("diffusion_model.", "transformer."): v for k, v in state_dict.items()}
"""

CARD = """
from models.arch import Arch
from models.spec import Spec, entry


class Options(Spec):
    width: int = entry(8, title="Width", section="Advanced", order=80, ge=4, help="Width.")


ARCHS = [Arch(name="tiny_ours", label="Ours", description="In our form.", code=".model:Model", options=Options, bucket_divisibility=8,
              random_init=True)]
"""
MODEL = "from models.base import BaseModel\n\n\nclass Model(BaseModel):\n    arch = 'tiny_ours'\n"


def theirs(folder: Path, source: str = THEIRS, name: str = "tiny_theirs") -> Path:
    """An ai-toolkit package: a folder with a class, registered by a one-line list in the package above it."""
    inner = folder / "network"
    inner.mkdir(parents=True)
    (inner / "__init__.py").write_text("from .model import TinyModel\n")
    (inner / "model.py").write_text(source.replace("tiny_theirs", name))
    (folder / "__init__.py").write_text("from .network import TinyModel\n\nAI_TOOLKIT_MODELS = [TinyModel]\n")
    return folder


def ours(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "card.py").write_text(CARD)
    (folder / "model.py").write_text(MODEL)
    return folder


def net_weights(folder: Path) -> Path:
    folder.mkdir()
    torch.manual_seed(0)
    names = {"blocks.0.weight": (3, 3), "blocks.0.bias": (3,), "head.weight": (3, 3), "head.bias": (3,)}
    save_file({name: torch.randn(shape) for name, shape in names.items()}, folder / "net.safetensors")
    return folder
