"""Starting a fresh adapter from a file's weights, and the keys that other trainers write."""

from typing import Any

import pytest
import torch
from torch import nn

from models.adapters.attach import AdapterNetwork, new_network
from models.adapters.load import load_into, network_from_state
from models.errors import UserError


@pytest.fixture
def root() -> nn.ModuleDict:
    torch.manual_seed(0)
    parts = {name: nn.Linear(8, 12) for name in ("one", "two_a")}
    return nn.ModuleDict({**parts, "blocks": nn.ModuleList([nn.Linear(8, 12)])}).requires_grad_(False)


def stirred(network: AdapterNetwork) -> AdapterNetwork:
    draw = torch.Generator().manual_seed(9)
    with torch.no_grad():
        for param in network.parameters():
            param.copy_(torch.randn(param.shape, generator=draw))
    return network


def saved(root: nn.Module, rank: int = 2, alpha: float = 1.0, **settings: Any) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """(public state, change of each weight) of an adapter that is off the model again."""
    network = stirred(new_network(root, rank, alpha, **settings))
    network.detach()
    return {key: tensor.detach() for key, tensor in network.public_state().items()}, changes(network)


def changes(network: AdapterNetwork) -> dict[str, torch.Tensor]:
    return {path: layer.delta().detach() for path, layer in network.named_layers()}


@pytest.mark.parametrize("settings", [{}, {"kind": "lokr"}, {"kind": "lokr", "full_rank": False}], ids=str)
@pytest.mark.parametrize("alpha", [1.0, 0.3, 8.0])
def test_it_starts_with_the_files_effect_whatever_its_own_alpha(root: nn.Module, settings: Any, alpha: float) -> None:
    state, wanted = saved(root, rank=1, alpha=0.7, **settings)
    network = new_network(root, 1, alpha, **settings)
    load_into(network, root, state)
    for path, delta in changes(network).items():
        assert torch.allclose(delta, wanted[path], rtol=1e-5, atol=1e-6)


def test_a_files_alpha_counts(root: nn.Module) -> None:
    state, wanted = saved(root, rank=2, alpha=2.0)
    state |= {key.replace("lora_A.weight", "alpha"): torch.tensor(1.0) for key in state if "lora_A" in key}
    network = new_network(root, 2, 2.0)
    load_into(network, root, state)
    for path, delta in changes(network).items():
        assert torch.allclose(2 * delta, wanted[path], rtol=1e-5, atol=1e-6)


def test_what_does_not_fit_is_said_and_nothing_is_cut_to_size(root: nn.Module) -> None:
    def refused(state: Any, *own: Any, **settings: Any) -> str:
        network = new_network(root, *own, **settings)
        before = [param.clone() for param in network.parameters()]
        with pytest.raises(UserError) as error:
            load_into(network, root, state)
        assert error.value.code == "bad_adapter"
        assert all(torch.equal(one, two) for one, two in zip(before, network.parameters(), strict=True))
        return error.value.message

    lora, lokr = saved(root, rank=2)[0], saved(root, kind="lokr")[0]
    assert "do not fit network's settings in: one (rank 2, not 4), two_a (rank 2, not 4)" in refused(lora, 4, 4.0)
    assert "are a lora; network.type is lokr" in refused(lora, 2, 2.0, kind="lokr")
    assert "are a lokr; network.type is lora" in refused(lokr, 2, 2.0)
    assert "the file has some for: one, which this job does not train" in refused(lora, 2, 2.0, ["two_a", "blocks"])
    assert "the file has none for: two_a, blocks.0" in refused(saved(root, only=["one"])[0], 2, 2.0)
    assert "lokr_w1 of shape (3, 2), not (2, 2)" in refused(lokr, 2, 2.0, kind="lokr", factor=2)
    assert "w2 whole, not in two factors" in refused(lokr, 1, 1.0, kind="lokr", full_rank=False)
    thin = saved(root, rank=1, kind="lokr", full_rank=False)[0]
    assert "w2 in two factors, not whole" in refused(thin, 1, 1.0, kind="lokr")


@pytest.mark.parametrize("stem", ["transformer.", "diffusion_model.", "base_model.model.", ""])
@pytest.mark.parametrize("parts", [("lora_A", "lora_B"), ("lora_down", "lora_up"), ("lora_A.default", "lora_B.default")])
def test_names_of_other_trainers_are_read(root: nn.Module, stem: str, parts: tuple[str, str]) -> None:
    state, wanted = saved(root)
    renamed = {
        stem + key.removeprefix("transformer.").replace("lora_A", parts[0]).replace("lora_B", parts[1]): tensor
        for key, tensor in state.items()
    }
    assert all(torch.equal(delta, wanted[path]) for path, delta in changes(network_from_state(root, renamed)).items())


@pytest.mark.parametrize("stem", ["lycoris_", "lora_transformer_", "lora_unet_"])
def test_paths_with_underscores_for_dots_are_read(root: nn.Module, stem: str) -> None:
    state, wanted = saved(root, kind="lokr", old_format=True)
    renamed = {key.replace("lycoris_", stem): tensor for key, tensor in state.items()}
    assert any(key.startswith(f"{stem}blocks_0.") for key in renamed)
    assert all(torch.equal(delta, wanted[path]) for path, delta in changes(network_from_state(root, renamed)).items())


def test_names_that_could_mean_two_layers_are_never_guessed() -> None:
    root = nn.ModuleDict({"a": nn.ModuleDict({"b": nn.Linear(4, 4)}), "a_b": nn.Linear(4, 4)})
    state, _ = saved(root, only=["a_b"], kind="lokr", old_format=True)
    with pytest.raises(UserError, match=r"'lycoris_a_b\.lokr_w1' could mean a\.b or a_b"):
        network_from_state(root, state)
    with pytest.raises(UserError, match="turn old_lokr_format off"):
        new_network(root, 2, 2.0, kind="lokr", old_format=True).public_state()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"transformer.one.lora_B.weight": None},
            r"has 'transformer\.one\.lora_A\.weight' for layer 'one'; it lacks lora_B\.weight",
        ),
        ({"transformer.one.magnitude": torch.zeros(12)}, r"'transformer\.one\.magnitude' is no part of a lora or lokr"),
        ({"transformer.three.lora_A.weight": torch.zeros(2, 8)}, r"three\.lora_A\.weight' fits no layer of this model"),
        ({"transformer.one.lora_A.weight": torch.zeros(2, 9)}, r"layer 'one': lora_A\.weight of shape \(2, 9\), not \(2, 8\)"),
        ({"transformer.one.lora_B.weight": torch.zeros(12, 3)}, r"layer 'one': lora_B\.weight of shape \(12, 3\), not \(12, 2\)"),
        (
            {"transformer.two_a.lokr_w1": torch.zeros(3, 2)},
            r"not of one kind, lora or lokr: it has '.*lora_A\.weight' and '.*lokr_w1'",
        ),
    ],
)
def test_a_damaged_file_is_refused_by_name(root: nn.Module, change: dict[str, Any], message: str) -> None:
    state = {key: tensor for key, tensor in {**saved(root)[0], **change}.items() if tensor is not None}
    with pytest.raises(UserError, match=message) as refused:
        network_from_state(root, state)
    assert refused.value.code == "bad_adapter"
