"""LoKr, against peft on the same layers, Kronecker products in float64, and diffusers as a reader of the saved file."""

import copy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from diffusers import UNet2DConditionModel
from diffusers.loaders.lora_conversion_utils import _convert_non_diffusers_lokr_to_diffusers
from peft import LoKrConfig, get_peft_model
from peft.tuners.lokr.layer import factorization as peft_factorization
from torch import nn

from models.adapters.attach import AdapterNetwork, merge_into_base, new_network
from models.adapters.load import network_from_state
from models.adapters.lokr import factorization
from models.archs.pocket.model import PocketModel, unet_config
from models.errors import UserError
from models.weights import load_tensors, save_tensors

GOLDEN = [  # measured on ai-toolkit
    (512, -1, (16, 32)),
    (1024, -1, (32, 32)),
    (3072, -1, (48, 64)),
    (3840, -1, (60, 64)),
    (4096, -1, (64, 64)),
    (5120, -1, (64, 80)),
    (6144, -1, (64, 96)),
    (12288, -1, (96, 128)),
    (1000, 16, (10, 100)),
]
SHAPES: list[dict[str, Any]] = [
    {"full_rank": True},
    {"full_rank": False},
    {"full_rank": False, "factor": 2},
    {"full_rank": True, "factor": 4},
]


