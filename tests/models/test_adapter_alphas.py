"""Alphas that stand outside an adapter's tensors: in PEFT's config, in diffusers' and in kohya's header."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from models.adapters.alphas import add_outside_alphas
from models.adapters.attach import AdapterNetwork
from models.adapters.files import put_on
from models.base import BaseModel
from models.errors import UserError


class Plain(BaseModel):
    """Two layers, and no names of its own."""

    arch = "plain"

    def load_model(self) -> None:
        torch.manual_seed(0)
        self.model = nn.Module()
        self.model.blocks = nn.ModuleList([nn.Linear(6, 6), nn.Linear(6, 6)])


def plain() -> Any:
    model = Plain("cpu", SimpleNamespace(), dtype="fp32")
    model.load_model()
    return model


def changes(network: AdapterNetwork) -> dict[str, torch.Tensor]:
    """What the adapter adds to each layer's weight."""
    return {path: layer.delta().detach() for path, layer in network.named_layers()}


@pytest.mark.parametrize(
    "config, said",
    [
        ({"lora_alpha": 6}, "alpha 6 comes from adapter_config.json"),
        (
            {"lora_alpha": 6, "alpha_pattern": {"blocks.1": 1, "0": 5}, "rank_pattern": {"^blocks.1": 3}},
            "alpha 5, 1 comes from adapter_config.json",
        ),
        (
            {"lora_alpha": 6, "use_rslora": True},
            "alpha 8.48528 comes from adapter_config.json, with use_rslora's sqrt(rank)",
        ),
    ],
    ids=["lora_alpha", "patterns", "rslora"],
)
@pytest.mark.parametrize("kind", ["folder", "header"])
def test_a_peft_adapter_acts_as_in_peft(tmp_path: Path, config: Any, said: str, kind: str) -> None:
    from peft import LoraConfig, get_peft_model

    theirs = get_peft_model(plain().model, LoraConfig(r=2, target_modules=["0", "1"], **config))
    layers = {path: theirs.base_model.model.blocks[number] for number, path in enumerate(("blocks.0", "blocks.1"))}
    for layer in layers.values():
        nn.init.normal_(layer.lora_B["default"].weight)
    theirs.save_pretrained(tmp_path)
    path = tmp_path / "adapter_model.safetensors"
    if kind == "header":
        given = {f"transformer.{key}": value for key, value in json.loads((tmp_path / "adapter_config.json").read_text()).items()}
        state = {key.replace("base_model.model.", "transformer."): tensor for key, tensor in load_file(path).items()}
        path = tmp_path / "pytorch_lora_weights.safetensors"
        save_file(state, path, {"lora_adapter_metadata": json.dumps(given)})
        said = said.replace("adapter_config.json", "the header's lora_adapter_metadata")
    network = put_on(plain(), path)
    assert str(network.applied).endswith(f"layers; {said}")
    for name, delta in changes(network).items():
        torch.testing.assert_close(delta, layers[name].get_delta_weight("default").detach())


LAYER = {"transformer.blocks.0.lora_A.weight": torch.ones(2, 6), "transformer.blocks.0.lora_B.weight": torch.ones(6, 2)}
OUTSIDE = {
    "kohya": ({"ss_network_alpha": "1.0"}, {}, {"transformer.blocks.0.alpha": 1.0}),
    "kohya without a number": ({"ss_network_alpha": "None"}, {}, {}),
    "tensors count": (
        {"ss_network_alpha": "1.0"},
        {"transformer.blocks.0.alpha": torch.tensor(4.0)},
        {"transformer.blocks.0.alpha": 4.0},
    ),
    "alpha 0": ({"ss_network_alpha": "0"}, {}, "the header's ss_network_alpha: lora_alpha is 0, which is no number above 0"),
    "another kind of PEFT": (
        {"lora_adapter_metadata": json.dumps({"transformer.peft_type": "LOHA"})},
        {},
        "the header's lora_adapter_metadata says peft_type LOHA; of PEFT's adapters only LORA is read here",
    ),
}


@pytest.mark.parametrize("header, more, expected", OUTSIDE.values(), ids=list(OUTSIDE))
def test_an_alpha_outside_the_tensors_counts_where_they_hold_none(tmp_path: Path, header: Any, more: Any, expected: Any) -> None:
    save_file(LAYER | more, tmp_path / "a.safetensors", header)
    if isinstance(expected, str):
        with pytest.raises(UserError) as refused:
            put_on(plain(), tmp_path / "a.safetensors")
        assert refused.value.message == f"{tmp_path / 'a.safetensors'}: {expected}"
        return
    state, _ = add_outside_alphas(tmp_path / "a.safetensors", LAYER | more)
    assert {key: float(tensor) for key, tensor in state.items() if key.endswith("alpha")} == expected


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_an_adapter_in_8_bits_acts_as_its_numbers_in_fp32(tmp_path: Path, dtype: torch.dtype) -> None:
    state = {key: torch.full(tensor.shape, 0.5) for key, tensor in LAYER.items()} | {
        "transformer.blocks.0.alpha": torch.tensor(1.0)
    }
    save_file({key: tensor.to(dtype) for key, tensor in state.items()}, tmp_path / "a.safetensors")
    (delta,) = changes(put_on(plain(), tmp_path / "a.safetensors")).values()
    assert torch.equal(delta, torch.full((6, 6), 0.25))


def test_a_folder_of_peft_is_refused_with_the_file_to_name(tmp_path: Path) -> None:
    save_file(LAYER, tmp_path / "adapter_model.safetensors")
    with pytest.raises(UserError, match=r"a folder that PEFT saved; name the adapter_model\.safetensors in it"):
        put_on(plain(), tmp_path)
