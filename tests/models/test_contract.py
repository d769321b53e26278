"""The rules of BaseModel, for every arch of the catalogue on its own tiny checkpoint."""

from pathlib import Path
from typing import Any

import pytest
import torch

from models import catalog
from models.adapters.attach import new_network
from models.adapters.load import network_from_state
from models.base import BaseModel
from models.batch import Batch, GenerateImageConfig
from models.prompt_embeds import AdvancedPromptEmbeds
from models.tokens import cut_texts
from worker import tiny
from worker.load import Places, load_model

PROMPTS = ["a red apple", "two birds on a wire above a very long street"]


def loaded(arch: str, weights: Path, parts: Path | None = None) -> BaseModel:
    """`parts` is the folder of the text encoder and the VAE, for an arch whose files hold the network alone."""
    spec = {
        "kind": "sample",
        "name": "t",
        "model": {"arch": arch, "name_or_path": "x", "dtype": "fp32"},
        "samples": [{"prompt": ""}],
    }
    return load_model(
        catalog.parse_job(spec), Places(weights, parts, parts if "vae" in catalog.arch(arch).capabilities else None), "cpu"
    )


@pytest.fixture(scope="module", params=list(catalog.archs()))
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> BaseModel:
    folder = tmp_path_factory.mktemp(request.param)
    assert tiny.main(request.param, str(folder)) == 0
    written = list(folder.iterdir())
    made = loaded(request.param, written[0] if len(written) == 1 else folder)
    made.get_model_to_train().eval()
    return made


def test_texts_that_the_encoder_cuts_are_counted_without_running_it(model: BaseModel, monkeypatch: pytest.MonkeyPatch) -> None:
    found = cut_texts(model, [PROMPTS[0], "word " * 20_000])
    assert found is not None
    [(text, cut)] = found.items()
    assert text == "word " * 20_000
    assert cut.tokens >= 20_000 > 4096 >= cut.read
    monkeypatch.setattr(model, "text_encoder", None)
    assert cut_texts(model, [PROMPTS[0], text]) == found


@pytest.fixture
def pixels(model: BaseModel) -> torch.Tensor:
    side = 2 * model.get_bucket_divisibility()
    return torch.rand(2, 3, side, 2 * side, generator=torch.Generator().manual_seed(1)) * 2 - 1


