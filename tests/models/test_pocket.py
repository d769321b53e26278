"""The bundled arch, against diffusers and transformers used without any of our code."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import FlowMatchEulerDiscreteScheduler, UNet2DConditionModel
from safetensors import safe_open
from torch.nn import functional as F
from transformers import AutoModel, AutoTokenizer

from models import catalog
from models.archs.pocket.model import PocketModel, bundled_encoder, write_tiny
from models.batch import Batch, GenerateImageConfig
from models.errors import UserError
from models.prompt_embeds import AdvancedPromptEmbeds
from models.weights import save_tensors
from worker.data.batches import TrainBatch
from worker.training.steps import TrainStep

PROMPT = "grinning face with smiling eyes"


def pocket(weights: Path | str) -> PocketModel:
    config = SimpleNamespace(name_or_path=str(weights), te_name_or_path=None, model_kwargs=SimpleNamespace(channels=[16, 32]))
    model = PocketModel("cpu", config, dtype="fp32")
    model.load_model()
    model.get_model_to_train().eval()
    return model


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pocket")
    write_tiny(folder)
    return folder / "pocket.safetensors"


@pytest.fixture(scope="module")
def model(weights: Path) -> PocketModel:
    return pocket(weights)


@pytest.fixture(scope="module")
def theirs(weights: Path) -> UNet2DConditionModel:
    """The checkpoint as diffusers alone reads it: its config from the header, its tensors by their names."""
    with safe_open(weights, framework="pt") as file:
        unet = UNet2DConditionModel(**json.loads(file.metadata()["config"]))
        unet.load_state_dict({name: file.get_tensor(name) for name in file.keys()})  # noqa: SIM118
    return unet.eval()


def sentence(text: str) -> torch.Tensor:
    """The mean of MiniLM's token features, scaled to unit variance, as (1, 384)."""
    tokenizer, encoder = AutoTokenizer.from_pretrained(bundled_encoder()), AutoModel.from_pretrained(bundled_encoder()).eval()
    with torch.no_grad():
        mean = encoder(**tokenizer(text, return_tensors="pt")).last_hidden_state.mean(1)
    return mean / mean.norm() * 384**0.5


@torch.no_grad()
def test_a_checkpoint_is_a_unet_of_diffusers(model: PocketModel, theirs: Any) -> None:
    x, text, t = torch.randn(2, 12, 16, 16), torch.randn(2, 1, 384), torch.tensor([30.0, 960.0])
    embeds = AdvancedPromptEmbeds(text_embeds=list(text))
    wanted = theirs(x, t, encoder_hidden_states=text, class_labels=text[:, 0]).sample
    assert torch.equal(model.get_noise_prediction(x, t, embeds), wanted)


def test_a_text_is_the_mean_of_what_transformers_gives(model: PocketModel) -> None:
    made = model.encode_prompt([PROMPT, "x"])
    assert torch.allclose(made.text_embeds[0], sentence(PROMPT), rtol=0, atol=1e-5)
    assert torch.allclose(made.text_embeds[1], sentence("x"), rtol=0, atol=1e-5)


def test_a_long_text_is_cut_and_not_an_error(model: PocketModel) -> None:
    assert model.encode_prompt("word " * 1000).text_embeds[0].shape == (1, 384)


def test_nothing_is_lost_between_pixels_and_latents(model: PocketModel) -> None:
    pixels = torch.rand(2, 3, 32, 48) * 2 - 1
    latents = model.encode_images(pixels)
    assert latents.shape == (2, 12, 16, 24)
    assert torch.equal(model.decode_latents(latents), pixels)


