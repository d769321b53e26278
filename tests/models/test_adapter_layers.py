"""Adapters beside convolutions and quantized layers, dropout and merging; convolutions against peft's."""

import copy
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from optimum import quanto
from peft import LoraConfig, get_peft_model
from torch import nn

from models.adapters.attach import AdapterNetwork, merge_into_base, new_network
from models.adapters.files import network_for
from models.adapters.load import network_from_state
from models.errors import UserError
from models.spec import NetworkSpec

KINDS = [{"kind": "lora"}, {"kind": "lokr"}, {"kind": "lokr", "full_rank": False}]


class Convolutions(nn.Module):
    def __init__(self, dilation: int = 2) -> None:
        super().__init__()
        self.wide = nn.Conv2d(6, 8, 3, padding=1)
        self.strided = nn.Conv2d(8, 8, 3, stride=2, dilation=dilation)
        self.narrow = nn.Conv2d(8, 6, 1)
        self.grouped = nn.Conv2d(6, 6, 3, groups=3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.grouped(self.narrow(torch.tanh(self.strided(torch.tanh(self.wide(x))))))


@pytest.fixture
def convolutions() -> Convolutions:
    torch.manual_seed(0)
    return Convolutions().requires_grad_(False)


@pytest.fixture
def linears() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64)).requires_grad_(False)


def stirred(network: AdapterNetwork) -> AdapterNetwork:
    draw = torch.Generator().manual_seed(9)
    with torch.no_grad():
        for param in network.parameters():
            param.copy_(0.3 * torch.randn(param.shape, generator=draw))
    return network


def ranks(network: AdapterNetwork) -> dict[str, tuple[int, float]]:
    return {path: (layer.rank, layer.alpha) for path, layer in network.named_layers()}


def test_convolutions_equal_those_of_peft() -> None:
    torch.manual_seed(0)
    convolutions = Convolutions(dilation=1).requires_grad_(False)  # peft leaves dilation out
    names, x = ["wide", "strided", "narrow"], torch.randn(2, 6, 12, 12)
    config = LoraConfig(
        r=2, lora_alpha=3, target_modules=names, rank_pattern={"narrow": 4}, alpha_pattern={"narrow": 8}
    )  # fmt: skip
    theirs: Any = get_peft_model(copy.deepcopy(convolutions), config)
    network = stirred(new_network(convolutions, 4, 8.0, conv=2, conv_alpha=3.0))
    assert ranks(network) == {"wide": (2, 3.0), "strided": (2, 3.0), "narrow": (4, 8.0)}
    for path, layer in network.named_layers():
        other = theirs.base_model.model.get_submodule(path)
        for mine, peft_one in ((layer.lora_A, other.lora_A), (layer.lora_B, other.lora_B)):
            assert mine.shape == peft_one["default"].weight.shape
            peft_one["default"].weight.data.copy_(mine.data)
    assert torch.allclose(convolutions(x), theirs(x), rtol=0, atol=1e-5)  # sums of 8 * 9 numbers
    convolutions(x).square().mean().backward()
    theirs(x).square().mean().backward()
    for path, layer in network.named_layers():
        other = theirs.base_model.model.get_submodule(path)
        for mine, peft_one in ((layer.lora_A, other.lora_A), (layer.lora_B, other.lora_B)):
            assert torch.allclose(mine.grad, peft_one["default"].weight.grad, rtol=1e-4, atol=1e-6)


def test_wide_convolutions_are_trained_only_with_a_rank_of_their_own(convolutions: Convolutions) -> None:
    assert ranks(new_network(convolutions, 4, 2.0)) == {"narrow": (4, 2.0)}
    assert ranks(new_network(convolutions, 4, 2.0, conv=3)) == {"wide": (3, 3.0), "strided": (3, 3.0), "narrow": (4, 2.0)}
    with pytest.raises(
        UserError, match=r"contains 'wide'; it names convolutions, which network\.conv gives a rank; there are: narrow"
    ):
        new_network(convolutions, 4, 2.0, ["wide"])


@pytest.mark.parametrize("settings", KINDS, ids=str)
def test_merging_does_what_the_adapter_does_and_is_undone_by_its_negative(convolutions: Convolutions, settings: Any) -> None:
    x, before = torch.randn(2, 6, 12, 12), [param.clone() for param in convolutions.parameters()]
    network = stirred(new_network(convolutions, 2, 1.0, conv=2, conv_alpha=1.0, **settings))
    network.multiplier = 0.6
    wanted = convolutions(x)
    merge_into_base(network, 0.6)
    network.multiplier = 0.0
    assert torch.allclose(convolutions(x), wanted, rtol=0, atol=1e-4)  # fp32 sums of 8 * 9 numbers, three layers deep
    merge_into_base(network, -0.6)
    assert all(torch.allclose(one, two, rtol=0, atol=1e-6) for one, two in zip(convolutions.parameters(), before, strict=True))


@pytest.mark.parametrize("settings", KINDS, ids=str)
def test_a_convolution_adapter_comes_back_from_its_state(convolutions: Convolutions, settings: Any) -> None:
    x = torch.randn(2, 6, 12, 12)
    network = stirred(new_network(convolutions, 2, 1.0, conv=2, **settings))
    wanted, state = convolutions(x), network.public_state()
    network.detach()
    network_from_state(convolutions, state)
    assert torch.allclose(convolutions(x), wanted, rtol=0, atol=1e-6)


