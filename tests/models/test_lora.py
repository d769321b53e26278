"""LoRA, against peft on the same layers and against diffusers as a reader of the saved file."""

import copy
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from diffusers import UNet2DConditionModel
from diffusers.utils import logging as diffusers_logging
from peft import LoraConfig, get_peft_model
from torch import nn

from models.adapters.attach import AdapterNetwork, new_network
from models.adapters.load import network_from_state
from models.archs.pocket.model import PocketModel, unet_config
from models.errors import UserError
from models.weights import load_tensors, save_tensors

RANK = 4


class Toy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 10)
        self.blocks = nn.ModuleList([nn.Linear(10, 10), nn.Linear(10, 10, bias=False)])
        self.norm = nn.LayerNorm(10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.tanh(self.first(x))
        for block in self.blocks:
            x = x + torch.tanh(block(self.norm(x)))
        return x


@pytest.fixture
def toy() -> Toy:
    torch.manual_seed(0)
    return Toy().requires_grad_(False)


@pytest.fixture(scope="module")
def unet() -> UNet2DConditionModel:
    torch.manual_seed(0)
    return UNet2DConditionModel(**unet_config([16, 32])).requires_grad_(False).eval()


def predict(unet: nn.Module) -> torch.Tensor:
    draw = torch.Generator().manual_seed(5)
    x, text = torch.randn(2, 12, 16, 16, generator=draw), torch.randn(2, 3, 384, generator=draw)
    return unet(x, torch.tensor([200.0, 800.0]), encoder_hidden_states=text, class_labels=text[:, 0], return_dict=False)[0]


def stirred(network: AdapterNetwork, size: float = 0.1) -> AdapterNetwork:
    """Give B numbers, as training would."""
    draw = torch.Generator().manual_seed(9)
    with torch.no_grad():
        for layer in network.layers.values():
            layer.lora_B.copy_(size * torch.randn(layer.lora_B.shape, generator=draw))
    return network


def test_a_new_adapter_changes_nothing_yet_can_learn(toy: Toy) -> None:
    x = torch.randn(3, 6)
    before = toy(x)
    network = new_network(toy, RANK, 8.0)
    assert torch.equal(toy(x), before)
    toy(x).square().sum().backward()
    for layer in network.layers.values():
        assert bool(layer.lora_B.grad.abs().sum() > 0)
        assert bool((layer.lora_A.grad == 0).all())
    assert all(param.grad is None for param in toy.parameters())


@pytest.mark.parametrize("alpha", [1.0, 4.0, 8.0])
def test_output_gradients_and_trained_weights_equal_those_of_peft(toy: Toy, alpha: float) -> None:
    x, wanted = torch.randn(5, 6), torch.randn(5, 10)
    names = ["first", "blocks.0", "blocks.1"]
    theirs = get_peft_model(copy.deepcopy(toy), LoraConfig(r=RANK, lora_alpha=alpha, target_modules=names))
    network = stirred(new_network(toy, RANK, alpha))
    layers = {name: network.layers[name.replace(".", "$")] for name in names}
    peft_layers = {name: theirs.base_model.model.get_submodule(name) for name in names}
    for name, layer in layers.items():
        peft_layers[name].lora_A["default"].weight.data.copy_(layer.lora_A.data)
        peft_layers[name].lora_B["default"].weight.data.copy_(layer.lora_B.data)

    def step(model: nn.Module, params: Any) -> torch.Tensor:
        optimizer = torch.optim.SGD(params, lr=0.1)
        loss = (model(x) - wanted).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    assert torch.allclose(toy(x), theirs(x), rtol=0, atol=1e-6)
    ours, other = step(toy, network.parameters()), step(theirs, [p for p in theirs.parameters() if p.requires_grad])
    assert torch.allclose(ours, other, rtol=0, atol=1e-6)
    for name, layer in layers.items():
        for mine, peft_one in ((layer.lora_A, peft_layers[name].lora_A), (layer.lora_B, peft_layers[name].lora_B)):
            assert torch.allclose(mine.grad, peft_one["default"].weight.grad, rtol=0, atol=1e-6)
            assert torch.allclose(mine, peft_one["default"].weight, rtol=0, atol=1e-6)


def saved_by_pocket(network: AdapterNetwork, path: Path) -> None:
    save_tensors(PocketModel.convert_lora_weights_before_save(SimpleNamespace(), network.public_state()), path)  # type: ignore[arg-type]


@pytest.fixture
def diffusers_words(caplog: pytest.LogCaptureFixture) -> Any:
    """What diffusers warns of: it names missing and unexpected keys there."""
    logger = diffusers_logging.get_logger("diffusers")
    logger.addHandler(caplog.handler)
    yield lambda: [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    logger.removeHandler(caplog.handler)


@pytest.mark.parametrize("alpha", [1.0, 4.0, 6.0])
def test_the_saved_file_does_the_same_in_diffusers(unet: Any, tmp_path: Path, alpha: float, diffusers_words: Any) -> None:
    network = stirred(new_network(unet, RANK, alpha))
    ours = predict(unet).detach()
    saved_by_pocket(network, tmp_path / "a.safetensors")
    network.detach()
    bare = predict(unet)
    reader = copy.deepcopy(unet)
    reader.load_lora_adapter(tmp_path, prefix="diffusion_model", weight_name="a.safetensors")
    assert diffusers_words() == []
    loaded = {name for name in reader.state_dict() if "lora_" in name}
    assert len(loaded) == len(load_tensors(tmp_path / "a.safetensors")) == 2 * len(network.layers)
    assert torch.allclose(predict(reader), ours, rtol=0, atol=1e-5)
    assert float((ours - bare).abs().max()) > 1e-3  # the adapter does something


def test_a_saved_adapter_loads_with_the_same_effect_and_its_multiplier_scales_it(unet: Any, tmp_path: Path) -> None:
    network = stirred(new_network(unet, RANK, 8.0, only=["attn2"]))
    ours = predict(unet)
    saved_by_pocket(network, tmp_path / "a.safetensors")
    network.detach()
    bare = predict(unet)
    state = PocketModel.convert_lora_weights_before_load(SimpleNamespace(), load_tensors(tmp_path / "a.safetensors"))  # type: ignore[arg-type]
    again = network_from_state(unet, state)
    assert torch.allclose(predict(unet), ours, rtol=0, atol=1e-6)
    again.multiplier = 0
    assert torch.equal(predict(unet), bare)
    again.detach()


def test_an_adapter_file_with_alphas_is_scaled_by_them(toy: Toy) -> None:
    x = torch.randn(3, 6)
    bare = toy(x)
    state = {"transformer.first.lora_A.weight": torch.randn(2, 6), "transformer.first.lora_B.weight": torch.randn(10, 2)}
    halved = network_from_state(toy, {**state, "transformer.first.alpha": torch.tensor(1.0)})
    with_alpha = toy.first(x)
    halved.detach()
    without_alpha = network_from_state(toy, state)
    full = toy.first(x)
    without_alpha.detach()
    base = toy.first(x)
    assert torch.allclose(2 * (with_alpha - base), full - base, atol=1e-5)
    assert torch.equal(toy(x), bare)


@pytest.mark.parametrize(
    ("only", "ignore", "chosen"),
    [
        ([], [], ["first", "blocks.0", "blocks.1"]),
        (["blocks"], [], ["blocks.0", "blocks.1"]),
        (["blocks", "first"], ["1"], ["first", "blocks.0"]),
        ([], ["blocks"], ["first"]),
    ],
)
def test_filters_choose_layers_by_parts_of_their_names(toy: Toy, only: list[str], ignore: list[str], chosen: list[str]) -> None:
    network = new_network(toy, RANK, 4.0, only, ignore)
    assert [name.replace("$", ".") for name in network.layers] == chosen


@pytest.mark.parametrize(("only", "ignore"), [(["attn"], []), ([], ["attn"])])
def test_a_pattern_that_matches_nothing_names_layers_that_exist(toy: Toy, only: list[str], ignore: list[str]) -> None:
    with pytest.raises(UserError, match=r"no layer's name contains 'attn'; there are: first, blocks\.0, blocks\.1"):
        new_network(toy, RANK, 4.0, only, ignore)


def test_filters_that_leave_nothing_are_refused(toy: Toy) -> None:
    with pytest.raises(UserError, match="leave no layer to train"):
        new_network(toy, RANK, 4.0, ["first"], ["first"])


def test_a_key_of_another_model_is_refused_by_name(toy: Toy) -> None:
    with pytest.raises(
        UserError, match=r"key 'transformer\.other\.lora_A\.weight' fits no layer of this model; layers are: first"
    ) as refused:
        network_from_state(toy, {"transformer.other.lora_A.weight": torch.zeros(2, 6)})
    assert refused.value.code == "bad_adapter"


def test_detaching_restores_the_model_exactly_and_leaves_no_trace(unet: Any) -> None:
    before, names = predict(unet), list(unet.state_dict())
    network = stirred(new_network(unet, RANK, 4.0))
    assert not torch.equal(predict(unet), before)
    assert list(unet.state_dict()) == names
    network.detach()
    assert torch.equal(predict(unet), before)


def test_gradient_checkpointing_gives_the_same_gradients(unet: Any) -> None:
    def gradients(checkpointing: bool) -> list[torch.Tensor]:
        model = copy.deepcopy(unet).train()
        if checkpointing:
            model.enable_gradient_checkpointing()
        torch.manual_seed(1)
        network = stirred(new_network(model, RANK, 4.0))
        predict(model).square().mean().backward()
        return [param.grad for param in network.parameters()]

    plain, checkpointed = gradients(False), gradients(True)
    assert all(bool(grad.abs().sum() > 0) for grad in plain)
    assert all(torch.equal(one, other) for one, other in zip(plain, checkpointed, strict=True))


def test_only_layers_inside_the_named_classes_are_trained() -> None:
    class Inner(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

    root = nn.ModuleDict({"inner": Inner(), "outer": nn.Linear(4, 4)})
    assert [path for path, _ in new_network(root, 2, 2.0, within=["Inner"]).named_layers()] == ["inner.linear"]
    assert len(list(new_network(root["inner"], 2, 2.0, within=["Inner"]).named_layers())) == 1
    with pytest.raises(UserError, match="leave no layer to train"):
        new_network(root, 2, 2.0, within=["Absent"])