@torch.no_grad()
@pytest.mark.parametrize(("steps", "scale"), [(1, 1.0), (4, 1.0), (7, 2.5)])
def test_a_preview_is_that_of_a_plain_loop_with_diffusers_scheduler(
    model: PocketModel, theirs: Any, steps: int, scale: float
) -> None:
    scheduler = FlowMatchEulerDiscreteScheduler()
    scheduler.set_timesteps(sigmas=np.linspace(1, 1 / steps, steps).tolist())
    x = torch.randn((1, 12, 16, 24), generator=torch.Generator().manual_seed(11))
    cond, uncond = sentence(PROMPT), sentence("blurry")
    for t in scheduler.timesteps:
        with_prompt, without = (theirs(x, t, encoder_hidden_states=s[None], class_labels=s).sample for s in (cond, uncond))
        x = scheduler.step(without + scale * (with_prompt - without), t, x).prev_sample
    wanted = ((F.pixel_shuffle(x, 2)[0].clamp(-1, 1) + 1) * 127.5).permute(1, 2, 0).numpy()
    config = GenerateImageConfig(PROMPT, "blurry", width=48, height=32, seed=11, guidance_scale=scale, num_inference_steps=steps)
    (image,) = model.generate_images([config], lambda _: (model.encode_prompt(PROMPT), model.encode_prompt("blurry")))
    assert image.size == (48, 32)
    assert np.abs(np.asarray(image, dtype=np.float32) - wanted).max() <= 1
    assert np.asarray(image).std() > 1


def test_the_target_is_noise_minus_clean(model: PocketModel) -> None:
    clean, noise = torch.randn(2, 12, 4, 4), torch.randn(2, 12, 4, 4)
    target = model.get_loss_target(noise=noise, batch=Batch(clean, ["", ""]))
    assert torch.equal(target, noise - clean)
    assert torch.equal(model.add_noise(clean, noise, torch.tensor([250.0])), 0.75 * clean + 0.25 * noise)


def test_a_saved_model_has_the_same_bits_and_says_how_it_is_built(model: PocketModel, theirs: Any, tmp_path: Path) -> None:
    path = tmp_path / "again.safetensors"
    model.save_model(path, {"step": "7"}, torch.float32)
    with safe_open(path, framework="pt") as file:
        assert file.metadata()["step"] == "7"
        assert all(torch.equal(file.get_tensor(name), tensor) for name, tensor in theirs.state_dict().items())
    again = pocket(path).get_model_to_train().state_dict()
    assert all(torch.equal(again[name], tensor) for name, tensor in theirs.state_dict().items())


def test_a_file_of_another_model_is_refused_by_name(tmp_path: Path) -> None:
    save_tensors({"a": torch.ones(1)}, tmp_path / "other.safetensors")
    with pytest.raises(
        UserError, match=r"other\.safetensors is .* no config with block_out_channels, class_embed_type in"
    ) as refused:
        pocket(tmp_path / "other.safetensors")
    assert refused.value.code == "bad_weights"


def test_three_batches_of_two_teach_what_one_batch_of_six_does(model: PocketModel) -> None:
    """Every sample's noise and timestep hang on its place in the step, so only the order of float32 sums differs."""
    spec = catalog.parse_job(
        {
            "kind": "train",
            "name": "t",
            "model": {"arch": "pocket", "name_or_path": "random"},
            "network": None,
            "datasets": [{"folder_path": "x"}],
        }
    )
    latents = torch.randn(6, 12, 8, 8, generator=torch.Generator().manual_seed(2))
    texts = [f"picture {index}" for index in range(6)]
    root = model.get_model_to_train().requires_grad_(True)

    def gradients(size: int) -> list[torch.Tensor]:
        root.zero_grad()
        for first in range(0, 6, size):
            part = slice(first, first + size)
            batch, embeds = Batch(latents[part], texts[part]), model.encode_prompt(texts[part])
            (TrainStep(model, spec)(TrainBatch(batch, embeds, 3, first))["loss"] * size / 6).backward()
        return [param.grad.clone() for param in root.parameters() if param.grad is not None]

    for small, large in zip(gradients(2), gradients(6), strict=True):
        assert float((small - large).abs().max()) <= 1e-4 * max(1e-3, float(large.abs().max()))
    root.requires_grad_(False).zero_grad()