@pytest.mark.parametrize("qtype", [quanto.qfloat8, quanto.qint8, quanto.qint4], ids=lambda qtype: qtype.name)
@pytest.mark.parametrize("settings", KINDS, ids=str)
def test_beside_quantized_layers_it_adds_what_it_adds_beside_plain_ones(
    linears: nn.Sequential, qtype: Any, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = torch.randn(3, 64)
    quanto.quantize(linears, weights=qtype)
    quanto.freeze(linears)
    monkeypatch.setattr(quanto.QTensor, "dequantize", lambda _: pytest.fail("dequantized to look at its shape"))
    network = stirred(new_network(linears, 2, 1.0, **settings))
    monkeypatch.undo()
    plain = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64)).requires_grad_(False)
    for layer, quantized in ((plain[0], linears[0]), (plain[2], linears[2])):
        layer.weight.copy_(quantized.weight.dequantize())
        layer.bias.copy_(quantized.bias)
    wanted = network_from_state(plain, network.public_state())
    assert torch.allclose(linears(x), plain(x), rtol=0, atol=1e-4)  # quanto multiplies in another order
    linears(x).square().mean().backward()
    assert all(bool(param.grad.abs().sum() > 0) for param in network.parameters())
    wanted.detach()


def test_merging_into_a_quantized_base_is_refused_before_anything_changes(linears: nn.Sequential) -> None:
    quanto.quantize(linears, weights=quanto.qint8, exclude=["0"])
    quanto.freeze(linears)
    before = linears[0].weight.clone()
    network = stirred(new_network(linears, 2, 2.0))
    with pytest.raises(UserError, match=r"cannot be merged into layer '2', which is quantized .* merge before quantizing"):
        merge_into_base(network)
    assert torch.equal(linears[0].weight, before)


def test_dropout_acts_in_training_only_and_is_drawn_from_the_global_generator(linears: nn.Sequential) -> None:
    x = torch.randn(400, 64)
    network = stirred(new_network(linears, 8, 8.0, ["0"], dropout=0.25))
    layer, base = network.pairs[0][1], linears[0]
    linears.eval()
    torch.manual_seed(1)
    still = layer(x, base)
    assert torch.equal(still, x @ layer.lora_A.T @ layer.lora_B.T)
    linears.train()
    torch.manual_seed(1)
    once, other = layer(x, base), layer(x, base)
    torch.manual_seed(1)
    assert torch.equal(layer(x, base), once)
    assert not torch.equal(other, once)
    torch.manual_seed(1)
    wanted = nn.functional.dropout(x @ layer.lora_A.T, 0.25) @ layer.lora_B.T  # torch's own, on what A gives
    assert torch.allclose(once, wanted, rtol=0, atol=1e-5)


def test_a_rank_for_convolutions_that_are_not_there_is_refused(linears: nn.Sequential) -> None:
    with pytest.raises(UserError, match=r"network\.conv 2 is a rank for convolutions larger than 1x1"):
        new_network(linears, 4, 4.0, conv=2)


def test_the_network_section_of_a_job_is_followed(linears: nn.Sequential) -> None:
    def made(alpha_is_rank: bool = False, blocks: Any = None, **keys: Any) -> AdapterNetwork:
        model = SimpleNamespace(
            get_model_to_train=lambda: linears, get_transformer_block_names=lambda: blocks, target_lora_modules=[],
            device_torch=torch.device("cpu"),
        )  # fmt: skip
        return network_for(model, NetworkSpec(**keys), alpha_is_rank)

    assert ranks(made(linear=4, linear_alpha=2.0)) == {"0": (4, 2.0), "2": (4, 2.0)}
    assert ranks(made(linear=4, linear_alpha=2.0, alpha_is_rank=True)) == {"0": (4, 4.0), "2": (4, 4.0)}
    assert ranks(made(linear=4)) == {"0": (4, 4.0), "2": (4, 4.0)}
    assert list(ranks(made(blocks=["2"]))) == ["2"]
    factored = {"type": "lokr", "linear": 2, "linear_alpha": 1.0, "lokr_full_rank": False, "alpha_is_rank": True}
    assert (
        ranks(made(**factored))
        != ranks(made(**factored, old_lokr_format=True))
        == ranks(made(**{**factored, "alpha_is_rank": False}))
    )
    assert list(ranks(made(blocks=["2"], only_if_contains=["transformer.0"]))) == ["0"]
    assert list(ranks(made(ignore_if_contains=["0"]))) == ["2"]
    assert made(dropout=0.5).pairs[0][1].dropout == 0.5
    lokr = made(type="lokr", linear=2, lokr_full_rank=False, lokr_factor=4)
    assert (lokr.kind, lokr.pairs[0][1].left, lokr.pairs[0][1].rank) == ("lokr", (4, 4), 2)
    assert made(type="lokr").pairs[0][1].rank is None
    assert made(type="lokr", old_lokr_format=True).old_format
    assert not made(type="lokr").old_format and not made(type="lora", old_lokr_format=True).old_format
