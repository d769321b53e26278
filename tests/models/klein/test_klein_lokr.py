"""FLUX.2 klein's LoKr files: read by diffusers, and by us from the names that others write."""

from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import Flux2KleinPipeline

from models.adapters.attach import AdapterNetwork, new_network
from models.adapters.load import network_from_state
from models.archs.flux2_klein.model import Flux2KleinModel
from models.errors import UserError
from models.weights import save_tensors
from tests.models.klein.tiny_klein import predict


def trained(klein: Flux2KleinModel, only: Any = None, **settings: Any) -> AdapterNetwork:
    network = new_network(
        klein.get_model_to_train(), 2, 1.0, only or klein.get_transformer_block_names(), kind="lokr", **settings
    )
    draw = torch.Generator().manual_seed(9)
    with torch.no_grad():
        for param in network.parameters():
            param.copy_(0.2 * torch.randn(param.shape, generator=draw))
    return network


@pytest.mark.parametrize("full_rank", [True, False])
def test_the_saved_file_does_the_same_in_diffusers_and_here(klein: Any, tiny: Path, tmp_path: Path, full_rank: bool) -> None:
    network = trained(klein, full_rank=full_rank)
    ours = predict(klein)
    public = klein.convert_lora_weights_before_save(network.public_state())
    network.detach()
    bare = predict(klein)
    assert all(key.startswith(("lycoris_transformer_blocks_", "lycoris_single_transformer_blocks_")) for key in public)
    save_tensors(public, tmp_path / "a.safetensors")
    pipe = Flux2KleinPipeline.from_pretrained(tiny)
    pipe.load_lora_weights(str(tmp_path), weight_name="a.safetensors")
    assert len([name for name, _ in pipe.transformer.named_parameters() if "lokr_w1" in name]) == len(network.layers)
    assert torch.allclose(predict(klein, pipe.transformer), ours, rtol=0, atol=1e-5)
    assert float((ours - bare).abs().max()) > 1e-3  # the adapter does something
    again = network_from_state(klein.get_model_to_train(), klein.convert_lora_weights_before_load(public))
    assert torch.equal(predict(klein), ours)
    again.detach()


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("diffusion_model.double_blocks.0.img_mlp.0", "transformer_blocks.0.ff.linear_in"),
        ("diffusion_model.double_blocks.1.txt_attn.proj", "transformer_blocks.1.attn.to_add_out"),
        ("diffusion_model.single_blocks.1.linear1", "single_transformer_blocks.1.attn.to_qkv_mlp_proj"),
        ("diffusion_model.img_in", "x_embedder"),
        ("lora_unet_double_blocks_0_img_mlp_0", "transformer_blocks.0.ff.linear_in"),
        ("base_model.model.transformer.x_embedder", "x_embedder"),
        ("transformer.transformer_blocks.0.attn.to_q", "transformer_blocks.0.attn.to_q"),
    ],
)
def test_dotted_names_of_others_are_read(klein: Any, theirs: str, ours: str) -> None:
    network = trained(klein, [ours])
    state = {key.replace(f"transformer.{ours}.", f"{theirs}."): tensor for key, tensor in network.public_state().items()}
    wanted = {path: layer.delta() for path, layer in network.named_layers()}
    network.detach()
    again = network_from_state(klein.get_model_to_train(), klein.convert_lora_weights_before_load(state))
    again.detach()
    assert all(torch.equal(layer.delta(), wanted[path]) for path, layer in again.named_layers())
    assert ours in wanted


def test_what_a_kronecker_product_cannot_say_is_refused(klein: Any) -> None:
    factor = {"lokr_w1": torch.zeros(2, 2), "lokr_w2": torch.zeros(2, 2)}
    for layer in ("double_blocks.0.img_attn.qkv", "final_layer.adaLN_modulation.1"):
        with pytest.raises(UserError, match=rf"'diffusion_model\.{layer}\.lokr_w1' cannot be read: the layer is split here"):
            klein.convert_lora_weights_before_load({f"diffusion_model.{layer}.{name}": t for name, t in factor.items()})
    with pytest.raises(UserError, match=r"'diffusion_model\.double_blocks\.0\.other\.lokr_w1' is for no layer of this model"):
        klein.convert_lora_weights_before_load({f"diffusion_model.double_blocks.0.other.{name}": t for name, t in factor.items()})
    network = trained(klein, ["x_embedder"])
    with pytest.raises(UserError, match="a LoKr on layer 'x_embedder' has no public name"):
        klein.convert_lora_weights_before_save(network.public_state())
    network.detach()
