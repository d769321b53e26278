"""The second start of a job on quantized weights, and what stays on disk."""

from pathlib import Path
from typing import Any

import pytest
import torch

from models import catalog, quantized
from models.archs.example.card import ARCHS
from models.archs.example.model import write_tiny
from models.errors import UserError
from models.extensions import Extension
from models.weights import load_tensors, read_metadata, save_tensors
from server.store.settings import settings
from worker.load import Places, load_model


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """`start(qtype)` loads the template's tiny checkpoint, quantized."""
    weights = tmp_path / "weights"
    weights.mkdir()
    write_tiny(weights)
    monkeypatch.setitem(vars(catalog), "_registered", (-1, {"example": Extension("example", "here", "1", ARCHS[0])}))
    monkeypatch.setattr(quantized, "is_settled", lambda _: True)

    def load(qtype: str = "qint8") -> Any:
        model = {"arch": "example", "name_or_path": str(weights), "dtype": "bf16", "quantize": True, "qtype": qtype}
        spec = catalog.parse_job(
            {"kind": "sample", "name": "q", "model": {**model, "quantize_te": True}, "samples": [{"prompt": ""}]}
        )
        return load_model(spec, Places(model=weights, cache=tmp_path / "cache"), "cpu")

    return load


def test_a_second_start_reads_no_source_weights_and_gives_the_same_model(start: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    first = start()
    monkeypatch.setattr(quantized, "fingerprint", lambda *_: pytest.fail("all weights were read"))
    second = start()
    for one, other in ((first.model, second.model), (first.text_encoder, second.text_encoder)):
        theirs = other.state_dict()
        assert all(torch.equal(tensor, theirs[name]) for name, tensor in one.state_dict().items())


def test_another_file_or_qtype_is_computed_anew(start: Any, tmp_path: Path) -> None:
    def kept() -> int:
        return len(list((tmp_path / "cache" / "quantized").glob("*.safetensors")))

    start()
    assert kept() == 2  # the denoiser and the text encoder
    start("qint4")
    assert kept() == 3
    torch.manual_seed(1)
    (network,) = (tmp_path / "weights" / "transformer").glob("*.safetensors")
    tensors = {name: tensor + 1e-2 for name, tensor in load_tensors(network).items()}
    save_tensors(tensors, network, read_metadata(network))
    start()
    assert kept() == 4


@pytest.mark.parametrize("key", ["blocks.0.modulation.weight", "blocks.0.more.weight"])
def test_a_second_start_refuses_weights_that_are_no_longer_whole(key: str, start: Any, tmp_path: Path) -> None:
    """What was quantized before stands in for no file: a key that is gone, or one too many, counts as on the first start."""
    start()
    (network,) = (tmp_path / "weights" / "transformer").glob("*.safetensors")
    tensors = load_tensors(network)
    tensors = (
        {name: tensor for name, tensor in tensors.items() if name != key} if key in tensors else {**tensors, key: torch.ones(1)}
    )
    save_tensors(tensors, network, read_metadata(network))
    with pytest.raises(UserError, match=rf"does not fit ExampleTransformer2DModel: 1 key (missing|too many): {key}$"):
        start()


def test_a_start_leaves_what_the_setting_allows_and_what_it_uses(
    start: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SAFELIGHT_QUANTIZED_CACHE_GB", "0")
    settings.cache_clear()
    folder = tmp_path / "cache" / "quantized"
    for qtype in ("qint8", "qint4"):
        model = start(qtype)
        assert len(list(folder.glob("*.safetensors"))) == 2
        del model
