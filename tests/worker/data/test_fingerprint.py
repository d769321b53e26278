"""What tells one encoder from another."""

from types import SimpleNamespace

import pytest
import torch
from optimum.quanto import freeze, qint8, quantize

from models.base import BaseModel
from models.conform import subject_for
from models.offload import offload_blocks
from tests.models.variants import ExampleModel, card
from worker.data.fingerprint import latent_fingerprint, module_digest, text_fingerprint, tokenizer_digest


def test_a_fingerprint_sees_weights_buffers_and_config_and_is_taken_once(monkeypatch) -> None:
    def norm() -> torch.nn.BatchNorm1d:
        return torch.nn.BatchNorm1d(3)

    same, weights, buffers, config = norm(), norm(), norm(), norm()
    torch.nn.init.constant_(weights.weight, 2.0)
    buffers.running_mean += 1  # type: ignore[operator]
    config.config = {"scaling_factor": 0.5}  # type: ignore[assignment]
    digests = [module_digest(each) for each in (norm(), same, weights, buffers, config)]
    assert digests[0] == digests[1]
    assert len(set(digests)) == 4
    model = BaseModel("cpu", SimpleNamespace(), dtype="fp32")
    model.vae = norm()
    first = latent_fingerprint(model)
    monkeypatch.setattr("worker.data.fingerprint.module_digest", lambda _: pytest.fail("hashed a second time"))
    assert latent_fingerprint(model) == first


def test_what_is_attached_to_the_denoiser_is_no_encoder() -> None:
    model, adapted = (BaseModel("cpu", SimpleNamespace(), dtype="fp32") for _ in range(2))
    for name in ("network", "assistant_lora", "recovery_adapter"):
        setattr(adapted, name, torch.nn.Linear(2, 2))
    assert latent_fingerprint(adapted) == latent_fingerprint(model)
    assert text_fingerprint(adapted) == text_fingerprint(model)


def test_a_tokenizer_s_fingerprint_does_not_hang_on_its_last_call(tmp_path) -> None:
    tokenizer = subject_for(card(), tmp_path, ExampleModel).model.tokenizer
    before = tokenizer_digest(tokenizer)
    tokenizer("a text", truncation=True, max_length=3, return_tensors="pt")
    assert tokenizer_digest(tokenizer) == before
    tokenizer.add_tokens(["ohwx"])
    assert tokenizer_digest(tokenizer) != before


def test_a_quantized_encoder_is_another_one() -> None:
    def layer() -> torch.nn.Module:
        torch.manual_seed(0)
        return torch.nn.Sequential(torch.nn.Linear(32, 32))

    def quantized() -> torch.nn.Module:
        made = layer()
        quantize(made, weights=qint8)
        freeze(made)
        return made

    assert module_digest(quantized()) == module_digest(quantized())
    assert module_digest(quantized()) != module_digest(layer())


def test_offloaded_blocks_count_with_their_weights() -> None:
    def stack(seed: int) -> torch.nn.Module:
        torch.manual_seed(seed)
        made = torch.nn.Sequential(torch.nn.ModuleList([torch.nn.Linear(4, 4) for _ in range(3)]))
        return made.requires_grad_(False)

    def offloaded(seed: int) -> torch.nn.Module:
        made = stack(seed)
        assert offload_blocks(made, "cpu") is not None
        return made

    assert module_digest(offloaded(1)) == module_digest(stack(1))
    assert module_digest(offloaded(2)) != module_digest(offloaded(1))
