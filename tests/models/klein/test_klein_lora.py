"""FLUX.2 klein's adapter files: the public names, read by diffusers, and files that others trained on the fused projections."""

import logging
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import Flux2KleinPipeline
from diffusers.loaders.lora_conversion_utils import _convert_non_diffusers_flux2_lora_to_diffusers as to_diffusers
from diffusers.utils import logging as diffusers_logging
from safetensors.torch import save_file

from models.adapters.attach import AdapterNetwork, new_network
from models.adapters.load import network_from_state
from models.archs.flux2_klein.lora_keys import to_ours, to_public
from models.archs.flux2_klein.model import Flux2KleinModel
from models.errors import UserError
from tests.models.klein.tiny_klein import predict

RANK = 4
WIDTH, HIDDEN = 32, 96  # of the tiny transformer: its width, three times that in the feed-forward


@pytest.fixture
def pipe(tiny: Path) -> Any:
    return Flux2KleinPipeline.from_pretrained(tiny)


@pytest.fixture
def diffusers_words(caplog: pytest.LogCaptureFixture) -> Iterator[Callable[[], list[str]]]:
    """What diffusers warns of: it names missing and unexpected keys there."""
    logger = diffusers_logging.get_logger("diffusers")
    logger.addHandler(caplog.handler)
    yield lambda: [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    logger.removeHandler(caplog.handler)


def stirred(network: AdapterNetwork) -> AdapterNetwork:
    """Give B numbers, as training would."""
    draw = torch.Generator().manual_seed(9)
    with torch.no_grad():
        for layer in network.layers.values():
            layer.lora_B.copy_(0.2 * torch.randn(layer.lora_B.shape, generator=draw))
    return network


def trained(klein: Flux2KleinModel, alpha: float = 8.0, only: Any = None) -> AdapterNetwork:
    torch.manual_seed(1)
    return stirred(new_network(klein.get_model_to_train(), RANK, alpha, only or klein.get_transformer_block_names()))


def public_names() -> set[str]:
    """All that a LoRA of the original network's blocks can name, for two blocks of each kind."""
    double = [
        "img_attn.qkv",
        "img_attn.proj",
        "img_mlp.0",
        "img_mlp.2",
        "txt_attn.qkv",
        "txt_attn.proj",
        "txt_mlp.0",
        "txt_mlp.2",
    ]
    layers = [f"double_blocks.{n}.{name}" for n in range(2) for name in double]
    layers += [f"single_blocks.{n}.{name}" for n in range(2) for name in ("linear1", "linear2")]
    return {f"diffusion_model.{layer}.lora_{side}.weight" for layer in layers for side in "AB"}


@pytest.mark.parametrize("alpha", [4.0, 8.0])
def test_the_saved_file_has_the_public_names_and_does_the_same_in_diffusers(
    klein: Any, pipe: Any, tmp_path: Path, diffusers_words: Any, alpha: float
) -> None:
    network = trained(klein, alpha)
    ours = predict(klein)
    public = klein.convert_lora_weights_before_save(network.public_state())
    network.detach()
    bare = predict(klein)
    assert set(public) == public_names()
    assert public["diffusion_model.double_blocks.1.txt_attn.qkv.lora_A.weight"].shape == (3 * RANK, WIDTH)
    assert public["diffusion_model.double_blocks.1.txt_attn.qkv.lora_B.weight"].shape == (3 * WIDTH, 3 * RANK)
    assert public["diffusion_model.single_blocks.0.linear1.lora_B.weight"].shape == (3 * WIDTH + 2 * HIDDEN, RANK)
    assert len(to_diffusers(public)) == 2 * len(network.layers)  # raises for a key that it does not know
    save_file({name: tensor.contiguous() for name, tensor in public.items()}, tmp_path / "a.safetensors")
    pipe.load_lora_weights(str(tmp_path), weight_name="a.safetensors")
    assert diffusers_words() == []
    loaded = [name for name, _ in pipe.transformer.named_parameters() if "lora_" in name]
    assert len(loaded) == 2 * len(network.layers)
    assert torch.allclose(predict(klein, pipe.transformer), ours, rtol=0, atol=1e-5)
    assert float((ours - bare).abs().max()) > 1e-3  # the adapter does something


def test_a_round_trip_gives_the_same_layers_and_numbers(klein: Any) -> None:
    network = new_network(klein.get_model_to_train(), RANK, 4.0)  # every linear layer, those outside the blocks too
    state = {name: tensor.detach() for name, tensor in stirred(network).public_state().items()}
    network.detach()
    again = klein.convert_lora_weights_before_load(klein.convert_lora_weights_before_save(state))
    assert set(again) == set(state)
    assert all(torch.equal(tensor, state[name]) for name, tensor in again.items())


@pytest.mark.parametrize("only", [["to_q"], ["to_k", "add_v_proj"], ["to_q", "to_v"]])
def test_a_round_trip_keeps_projections_that_were_trained_alone(klein: Any, only: list[str]) -> None:
    network = trained(klein, only=only)
    state = {name: tensor.detach() for name, tensor in network.public_state().items()}
    network.detach()
    again = to_ours(to_public(state))
    assert set(again) == set(state)
    assert all(torch.equal(tensor, state[name]) for name, tensor in again.items())


def test_a_round_trip_keeps_ranks_that_differ() -> None:
    draw = torch.Generator().manual_seed(1)
    state = {}
    for name, rank in (("to_q", 2), ("to_k", 5), ("to_v", 3)):
        state[f"transformer.transformer_blocks.0.attn.{name}.lora_A.weight"] = torch.randn(rank, WIDTH, generator=draw)
        state[f"transformer.transformer_blocks.0.attn.{name}.lora_B.weight"] = torch.randn(WIDTH, rank, generator=draw)
    again = to_ours(to_public(state))
    assert set(again) == set(state)
    assert all(torch.equal(tensor, state[name]) for name, tensor in again.items())


def foreign(prefix: str = "diffusion_model.", down: str = "lora_A", up: str = "lora_B") -> dict[str, torch.Tensor]:
    """A file as trainers of the original network write it: one dense adapter for the fused projection."""
    draw = torch.Generator().manual_seed(3)
    shapes = {
        "double_blocks.0.img_attn.qkv": (WIDTH, 3 * WIDTH),
        "double_blocks.1.txt_attn.qkv": (WIDTH, 3 * WIDTH),
        "double_blocks.1.img_mlp.0": (WIDTH, 2 * HIDDEN),
        "single_blocks.1.linear1": (WIDTH, 3 * WIDTH + 2 * HIDDEN),
        "single_blocks.1.linear2": (WIDTH + HIDDEN, WIDTH),
    }
    state = {}
    for name, (inside, outside) in shapes.items():
        state[f"{prefix}{name}.{down}.weight"] = 0.3 * torch.randn(RANK, inside, generator=draw)
        state[f"{prefix}{name}.{up}.weight"] = 0.3 * torch.randn(outside, RANK, generator=draw)
    return state


def test_a_file_trained_on_the_fused_projections_does_what_it_does_in_diffusers(klein: Any, pipe: Any, tmp_path: Path) -> None:
    save_file(foreign(), tmp_path / "foreign.safetensors")
    pipe.load_lora_weights(str(tmp_path), weight_name="foreign.safetensors")
    network = network_from_state(klein.get_model_to_train(), klein.convert_lora_weights_before_load(foreign()))
    ours = predict(klein)
    deltas = {name: (layer.lora_B @ layer.lora_A).detach() for name, layer in network.named_layers()}
    network.detach()
    assert torch.allclose(ours, predict(klein, pipe.transformer), rtol=0, atol=1e-5)
    fused = foreign()["diffusion_model.double_blocks.0.img_attn.qkv.lora_B.weight"]
    wanted = fused @ foreign()["diffusion_model.double_blocks.0.img_attn.qkv.lora_A.weight"]
    parts = torch.cat([deltas[f"transformer_blocks.0.attn.to_{name}"] for name in "qkv"])
    assert torch.allclose(parts, wanted, rtol=0, atol=1e-6)
    again = to_ours(to_public(to_ours(foreign())))  # saved by us it acts the same, with three times the rank
    name = "transformer.transformer_blocks.0.attn.to_v"
    product = again[f"{name}.lora_B.weight"] @ again[f"{name}.lora_A.weight"]
    assert torch.allclose(product, deltas[name.removeprefix("transformer.")], rtol=0, atol=1e-6)


def flat(state: dict[str, torch.Tensor], stem: str) -> dict[str, torch.Tensor]:
    """With underscores for the dots of paths, as musubi-tuner (`lora_unet_`) and LyCORIS write them."""
    split = ((name.removeprefix("diffusion_model.").partition(".lora"), tensor) for name, tensor in state.items())
    return {f"{stem}{path.replace('.', '_')}{dot}{part}": tensor for (path, dot, part), tensor in split}


def test_every_layer_has_a_flat_name_of_its_own(klein: Any) -> None:
    network = trained(klein, only=[""])
    wanted = {path: layer.delta() for path, layer in network.named_layers()}
    ours = {name.removeprefix("transformer."): tensor for name, tensor in network.public_state().items()}
    network.detach()
    theirs = flat(to_public(ours), "lora_unet_")
    assert {"lora_unet_double_blocks_0_img_attn_qkv.lora_A.weight", "lora_unet_final_layer_linear.lora_B.weight"} <= set(theirs)
    for state in (theirs, flat(ours, "lora_unet_"), flat(ours, "lora_transformer_")):
        again = network_from_state(klein.get_model_to_train(), to_ours(state))
        again.detach()
        found = {path: layer.delta() for path, layer in again.named_layers()}
        assert set(found) == set(wanted)
        assert all(torch.allclose(delta, wanted[path], rtol=0, atol=1e-6) for path, delta in found.items())  # sums of fused ranks


FUSED_AND_SPLIT = ("diffusion_model.double_blocks.0.img_attn.qkv", "transformer.transformer_blocks.0.attn.to_k")
TWO_STYLES = ("diffusion_model.single_blocks.1.linear1", "lora_unet_single_transformer_blocks_1_attn_to_qkv_mlp_proj")


@pytest.mark.parametrize("layers", [FUSED_AND_SPLIT, FUSED_AND_SPLIT[::-1], TWO_STYLES], ids=lambda layers: layers[0])
def test_a_layer_named_twice_is_refused_with_both_keys(layers: tuple[str, str]) -> None:
    rows = {layer: 3 * WIDTH if "qkv" in layer and "fused" not in layer else WIDTH for layer in layers}
    state = {f"{layer}.lora_A.weight": torch.ones(RANK, WIDTH) for layer in layers}
    state |= {f"{layer}.lora_B.weight": torch.ones(rows[layer], RANK) for layer in layers}
    said = " and as ".join(f"'{layer}.lora_A.weight'" for layer in layers)
    with pytest.raises(UserError, match=re.escape(f"names one layer twice, as {said}")) as refused:
        to_ours(state)
    assert refused.value.code == "bad_adapter"


def test_other_spellings_mean_the_same_and_an_alpha_scales() -> None:
    plain = to_ours(foreign())
    for spelling in (
        foreign(down="lora_down", up="lora_up"),
        foreign(prefix="base_model.model."),
        foreign(prefix="base_model.model.diffusion_model."),
        flat(foreign(down="lora_down", up="lora_up"), "lora_unet_"),
        flat({name.removeprefix("transformer."): tensor for name, tensor in plain.items()}, "lycoris_"),
        foreign(prefix=""),
        {name.replace(".weight", ".default.weight"): tensor for name, tensor in foreign().items()},
        plain,
        {name.replace("transformer.", "diffusion_model.", 1): tensor for name, tensor in plain.items()},
    ):
        again = to_ours(spelling)
        assert set(again) == set(plain)
        assert all(torch.equal(tensor, plain[name]) for name, tensor in again.items())
    layer = "double_blocks.0.img_attn.qkv"
    halved = to_ours({**foreign(), f"diffusion_model.{layer}.alpha": torch.tensor(RANK / 2)})
    for part in ("to_q", "to_k", "to_v"):
        name = f"transformer.transformer_blocks.0.attn.{part}.lora_B.weight"
        assert torch.equal(halved[name], plain[name] / 2)


def test_the_last_layers_modulation_has_its_halves_swapped() -> None:
    """The original's is (shift, scale), that of diffusers (scale, shift), as its converter of checkpoints knows."""
    matrix_A, matrix_B = torch.randn(2, WIDTH), torch.randn(2 * WIDTH, 2)
    name = "diffusion_model.final_layer.adaLN_modulation.1"
    state = {f"{name}.lora_A.weight": matrix_A, f"{name}.lora_B.weight": matrix_B}
    ours = to_ours(state)
    assert torch.equal(ours["transformer.norm_out.linear.lora_B.weight"], torch.cat([matrix_B[WIDTH:], matrix_B[:WIDTH]]))
    assert torch.equal(to_public(ours)[f"{name}.lora_B.weight"], matrix_B)


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("diffusion_model.double_blocks.0.img_attn.qvk.lora_A.weight", "is for no layer of this model"),
        ("lora_unet_double_blocks_0_img_attn_qvk.lora_down.weight", "is not one of a LoRA"),
        ("lora_unet_double_blocks_0_img_attn_qkv.hada_w1_a", "is not one of a LoRA"),
    ],
)
def test_a_key_of_another_model_is_refused_by_name(key: str, said: str) -> None:
    state = {key: torch.zeros(2, 4), key.replace("lora_A", "lora_B"): torch.zeros(4, 2)}
    with pytest.raises(UserError, match=re.escape(f"the adapter's key '{key}' {said}")):
        to_ours(state)


def test_half_a_pair_is_refused() -> None:
    with pytest.raises(UserError, match=r"'diffusion_model\.double_blocks\.0\.img_mlp\.0\.lora_A\.weight' without its B"):
        to_ours({"diffusion_model.double_blocks.0.img_mlp.0.lora_A.weight": torch.zeros(2, 4)})
