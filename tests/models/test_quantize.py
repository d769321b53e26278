"""Quantized frozen weights: values against optimum-quanto's own, gradients, the cache, exclusions, the recovery adapter."""

from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from optimum import quanto
from torch import nn

from models import quantize as q
from models import quantized
from models.adapters.attach import new_network
from models.archs.example.card import ARCHS
from models.base import BaseModel
from models.conform import Subject, subject_for
from models.errors import UserError
from models.offload import offload_blocks
from models.weights import load_tensors, save_tensors

QTYPES = ["qfloat8", "qint8", "qint4", "qint2"]


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(256, 64), nn.GELU(), nn.Conv1d(4, 4, 1), nn.Linear(64, 32, bias=False))


def all_of(module: nn.Module, qtype: str) -> dict[str, str]:
    return dict.fromkeys(q.chosen(module, ()), qtype)


@pytest.fixture
def subject(tmp_path: Path) -> Subject:
    return subject_for(ARCHS[0], tmp_path / "tiny")


def settled(subject: Subject, cache: Path | None = None, **config: Any) -> BaseModel:
    """A model of the template with its parts quantized as `config` says."""
    model = subject.build()
    defaults = {"quantize": True, "qtype": "qint8", "quantize_te": False, "accuracy_recovery_adapter": None}
    model.model_config = SimpleNamespace(**{**vars(model.model_config), **defaults, **config})
    model.cache_folder = cache
    q.quantize_parts(model)
    return model


@pytest.mark.parametrize("qtype", QTYPES)
def test_equals_quanto(qtype: str) -> None:
    ours, theirs = net(), net()
    q.quantize_layers(ours, all_of(ours, qtype))
    quanto.quantize(theirs, weights=q.QTYPES[qtype])
    quanto.freeze(theirs)
    x = torch.randn(2, 4, 256)
    assert torch.equal(ours(x), theirs(x))
    assert [type(part) for part in ours] == [type(part) for part in theirs]


@pytest.mark.parametrize("qtype", QTYPES)
def test_gradients_reach_the_input_and_adapters(qtype: str) -> None:
    quantized, plain = net(), net()
    q.quantize_layers(quantized, all_of(quantized, qtype))
    with torch.no_grad():  # the same numbers in an ordinary layer
        for index in (0, 3):
            plain[index].weight.copy_(quantized[index].weight.dequantize())  # type: ignore[operator, union-attr]
    grads = []
    for module in (quantized, plain):
        module.requires_grad_(False)
        torch.manual_seed(1)
        network = new_network(module, 2, 2.0)
        for _, layer in network.named_layers():
            nn.init.normal_(layer.lora_B)
        x = torch.randn(2, 4, 256, generator=torch.Generator().manual_seed(2)).requires_grad_()
        module(x).square().sum().backward()
        grads.append([x.grad, *(param.grad for param in network.parameters())])
    for one, other in zip(*grads, strict=True):
        assert one is not None and other is not None and float(other.abs().max()) > 0
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4 * float(other.abs().max()))  # fp32, other order of sums


@pytest.mark.parametrize("qtype", QTYPES)
def test_the_second_start_reads_what_the_first_computed(qtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = net(), net()
    assert not q.quantize_layers(first, all_of(first, qtype), cache=tmp_path)
    monkeypatch.setattr(quanto.nn.QLinear, "freeze", lambda _: pytest.fail("computed again"))
    assert q.quantize_layers(second, all_of(second, qtype), cache=tmp_path)
    x = torch.randn(2, 4, 256)
    assert torch.equal(first(x), second(x))
    assert not any(param.requires_grad for param in second[0].parameters())


def test_four_bits_in_bf16_are_the_plain_weight_whether_computed_read_from_the_cache_or_streamed(tmp_path: Path) -> None:
    """quanto's own choice has another layout on each device, which no copy survives."""
    names: list[str] = []
    outs: list[torch.Tensor] = []

    def seen(layer: nn.Module, forward: Any, x: torch.Tensor) -> torch.Tensor:
        names.append(type(layer.weight.data).__name__)
        made: torch.Tensor = forward(x)
        return made

    for streamed in (False, False, True):
        torch.manual_seed(0)
        root = nn.Module()
        root.blocks = nn.ModuleList([nn.Linear(256, 128), nn.Linear(128, 256)]).to(torch.bfloat16)
        q.quantize_layers(root, dict.fromkeys(("blocks.0", "blocks.1"), "qint4"), cache=tmp_path)
        for layer in root.blocks:
            layer.forward = partial(seen, layer, layer.forward)
        if streamed:
            offload_blocks(root, "cpu")
        outs.append(root.blocks[1](root.blocks[0](torch.ones(2, 256, dtype=torch.bfloat16))))
    assert names == ["WeightQBitsTensor"] * 6
    assert torch.equal(outs[0], outs[1]) and torch.equal(outs[0], outs[2])


def test_the_cache_is_keyed_by_content(tmp_path: Path) -> None:
    base = net()
    other = net()
    with torch.no_grad():
        other[0].weight[0, 0] += 1e-3  # type: ignore[index, operator]
    keys = {quantized.fingerprint(base, all_of(base, "qint8")), quantized.fingerprint(other, all_of(base, "qint8"))}
    keys |= {quantized.fingerprint(base, all_of(base, "qint4")), quantized.fingerprint(base, {"0": "qint8"})}
    assert len(keys) == 4
    assert quantized.fingerprint(net(), all_of(base, "qint8")) in keys


@pytest.mark.parametrize("harm", ["cut", "flip"])
def test_a_damaged_cache_is_made_again(harm: str, tmp_path: Path) -> None:
    first, second = net(), net()
    q.quantize_layers(first, all_of(first, "qint8"), cache=tmp_path)
    (file,) = tmp_path.iterdir()
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2] if harm == "cut" else whole[:-1] + bytes([whole[-1] ^ 1]))
    assert not q.quantize_layers(second, all_of(second, "qint8"), cache=tmp_path)
    x = torch.randn(2, 4, 256)
    assert torch.equal(first(x), second(x))
    third = net()
    assert q.quantize_layers(third, all_of(third, "qint8"), cache=tmp_path)


