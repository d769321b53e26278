"""Adapter files of models with two experts: one file each, under the names that samplers expect."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn

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
