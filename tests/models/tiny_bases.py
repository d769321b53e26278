"""Tiny bases of every kind, and the ways in which their weights are loaded."""

import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from diffusers import AutoencoderKLFlux2
from safetensors.torch import load_file
from transformers import Qwen3Model

from models import catalog
from models.archs.example import model as example
from models.archs.pocket import model as pocket
from models.components import load_part, load_text_encoder
from models.toolkit.config_modules import ModelConfig
from models.toolkit.wan import Wan21
from models.weights import read_metadata, save_tensors
from tests import dropin_tiny
from tests.models.klein import tiny_klein

Tensors = dict[str, torch.Tensor]


def load_klein(folder: Path) -> Any:
    return tiny_klein.load(folder)


def load_klein_file(folder: Path) -> Any:
    return tiny_klein.load(folder / "tuned.safetensors", te_name_or_path=str(folder), vae_path=str(folder))


def load_pocket(folder: Path) -> Any:
    options = catalog.arch("pocket").options()
    config = SimpleNamespace(
        name_or_path=str(folder / "pocket.safetensors"), te_name_or_path=str(folder / "minilm"), model_kwargs=options
    )
    made = pocket.PocketModel("cpu", config, dtype="fp32")
    made.load_model()
    return made


def load_example(folder: Path) -> Any:
    options = SimpleNamespace(max_text_length=64)
    config = SimpleNamespace(name_or_path=str(folder), te_name_or_path=None, vae_path=None, model_kwargs=options)
    made = example.ExampleModel("cpu", config, dtype="fp32")
    made.load_model()
    return made


def load_wan(folder: Path) -> Any:
    made = Wan21("cpu", ModelConfig(name_or_path=str(folder), dtype="fp32"), dtype="fp32")
    made.load_model()
    return made


DIFFUSERS, TRANSFORMERS = "diffusion_pytorch_model.safetensors", "model.safetensors"
LOADS: dict[str, tuple[Callable[[Path], Any], tuple[str, ...]]] = {
    "klein": (load_klein, (f"transformer/{DIFFUSERS}", f"vae/{DIFFUSERS}", f"text_encoder/{TRANSFORMERS}")),
    "klein_file": (load_klein_file, ("tuned.safetensors",)),
    "pocket": (load_pocket, ("pocket.safetensors", f"minilm/{TRANSFORMERS}")),
    "example": (load_example, (f"transformer/{TRANSFORMERS}", f"vae/{DIFFUSERS}", f"text_encoder/{TRANSFORMERS}")),
    "wan": (load_wan, (f"transformer/{DIFFUSERS}", f"vae/{DIFFUSERS}", f"text_encoder/{TRANSFORMERS}")),
}


SMALL = {"klein": f"vae/{DIFFUSERS}", "klein_text": f"text_encoder/{TRANSFORMERS}", "klein_file": "tuned.safetensors"}


def load_small(base: str, folder: Path) -> Any:
    """The part alone, by the three ways into a module: diffusers, transformers, a file of ours."""
    if base == "klein":
        return load_part(AutoencoderKLFlux2, folder / "vae", torch.float32)
    if base == "klein_text":
        return load_text_encoder(str(folder), "text_encoder", Qwen3Model, torch.float32, num_layers=28)
    return load_klein_file(folder)


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A tiny base of each kind; only to be read."""
    from transformers import BertConfig, BertModel

    from models.archs.flux2_klein.model import write_tiny
    from models.tiny import byte_tokenizer

    root = tmp_path_factory.mktemp("bases")
    made = {name: root / name for name in ("klein", "pocket", "example", "wan")}
    write_tiny(made["klein"])
    made["klein_file"] = made["klein"]
    load_klein(made["klein"]).save_model(made["klein"] / "tuned.safetensors", {}, torch.float32)
    pocket.write_tiny(made["pocket"])
    small = BertConfig(vocab_size=272, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2)
    BertModel(small).save_pretrained(made["pocket"] / "minilm")
    byte_tokenizer().save_pretrained(made["pocket"] / "minilm")
    example.write_tiny(made["example"])
    dropin_tiny.wan(made["wan"], None)  # type: ignore[arg-type]
    return made


@pytest.fixture
def changed(bases: dict[str, Path], tmp_path: Path) -> Callable[[str, str, Callable[[Tensors], None]], Path]:
    """`changed(base, file, change)`: a copy of a base whose file has other tensors; the other files are links."""

    def make(base: str, file: str, change: Callable[[Tensors], None]) -> Path:
        folder = tmp_path / base
        shutil.copytree(bases[base], folder, copy_function=lambda a, b: Path(b).symlink_to(a))
        tensors, header = load_file(folder / file), read_metadata(folder / file)
        change(tensors)
        (folder / file).unlink()
        save_tensors(tensors, folder / file, header)
        return folder

    return make