def test_a_full_disk_only_costs_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(quantized, "save_tensors", full)
    module = net()
    q.quantize_layers(module, all_of(module, "qint8"), cache=tmp_path)
    assert q.is_quantized(module) and not list(tmp_path.iterdir())


def test_hooks_go_on_working() -> None:
    module, seen = net(), []
    handle = module[0].register_forward_hook(lambda *_: seen.append(1))
    q.quantize_layers(module, all_of(module, "qint8"))
    module(torch.zeros(1, 4, 256))
    handle.remove()
    module(torch.zeros(1, 4, 256))
    assert seen == [1]


def test_exclusions() -> None:
    module = nn.Module()
    module.time_in, module.blocks = nn.Linear(8, 8), nn.ModuleList([net(), net()])
    assert q.chosen(module, ["time_*"]) == ["blocks.0.0", "blocks.0.3", "blocks.1.0", "blocks.1.3"]
    assert q.chosen(module, ["nothing_here"]) == ["time_in", "blocks.0.0", "blocks.0.3", "blocks.1.0", "blocks.1.3"]
    assert q.chosen(module, ["time_*"], ["blocks.1.*"]) == ["blocks.0.0", "blocks.0.3"]
    with pytest.raises(UserError, match=r"no layer's name matches 'block_1\*'; there are: time_in, blocks.0.0"):
        q.chosen(module, (), ["block_1*"])
    with pytest.raises(UserError, match="leave no layer"):
        q.chosen(module, ["*"])


def test_a_model_is_quantized_as_its_job_says(subject: Subject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BaseModel, "get_quantization_exclude_modules", lambda _: ["image_out*"])
    model = settled(subject, tmp_path, quantize_te=True, qtype_te="qfloat8", quantize_kwargs={"exclude": ["*attn*"]})
    kinds = {path for path, part in model.model.named_modules() if isinstance(part, q.QModuleMixin)}
    linear = {path for path, part in model.model.named_modules() if isinstance(part, nn.Linear)}
    assert kinds == {path for path in linear if not path.startswith("image_out") and "attn" not in path}
    assert q.is_quantized(model.text_encoder)
    assert len(list((tmp_path / "quantized").iterdir())) == 2
    assert torch.isfinite(subject.predict(model)).all()


def test_what_an_architecture_quantized_itself_is_left_alone(subject: Subject) -> None:
    model = subject.build()
    q.quantize_layers(model.model, {q.chosen(model.model, ())[0]: "qint4"})
    before = [type(part) for part in model.model.modules()]
    model.model_config = SimpleNamespace(quantize=True, qtype="qint8")
    q.quantize_parts(model)
    assert [type(part) for part in model.model.modules()] == before


def test_a_recovery_adapter_acts_and_its_layers_alone_are_coarse(subject: Subject, tmp_path: Path) -> None:
    source = subject.build()
    covered = q.chosen(source.model, ())[1]
    network = new_network(source.model, 2, 2.0, [covered])
    for _, layer in network.named_layers():
        nn.init.normal_(layer.lora_B)
    file = tmp_path / "recovery.safetensors"
    save_tensors(source.convert_lora_weights_before_save(network.public_state()), file)
    model = settled(subject, qtype="qint4", accuracy_recovery_adapter=str(file))
    used = {path: part.weight_qtype.name for path, part in model.model.named_modules() if isinstance(part, q.QModuleMixin)}
    assert used.pop(covered) == "qint4" and set(used.values()) == {q.BESIDE_RECOVERY}
    with_it = subject.predict(model)
    assert model.recovery_adapter is not None
    assert not any(param.requires_grad for param in model.recovery_adapter.parameters())
    trained = new_network(model.get_model_to_train(), 2, 2.0)
    assert torch.equal(subject.predict(model), with_it)  # a fresh adapter beside it changes nothing
    assert all("lora" in key for key in trained.public_state())
    assert set(trained.state_dict()).isdisjoint({id(p) for p in model.recovery_adapter.parameters()})
    model.recovery_adapter.multiplier = 0.0
    assert not torch.equal(subject.predict(model), with_it)
    assert load_tensors(file)


def test_a_training_adapter_survives_quantization(subject: Subject) -> None:
    model = subject.build()
    network = new_network(model.model, 2, 2.0)
    for _, layer in network.named_layers():
        nn.init.normal_(layer.lora_B, std=0.1)
    network.multiplier = 0.0
    model.assistant_lora = network
    model.model_config = SimpleNamespace(**{**vars(model.model_config), "quantize": True, "qtype": "qint8"})
    q.quantize_parts(model)
    off = subject.predict(model)
    network.multiplier = -1.0
    assert not torch.equal(subject.predict(model), off)


def test_copies_of_old_layers_hold_no_memory() -> None:
    module = net()
    old = module[0]
    q.quantize_layers(module, all_of(module, "qint8"))
    assert old.weight is None