@pytest.fixture
def latents(model: BaseModel, pixels: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return model.encode_images(pixels)


@pytest.fixture
def embeds(model: BaseModel) -> AdvancedPromptEmbeds:
    return model.encode_prompt(PROMPTS)


def test_the_card_and_the_model_agree(model: BaseModel) -> None:
    card = catalog.arch(str(model.arch))
    assert card.bucket_divisibility == model.get_bucket_divisibility()
    assert model.text_embedding_space_version
    assert model.latent_space_version


def test_pictures_become_latents_and_pictures_again(model: BaseModel, pixels: torch.Tensor, latents: torch.Tensor) -> None:
    assert (latents.ndim, latents.shape[0], latents.dtype) == (4, 2, torch.float32)
    assert latents.shape[3] == 2 * latents.shape[2]
    with torch.no_grad():
        assert model.decode_latents(latents).shape == pixels.shape


def test_a_list_of_pictures_and_a_second_time_give_the_same_latents(
    model: BaseModel, pixels: torch.Tensor, latents: torch.Tensor
) -> None:
    with torch.no_grad():
        assert torch.equal(model.encode_images(list(pixels)), latents)
        one_by_one = torch.cat([model.encode_images([each]) for each in pixels])
    assert torch.allclose(one_by_one, latents, atol=1e-5)  # a convolution may order its sums by the batch's size


def test_texts_become_one_2d_tensor_each_whatever_their_neighbours(model: BaseModel, embeds: AdvancedPromptEmbeds) -> None:
    assert [item.ndim for item in embeds.text_embeds] == [2, 2]
    alone = model.encode_prompt(PROMPTS[0])
    for key in embeds.keys():  # noqa: SIM118
        assert torch.equal(alone[key][0], embeds[key][0])
    assert not torch.equal(embeds.text_embeds[0], embeds.text_embeds[1])
    assert not embeds.text_embeds[0].requires_grad


def test_the_prediction_is_shaped_like_the_target_and_reaches_the_weights(model: BaseModel, latents: Any, embeds: Any) -> None:
    noise = model.get_latent_noise_from_latents(latents)
    noisy = model.add_noise(latents, noise, torch.tensor([100.0, 900.0]))
    root = model.get_model_to_train().requires_grad_(True)
    prediction = model.predict_noise(noisy, embeds, torch.tensor([100.0, 900.0]), batch=Batch(latents, PROMPTS))
    target = model.get_loss_target(noise=noise, batch=Batch(latents, PROMPTS))
    assert prediction.shape == target.shape == latents.shape
    assert bool(prediction.isfinite().all())
    assert not target.requires_grad
    prediction.square().mean().backward()
    assert any(param.grad is not None and bool(param.grad.abs().sum() > 0) for param in root.parameters())
    root.requires_grad_(False).zero_grad()


@torch.no_grad()
def test_guidance_is_the_unconditional_prediction_and_a_step_towards_the_prompt(
    model: BaseModel, latents: Any, embeds: Any
) -> None:
    empty = model.encode_prompt(["", ""])
    t = torch.tensor(700.0)
    without, with_prompt = model.predict_noise(latents, empty, t), model.predict_noise(latents, embeds, t)
    guided = model.predict_noise(
        latents, timestep=t, guidance_scale=3.5, conditional_embeddings=embeds, unconditional_embeddings=empty
    )
    assert torch.allclose(guided, without + 3.5 * (with_prompt - without), atol=1e-4)
    plain = model.predict_noise(latents, timestep=t, guidance_scale=3.5, conditional_embeddings=embeds)
    assert torch.equal(plain, with_prompt)


@pytest.mark.parametrize("count", [1, 3, 5])
def test_another_number_of_prompts_is_refused(model: BaseModel, latents: torch.Tensor, count: int) -> None:
    embeds = model.encode_prompt(["x"] * count)
    with pytest.raises(ValueError, match=f"{count} prompt embeds do not fit 2 latents"):
        model.predict_noise(latents, embeds, 500.0)


def test_a_seed_fixes_the_picture_and_torchs_generator_is_left_alone(model: BaseModel) -> None:
    side = 2 * model.get_bucket_divisibility()
    wanted = [
        GenerateImageConfig(PROMPTS[0], width=side, height=2 * side, seed=seed, num_inference_steps=2) for seed in (5, 6, 5)
    ]
    embeds = model.encode_prompt(PROMPTS[0]), model.encode_prompt("")
    before = torch.random.get_rng_state()
    pictures = []
    for image in model.generate_images(wanted, lambda _: embeds):
        assert torch.is_grad_enabled()
        pictures.append(image.tobytes())
    one, other, again = pictures
    assert torch.equal(torch.random.get_rng_state(), before)
    assert one == again
    assert one != other
    (image,) = model.generate_images(wanted[:1], lambda _: embeds)
    assert image.size == (side, 2 * side)


@torch.no_grad()
def test_a_saved_model_loads_and_predicts_the_same_bits(model: BaseModel, latents: Any, embeds: Any, tmp_path: Path) -> None:
    wanted = model.predict_noise(latents, embeds, 400.0)
    model.save_model(tmp_path / "w.safetensors", {"step": "1"}, torch.float32)
    beside = Path(model.model_config.name_or_path)
    again = loaded(str(model.arch), tmp_path / "w.safetensors", beside if beside.is_dir() else None)
    again.get_model_to_train().eval()
    assert torch.equal(again.predict_noise(latents, embeds, 400.0), wanted)


def test_adapter_keys_survive_the_public_convention(model: BaseModel) -> None:
    network = new_network(model.get_model_to_train(), 2, 2.0)
    state = network.public_state()
    network.detach()
    public = model.convert_lora_weights_before_save(dict(state))
    assert all(key.startswith("diffusion_model.") for key in public)
    back = model.convert_lora_weights_before_load(public)
    assert all(torch.equal(back[key], tensor) for key, tensor in state.items())
    network_from_state(model.get_model_to_train(), back).detach()