class Toy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(12, 20)
        self.blocks = nn.ModuleList([nn.Linear(20, 20), nn.Linear(20, 20, bias=False)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.tanh(self.first(x))
        for block in self.blocks:
            x = x + torch.tanh(block(x))
        return x


@pytest.fixture
def toy() -> Toy:
    torch.manual_seed(0)
    return Toy().requires_grad_(False)


def stirred(network: AdapterNetwork) -> AdapterNetwork:
    """Give every factor numbers, as training would."""
    draw = torch.Generator().manual_seed(9)
    with torch.no_grad():
        for param in network.parameters():
            param.copy_(0.3 * torch.randn(param.shape, generator=draw))
    return network


def product(state: dict[str, torch.Tensor], path: str) -> torch.Tensor:
    """LyCORIS's formula in float64, from a file's tensors: kron(w1, w2), scaled by alpha / rank if w2 has a rank."""
    part = {key.removeprefix(f"{path}."): tensor.double() for key, tensor in state.items() if key.startswith(f"{path}.")}
    if "lokr_w2" in part:
        return torch.kron(part["lokr_w1"], part["lokr_w2"])
    rank = part["lokr_w2_b"].shape[0]
    return float(part["alpha"]) / rank * torch.kron(part["lokr_w1"], part["lokr_w2_a"] @ part["lokr_w2_b"])


@pytest.mark.parametrize(("size", "factor", "wanted"), GOLDEN)
def test_sizes_are_split_as_in_ai_toolkit(size: int, factor: int, wanted: tuple[int, int]) -> None:
    assert factorization(size, factor) == wanted


def test_sizes_are_split_as_in_peft() -> None:
    pairs = [(size, factor) for size in range(1, 300) for factor in (-1, 1, 2, 3, 4, 7, 8, 16, 50)]
    assert [factorization(*pair) for pair in pairs] == [peft_factorization(*pair) for pair in pairs]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_new_adapter_changes_nothing_yet_can_learn(toy: Toy, shape: dict[str, Any]) -> None:
    x = torch.randn(3, 12)
    before = toy(x)
    network = new_network(toy, 2, 1.0, kind="lokr", **shape)
    assert torch.equal(toy(x), before)
    toy(x).square().sum().backward()
    for _, layer in network.named_layers():
        last = layer.lokr_w2 if layer.rank is None else layer.lokr_w2_b
        assert bool(last.grad.abs().sum() > 0)
        assert bool(layer.lokr_w1.abs().sum() > 0)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("axes", [(), (2,), (2, 3)], ids=str)
def test_output_is_that_of_the_whole_product(toy: Toy, shape: dict[str, Any], axes: tuple[int, ...]) -> None:
    network = stirred(new_network(toy, 2, 3.0, kind="lokr", **shape))
    network.multiplier = 0.7
    state = network.public_state()
    x = torch.randn(*axes, 12)
    wanted = toy.first.bias.double() + x.double() @ (
        toy.first.weight.double() + 0.7 * product(state, "transformer.first")
    ).T  # fmt: skip
    assert torch.allclose(toy.first(x).double(), wanted, rtol=0, atol=1e-5)  # fp32 sums of 12 numbers


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_shapes_output_and_gradients_equal_those_of_peft(toy: Toy, shape: dict[str, Any]) -> None:
    rank, factor = 2, shape.get("factor", -1)
    given = 100 if shape["full_rank"] else rank  # a rank beyond every side makes peft keep w2 whole
    config = LoKrConfig(r=given, alpha=given, decompose_factor=factor, target_modules=["first", "blocks.0", "blocks.1"])
    theirs: Any = get_peft_model(copy.deepcopy(toy), config).base_model.model
    network = stirred(new_network(toy, rank, float(rank), kind="lokr", **shape))
    for path, layer in network.named_layers():
        other = theirs.get_submodule(path)
        for name, param in layer.named_parameters():
            assert getattr(other, name)["default"].shape == param.shape
            getattr(other, name)["default"].data.copy_(param.data)
    x = torch.randn(5, 12)
    assert torch.allclose(toy(x), theirs(x), rtol=0, atol=1e-6)
    toy(x).square().mean().backward()
    theirs(x).square().mean().backward()
    for path, layer in network.named_layers():
        for name, param in layer.named_parameters():
            assert torch.allclose(param.grad, getattr(theirs.get_submodule(path), name)["default"].grad, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("layout", [{"padding": 1}, {"stride": 2}, {"padding": "same", "padding_mode": "circular"}], ids=str)
def test_convolutions_equal_one_convolution_with_the_changed_weight(shape: dict[str, Any], layout: dict[str, Any]) -> None:
    torch.manual_seed(0)
    root = nn.Sequential(nn.Conv2d(12, 20, 3, **layout), nn.Conv2d(20, 8, 1)).requires_grad_(False)
    x = torch.randn(2, 12, 8, 8)
    network = stirred(new_network(root, 2, 1.0, kind="lokr", conv=2, conv_alpha=1.0, **shape))
    ours = root(x)
    assert [layer.rank for _, layer in network.named_layers()] == [None if shape["full_rank"] else 2] * 2
    merged = copy.deepcopy(root).double()
    network.detach()
    for (_, layer), module in zip(network.named_layers(), merged, strict=True):
        first, second = layer.lokr_w1.double(), layer.lokr_w2.double() if layer.rank is None else None
        if second is None:
            k, n = layer.right
            second = 0.5 * (layer.lokr_w2_a.double() @ layer.lokr_w2_b.double()).reshape(k, n, *module.kernel_size)
        module.weight.data += torch.kron(first[:, :, None, None], second).detach()
        module._forward_hooks.clear()
    assert torch.allclose(ours.double(), merged(x.double()), rtol=0, atol=1e-4)  # fp32 sums of 12 * 9 numbers


@pytest.fixture(scope="module")
def unet() -> Any:
    torch.manual_seed(0)
    return UNet2DConditionModel(**unet_config([16, 32])).requires_grad_(False).eval()


def predict(unet: nn.Module) -> torch.Tensor:
    draw = torch.Generator().manual_seed(5)
    x, text = torch.randn(2, 12, 16, 16, generator=draw), torch.randn(2, 3, 384, generator=draw)
    return unet(x, torch.tensor([200.0, 800.0]), encoder_hidden_states=text, class_labels=text[:, 0], return_dict=False)[0]


@pytest.mark.parametrize(("full_rank", "alpha"), [(True, 4.0), (False, 1.0), (False, 4.0)])
def test_the_saved_file_does_the_same_in_diffusers(unet: Any, tmp_path: Path, full_rank: bool, alpha: float) -> None:
    network = stirred(new_network(unet, 4, alpha, only=["attn2"], kind="lokr", full_rank=full_rank))
    ours = predict(unet)
    tensors = PocketModel.convert_lora_weights_before_save(SimpleNamespace(), network.public_state())  # type: ignore[arg-type]
    save_tensors(tensors, tmp_path / "a.safetensors")
    network.detach()
    reader = copy.deepcopy(unet)
    reader.load_lora_adapter(
        _convert_non_diffusers_lokr_to_diffusers(load_tensors(tmp_path / "a.safetensors")), prefix="transformer"
    )
    assert torch.allclose(predict(reader), ours, rtol=0, atol=1e-5)
    assert float((ours - predict(unet)).detach().abs().max()) > 1e-3  # the adapter does something


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("old_format", [False, True])
def test_both_formats_come_back_bit_for_bit(toy: Toy, shape: dict[str, Any], old_format: bool, tmp_path: Path) -> None:
    network = stirred(new_network(toy, 2, 0.3, kind="lokr", old_format=old_format, **shape))
    x = torch.randn(3, 12)
    ours = toy(x)
    save_tensors(network.public_state(), tmp_path / "a.safetensors")
    network.detach()
    again = network_from_state(toy, load_tensors(tmp_path / "a.safetensors"))
    assert torch.equal(toy(x), ours)
    assert again.kind == "lokr"
    assert all(torch.equal(one, two) for one, two in zip(network.parameters(), again.parameters(), strict=True))


def test_key_names_of_both_formats(toy: Toy) -> None:
    names = {old: list(new_network(toy, 2, 2.0, kind="lokr", old_format=old).public_state()) for old in (False, True)}
    assert names[False][3:6] == [f"transformer.blocks.0.{part}" for part in ("lokr_w1", "lokr_w2", "alpha")]
    assert names[True][3:6] == [f"lycoris_blocks_0.{part}" for part in ("lokr_w1", "lokr_w2", "alpha")]
    thin = new_network(toy, 1, 1.0, only=["first"], kind="lokr", full_rank=False).public_state()
    assert list(thin) == [f"transformer.first.{part}" for part in ("lokr_w1", "lokr_w2_a", "lokr_w2_b", "alpha")]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_alpha_stays_finite_in_every_dtype(toy: Toy, dtype: torch.dtype) -> None:
    for full_rank in (True, False):
        state = new_network(toy, 2, 2.0, kind="lokr", full_rank=full_rank).public_state()
        alphas = [tensor.to(dtype) for key, tensor in state.items() if key.endswith("alpha")]
        assert len(alphas) == 3 and all(bool(torch.isfinite(alpha)) for alpha in alphas)


def test_a_file_whose_alpha_has_run_to_infinity_is_read_with_the_scale_that_was_meant(toy: Toy) -> None:
    network = stirred(new_network(toy, 2, 2.0, kind="lokr"))
    state, x = network.public_state(), torch.randn(3, 12)
    ours = toy(x)
    network.detach()
    network_from_state(toy, {key: torch.tensor(torch.inf) if key.endswith("alpha") else t for key, t in state.items()})
    assert torch.equal(toy(x), ours)


@pytest.mark.parametrize("second", ["whole", "product"])
def test_a_first_matrix_in_two_factors_is_read(toy: Toy, second: str) -> None:
    """LyCORIS's `decompose_both`: alpha / rank scales the product of all four, or of the two where w2 is whole."""
    (l, k), (m, n), draw = factorization(20), factorization(12), torch.Generator().manual_seed(3)  # noqa: E741
    state = {"transformer.first.lokr_w1_a": torch.randn(l, 2, generator=draw)}
    state |= {"transformer.first.lokr_w1_b": torch.randn(2, m, generator=draw), "transformer.first.alpha": torch.tensor(1.0)}
    if second == "whole":
        w2 = state["transformer.first.lokr_w2"] = torch.randn(k, n, generator=draw)
    else:
        state |= {"transformer.first.lokr_w2_a": torch.randn(k, 2), "transformer.first.lokr_w2_b": torch.randn(2, n)}
        w2 = state["transformer.first.lokr_w2_a"] @ state["transformer.first.lokr_w2_b"]
    w1 = state["transformer.first.lokr_w1_a"] @ state["transformer.first.lokr_w1_b"]
    wanted = toy.first.weight + 0.5 * torch.kron(w1, w2)
    network = network_from_state(toy, state)
    merge_into_base(network)
    assert torch.allclose(toy.first.weight, wanted, rtol=0, atol=1e-5)


def test_dropout_is_refused_where_there_is_nothing_to_drop(toy: Toy) -> None:
    with pytest.raises(UserError, match=r"network.dropout 0\.1 is for lora"):
        new_network(toy, 2, 2.0, kind="lokr", dropout=0.1)


def test_factors_that_make_another_weight_are_refused_by_name(toy: Toy) -> None:
    state = {"transformer.first.lokr_w1": torch.zeros(4, 3), "transformer.first.lokr_w2": torch.zeros(5, 5)}
    with pytest.raises(UserError, match=r"does not fit layer 'first': w1 \(4, 3\) and w2 \(5, 5\) make no \(20, 12\) weight"):
        network_from_state(toy, state)
    with pytest.raises(UserError, match="lokr_t2: a w2 in three factors is not read here"):
        network_from_state(toy, {**state, "transformer.first.lokr_t2": torch.zeros(2, 2, 3, 3)})
