"""Adapter files of models with two experts: one file each, under the names that samplers expect."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn

from models.adapters.alphas import add_outside_alphas
from models.adapters.attach import AdapterNetwork
from models.adapters.files import check_numbers, network_for, put_on
from models.base import BaseModel
from models.errors import UserError
from models.spec import NetworkSpec

ENDINGS = ("_high_noise", "_low_noise")


class Expert(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([nn.Linear(6, 6)])


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.transformer_1, self.transformer_2 = Expert(), Expert()


class TwoExperts(BaseModel):
    arch = "two"
    is_multistage = True

    def load_model(self) -> None:
        torch.manual_seed(0)
        self.model = Pair()
        self.multistage_boundaries = [0.9, 0.0]
        self.trainable_multistage_boundaries = [0, 1]


class LowOnly(TwoExperts):
    def load_model(self) -> None:
        super().load_model()
        self.trainable_multistage_boundaries = [1]

    def get_model_to_train(self) -> nn.Module:
        return self.model.transformer_2


def trained(cls: type[BaseModel] = TwoExperts, **network: Any) -> Any:
    """A model with an adapter whose numbers are not zero."""
    model = cls("cpu", SimpleNamespace(), dtype="fp32")
    model.load_model()
    model.network = network_for(model, NetworkSpec(linear=2, **network))
    with torch.no_grad():
        for param in model.network.parameters():
            param.normal_()
    return model


def save(model: Any, path: Path) -> None:
    state = model.convert_lora_weights_before_save(model.network.public_state())
    model.save_lora({name: tensor.detach() for name, tensor in state.items()}, str(path), {"format": "pt"})


def keys(path: Path) -> list[str]:
    with safe_open(path, "pt") as file:
        assert file.metadata() == {"format": "pt"}
        return sorted(file.keys())


def changes(network: AdapterNetwork) -> dict[str, torch.Tensor]:
    return {path: layer.delta().detach() for path, layer in network.named_layers()}


@pytest.mark.parametrize("network", [{}, {"type": "lokr"}, {"type": "lokr", "old_lokr_format": True}], ids=str)
@pytest.mark.parametrize("named", ENDINGS)
def test_each_expert_has_a_file_and_either_name_gives_both(tmp_path: Path, network: Any, named: str) -> None:
    model = trained(**network)
    save(model, tmp_path / "a_000000250.safetensors")
    files = sorted(path.name for path in tmp_path.iterdir())
    assert files == [f"a_000000250{ending}.safetensors" for ending in ENDINGS]
    names = [keys(tmp_path / file) for file in files]
    assert names[0] == names[1]
    assert all("transformer" not in name for name in names[0])
    wanted = changes(model.network)
    model.network.detach()
    again = put_on(model, tmp_path / f"a_000000250{named}.safetensors")
    assert list(wanted) == ["transformer_1.blocks.0", "transformer_2.blocks.0"]
    assert all(torch.equal(delta, wanted[path]) for path, delta in changes(again).items())


@pytest.mark.parametrize("stem", ["", "transformer.", "base_model.model.", "lora_unet_"])
def test_experts_files_of_other_trainers_load_as_they_name_layers(tmp_path: Path, stem: str) -> None:
    model = trained()
    save(model, tmp_path / "a.safetensors")
    wanted = changes(model.network)
    model.network.detach()
    for ending in ENDINGS:
        path = tmp_path / f"a{ending}.safetensors"
        state = {key.removeprefix("diffusion_model."): tensor for key, tensor in load_file(path).items()}
        flat = stem.endswith("_")
        save_file({stem + (key.replace("blocks.0", "blocks_0") if flat else key): each for key, each in state.items()}, path)
    again = put_on(model, tmp_path / "a_low_noise.safetensors")
    assert all(torch.equal(delta, wanted[path]) for path, delta in changes(again).items())
    assert again.applied is not None and again.applied.layers == 2


def test_a_job_may_ask_for_one_file(tmp_path: Path) -> None:
    model = trained(split_multistage_loras=False)
    save(model, tmp_path / "a.safetensors")
    assert keys(tmp_path / "a.safetensors")[0] == "diffusion_model.transformer_1.blocks.0.lora_A.weight"
    wanted = changes(model.network)
    again = put_on(model, tmp_path / "a.safetensors")
    assert all(torch.equal(delta, wanted[path]) for path, delta in changes(again).items())


def test_where_one_expert_is_trained_there_is_its_file_alone(tmp_path: Path) -> None:
    model = trained(LowOnly)
    save(model, tmp_path / "a.safetensors")
    low = tmp_path / "a_low_noise.safetensors"
    assert [path.name for path in tmp_path.iterdir()] == [low.name]
    assert keys(low) == ["diffusion_model.blocks.0.lora_A.weight", "diffusion_model.blocks.0.lora_B.weight"]
    wanted = changes(model.network)
    assert all(torch.equal(delta, wanted[path]) for path, delta in changes(put_on(model, low)).items())
    low.rename(tmp_path / "a_high_noise.safetensors")
    with pytest.raises(UserError, match=r"a_high_noise\.safetensors is for an expert that this model does not train"):
        put_on(model, tmp_path / "a_high_noise.safetensors")


def test_a_fresh_adapter_starts_from_a_pair_of_files(tmp_path: Path) -> None:
    model = trained()
    save(model, tmp_path / "a.safetensors")
    wanted = changes(model.network)
    model.network.detach()
    fresh = network_for(model, NetworkSpec(linear=2, linear_alpha=3.0), start=tmp_path / "a_low_noise.safetensors")
    assert all(torch.allclose(delta, wanted[path], atol=1e-6) for path, delta in changes(fresh).items())


def test_an_architectures_own_way_of_saving_and_reading_is_used(tmp_path: Path) -> None:
    class Own(TwoExperts):
        def load_lora(self, file: str) -> Any:
            return {f"diffusion_model.{key}": tensor for key, tensor in torch.load(file).items()}

        def save_lora(self, state_dict: Any, output_path: str, metadata: Any) -> None:
            assert self.network is not None and self.network.network_config.split_multistage_loras
            torch.save({key.removeprefix("diffusion_model."): tensor for key, tensor in state_dict.items()}, output_path)

    model = trained(Own)
    save(model, tmp_path / "a.bin")
    wanted = changes(model.network)
    assert all(torch.equal(delta, wanted[path]) for path, delta in changes(put_on(model, tmp_path / "a.bin")).items())


BROKEN = {
    "NaN": (
        {"lora_B.weight": torch.full((6, 2), torch.nan)},
        r"12 of 12 numbers in the adapter's '{key}B\.weight' are not finite",
    ),
    "infinite": (
        {"lora_A.weight": torch.full((2, 6), torch.inf)},
        r"12 of 12 numbers in the adapter's '{key}A\.weight' are not finite",
    ),
    "of another rank": ({"lora_B.weight": torch.ones(6, 3)}, r"transformer_2\.blocks\.0 \(lora_B.weight of shape"),
    "alpha 0": (
        {"alpha": torch.tensor(0.0)},
        r"blocks\.0\.alpha' is 0, and the layer would change nothing; it has to be above 0",
    ),
    "alpha below 0": ({"alpha": torch.tensor(-2.0)}, r"blocks\.0\.alpha' is -2, and the layer would undo what was trained"),
    "no matrix": ({"lora_A.weight": torch.ones(2)}, r"'{key}A\.weight' has the shape \(2,\), which is no matrix"),
    "half": ({"lora_B.weight": None}, r"has '{key}A\.weight' for layer 'transformer_2\.blocks\.0'; it lacks lora_B\.weight"),
    "a layer of another model": (
        {"up.lora_A.weight": torch.ones(2, 6)},
        r"key 'diffusion_model\.transformer_2\.blocks\.0\.up\.lora_A",
    ),
}


@pytest.mark.parametrize("change, said", BROKEN.values(), ids=list(BROKEN))
def test_training_starts_from_no_broken_file_and_says_which_with_the_keys_in_it(tmp_path: Path, change: Any, said: str) -> None:
    model = trained(split_multistage_loras=False)
    save(model, tmp_path / "a.safetensors")
    model.network.detach()
    stem = "diffusion_model.transformer_2.blocks.0."
    state = load_file(tmp_path / "a.safetensors") | {stem + part: tensor for part, tensor in change.items()}
    save_file({key: tensor for key, tensor in state.items() if tensor is not None}, tmp_path / "b.safetensors")
    with pytest.raises(UserError, match=said.replace("{key}", r"diffusion_model\.transformer_2\.blocks\.0\.lora_")) as refused:
        network_for(model, NetworkSpec(linear=2), start=tmp_path / "b.safetensors")
    assert refused.value.message.startswith(f"{tmp_path / 'b.safetensors'}: ")
    assert refused.value.code == "bad_adapter"


def test_how_many_layers_an_adapter_acts_on_is_said(tmp_path: Path) -> None:
    model = trained(split_multistage_loras=False)
    save(model, tmp_path / "a.safetensors")
    model.network.detach()
    assert (
        str(put_on(model, tmp_path / "a.safetensors").applied)
        == "applied 2 of 2 layers of a.safetensors: 2 of the model's 2 layers"
    )


def test_an_infinite_alpha_that_means_nothing_is_let_pass() -> None:
    whole = {"a.lokr_w1": torch.ones(2, 2), "a.lokr_w2": torch.ones(2, 2), "a.alpha": torch.tensor(torch.inf)}
    check_numbers(whole)
    with pytest.raises(UserError, match=r"1 of 1 numbers in the adapter's 'a\.alpha' are not finite"):
        check_numbers(
            {"a.lora_A.weight": torch.ones(2, 2), "a.lora_B.weight": torch.ones(2, 2), "a.alpha": torch.tensor(torch.inf)}
        )


class Plain(BaseModel):
    """Two layers, and no names of its own."""

    arch = "plain"

    def load_model(self) -> None:
        torch.manual_seed(0)
        self.model = Expert()
        self.model.blocks.append(nn.Linear(6, 6))


def plain() -> Any:
    model = Plain("cpu", SimpleNamespace(), dtype="fp32")
    model.load_model()
    return model


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
