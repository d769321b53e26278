"""Weights in 8 bits are read with their scales, and formats that are not read are refused by name."""

import logging
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from models.base_weights import load_module, open_weights
from models.batch import GenerateImageConfig
from models.errors import UserError
from tests.models.klein import tiny_klein
from tests.models.tiny_bases import DIFFUSERS, LOADS, SMALL, Tensors, load_klein, load_small

# -- 8 bits -------------------------------------------------------------------------------------------------------------------------

EIGHT = torch.float8_e4m3fn


def in_8_bits(tensors: Tensors, leaf: str | None, rows: bool = False) -> None:
    """Every matrix as others store it: divided by a scale that lies beside it as `leaf`, or only cast."""
    for key, tensor in list(tensors.items()):
        if tensor.ndim == 2 and key.endswith(".weight"):
            largest = tensor.abs().amax(1, keepdim=True) if rows else tensor.abs().max()
            scale = largest / 448 if leaf else torch.tensor(1.0)
            tensors[key] = (tensor / scale).to(EIGHT)
            if leaf:
                path = key.removesuffix(".weight")
                tensors |= {f"{path}.{leaf}": scale, f"{path}.scale_input": torch.tensor(1.0)}
    if leaf:
        tensors["scaled_fp8"] = torch.zeros(2).to(EIGHT)


def preview(model: Any) -> torch.Tensor:
    config = GenerateImageConfig(prompt="a red fox", width=64, height=64, num_inference_steps=4, guidance_scale=4.0)
    embeds = [model.get_prompt_embeds([text]) for text in ("a red fox", "")]
    with torch.no_grad():
        made = model.generate_single_image(model.get_generation_pipeline(), config, *embeds, torch.Generator().manual_seed(7), {})
    return tiny_klein.unit(made) * 255


@pytest.fixture(scope="module")
def original(bases: dict[str, Path]) -> torch.Tensor:
    return preview(load_klein(bases["klein"]))


@pytest.mark.parametrize("leaf", ["scale_weight", "weight_scale", None])
def test_weights_in_8_bits_make_the_originals_picture(
    leaf: str | None, bases: Any, original: torch.Tensor, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shutil.copytree(bases["klein"], tmp_path / "klein")
    for file in LOADS["klein"][1]:
        tensors = load_file(tmp_path / "klein" / file)
        in_8_bits(tensors, leaf)
        save_file(tensors, tmp_path / "klein" / file, {"format": "pt"})
    with caplog.at_level(logging.WARNING, logger="models"):
        made = load_klein(tmp_path / "klein")
    # levels of 255, on average; the 3 bits that 8-bit numbers have for their fraction cost about 2
    assert (preview(made) - original).abs().mean() < 8
    said = [record.getMessage() for record in caplog.records if record.name.startswith("models")]
    words = "read with the scales beside them" if leaf else "stored in 8 bits without scales and cast"
    assert len(said) == 3 and all(words in line for line in said)
    assert f"{tmp_path / 'klein' / 'transformer' / DIFFUSERS}: 37 of 49 weights are " in said[0]


@pytest.mark.parametrize("rows", [False, True], ids=["one scale", "a scale for each row"])
@pytest.mark.parametrize("base", SMALL)
def test_scales_are_multiplied_in(base: str, rows: bool, changed: Any) -> None:
    """Against the arithmetic by hand, for the three ways into a module."""
    stored: Tensors = {}

    def change(tensors: Tensors) -> None:
        in_8_bits(tensors, "weight_scale", rows)
        stored.update(tensors)

    loaded = load_small(base, changed(base.removesuffix("_text"), SMALL[base], change))
    module = loaded.model if base == "klein_file" else loaded
    checked = 0
    for key, tensor in module.state_dict().items():
        name = key if key in stored else f"model.{key}"
        scale = stored.get(name.removesuffix("weight") + "weight_scale")
        assert torch.equal(tensor, stored[name].float() * (1 if scale is None else scale)), name
        checked += scale is not None
    assert checked == {"klein": 8, "klein_text": 7 * 28 + 1, "klein_file": 37}[base]


ONES_IN_8_BITS = torch.ones(2, 4).to(EIGHT)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2, bias=False)
        self.norm = nn.BatchNorm1d(2, affine=False)
        self.register_buffer("steps", torch.arange(3.0), persistent=False)


NET = {"layer.weight": torch.arange(8.0).reshape(2, 4), "norm.running_mean": torch.ones(2), "norm.running_var": torch.ones(2)}


def net(tmp_path: Path, tensors: Tensors, **more: Any) -> Net:
    save_file(tensors, tmp_path / "net.safetensors")
    with open_weights(tmp_path / "net.safetensors") as weights:
        return load_module(Net, weights, **more)


def test_buffers_that_no_file_holds_are_computed_and_counters_may_be_missing(tmp_path: Path) -> None:
    made = net(tmp_path, NET, dtype=torch.bfloat16)
    assert torch.equal(made.steps, torch.arange(3.0)) and made.norm.num_batches_tracked == 0
    assert made.layer.weight.dtype == torch.bfloat16 and torch.equal(made.layer.weight.float(), NET["layer.weight"])
    assert not any(parameter.is_meta for parameter in made.parameters())


def test_an_arch_names_what_it_leaves_out(tmp_path: Path) -> None:
    assert net(tmp_path, NET | {"vision.a": torch.ones(1)}, leaves_out=[r"^vision\."])
    with pytest.raises(UserError, match=r": 1 key too many: vision\.a$"):
        net(tmp_path, NET | {"vision.a": torch.ones(1)}, leaves_out=[r"^audio\."])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"layer.weight_scale": torch.ones(2, 2)}, r"layer\.weight_scale \(F32, 2x2\) is not a scale that can be read"),
        ({"layer.weight_scale": torch.ones(4)}, r"layer\.weight_scale \(F32, 4\) is not a scale that can be read"),
        ({"layer.weight_scale": torch.ones(2, dtype=torch.uint8)}, r"\(U8, 2\) is not a scale that can be read"),
        ({"layer.weight_scale": torch.ones(1), "layer.scale_weight": torch.ones(1)}, "is not a scale that can be read"),
        ({"layer.weight": torch.ones(2, 4, dtype=torch.int8)}, r"layer\.weight is stored as I8, a quantized format"),
        (
            {"layer.weight_scale_inv": torch.ones(1)},
            r"layer\.weight_scale_inv: weights in 8 bits .* \(weight_scale_inv\) are not read",
        ),
        ({"layer.weight.scale_inv": torch.ones(1)}, r"in this layout \(scale_inv\) are not read"),
        (
            {"layer.weight_scale": torch.ones(1), "layer.weight": ONES_IN_8_BITS, "other.weight": ONES_IN_8_BITS.clone()},
            r"weights in 8 bits without the scales that this file has, .*: other\.weight$",
        ),
        ({"scaled_fp8": torch.zeros(2).to(EIGHT), "layer.weight": ONES_IN_8_BITS}, r"or says that it has: layer\.weight$"),
        ({"other.weight_scale": torch.ones(1)}, r"1 key too many: other\.weight_scale"),
    ],
)
def test_formats_that_are_not_read_are_refused_by_name(change: Tensors, said: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=said) as refused:
        net(tmp_path, NET | change)
    assert refused.value.code == "bad_weights"
