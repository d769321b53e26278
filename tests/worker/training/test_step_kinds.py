"""Training steps of other kinds of model: predicting noise, with sound, with captions of unlike length."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import DDPMScheduler
from diffusers.training_utils import compute_snr

from models.adapters.attach import new_network
from models.base import BaseModel
from models.batch import Batch
from models.errors import UserError
from models.spec import TrainSpec
from tests.models import variants
from worker.data.batches import TrainBatch
from worker.training.steps import Gathered, TrainStep, adapter_off

PROMPTS = ["red", "a rather longer caption about something blue, with many more words than the other one has, " * 3, ""]


def spec_for(**train: Any) -> TrainSpec:
    model = {"arch": "example", "name_or_path": "x"}
    job = {"kind": "train", "name": "t", "model": model, "datasets": [{"folder_path": "x"}]}
    return TrainSpec.model_validate({**job, "train": {"batch_size": 3, "timestep_type": "linear", **train}})


def batch_of(model: BaseModel, rows: slice = slice(0, 3), sound: bool = False) -> TrainBatch:
    draw = torch.Generator().manual_seed(1)
    latents = torch.randn(3, 4, *([3] if sound else []), 4, 4, generator=draw)[rows]
    batch = Batch(latents, PROMPTS[rows])
    if sound:
        batch.audio_latents = torch.randn(3, 20, generator=draw)[rows]
    return TrainBatch(batch, model.encode_prompt(PROMPTS[rows]), step=2, first=rows.start)


@pytest.fixture
def model_of(tmp_path: Path) -> Any:
    def make(cls: type[BaseModel], *capabilities: str) -> Any:
        return variants.subject(cls, tmp_path, *capabilities).build()

    return make


def test_a_batch_of_captions_of_unlike_length_costs_the_mean_of_the_single_ones(model_of: Any) -> None:
    step = TrainStep(model := model_of(variants.ExampleModel), spec_for())
    singles = [float(step(batch_of(model, slice(i, i + 1)))["loss"].detach()) for i in range(3)]
    assert float(step(batch_of(model))["loss"].detach()) == pytest.approx(sum(singles) / 3, abs=1e-5)


@pytest.mark.parametrize("kind", ["epsilon", "v_prediction"])
def test_a_model_with_a_ddpm_scheduler_trains_at_its_whole_timesteps(model_of: Any, kind: str) -> None:
    model = model_of(variants.EpsilonModel)
    model.noise_scheduler = DDPMScheduler.from_config(model.noise_scheduler.config, prediction_type=kind)
    step = TrainStep(model, spec_for())
    many = step.draw(torch.zeros(4000, 1, 1, 1), 0, 0).timesteps
    assert many.dtype == torch.long
    assert 0 <= int(many.min()) < 3 and 996 < int(many.max()) <= 999
    assert float(many.double().mean()) == pytest.approx(499.5, abs=15)
    batch = batch_of(model)
    drawn, clean = step.draw(batch.batch.latents, 2, 0), batch.batch.latents
    alpha = model.noise_scheduler.alphas_cumprod[drawn.timesteps].reshape(-1, 1, 1, 1)
    noisy = alpha.sqrt() * clean + (1 - alpha).sqrt() * drawn.noise
    target = drawn.noise if kind == "epsilon" else alpha.sqrt() * drawn.noise - (1 - alpha).sqrt() * clean
    with torch.no_grad():
        prediction = model.predict_noise(noisy, text_embeddings=batch.embeds, timestep=drawn.timesteps)
    costs = ((prediction - target).double() ** 2).mean((1, 2, 3))
    assert float(step(batch)["loss"].detach()) == pytest.approx(float(costs.mean()), rel=1e-5)
    snr = compute_snr(model.noise_scheduler, drawn.timesteps).double()
    weights = snr.clamp(max=5) / (snr if kind == "epsilon" else snr + 1)
    weighted = TrainStep(model, spec_for(min_snr_gamma=5.0))(batch)["loss"]
    assert float(weighted.detach()) == pytest.approx(float((weights * costs).mean()), rel=1e-4)


def test_a_model_that_predicts_noise_learns(model_of: Any) -> None:
    model = model_of(variants.EpsilonModel)
    params = list(model.model.requires_grad_(True).parameters())
    optimizer, step, told = torch.optim.AdamW(params, lr=3e-3), TrainStep(model, spec_for(min_snr_gamma=5.0)), []
    batch = batch_of(model)
    for number in range(40):
        gathered = Gathered(spec_for())
        gathered.add(step(dataclasses.replace(batch, step=number)), 3)
        told.append(float(gathered.mean(params)["loss"]))
        optimizer.step()
        optimizer.zero_grad()
    assert sum(told[-10:]) < 0.7 * sum(told[:10])


def test_a_flow_model_has_no_snr(model_of: Any) -> None:
    with pytest.raises(UserError, match="DDPM"):
        TrainStep(model_of(variants.ExampleModel), spec_for(min_snr_gamma=5.0))


def test_sound_is_part_of_the_loss_with_noise_that_hangs_on_the_place(model_of: Any) -> None:
    model = model_of(variants.AudioModel, "video", "audio")
    once, twice = (TrainStep(model, spec_for(audio_loss_multiplier=weight)) for weight in (1.0, 3.0))
    batch = batch_of(model, sound=True)
    losses = once(batch)
    sound = ((batch.batch.audio_pred - batch.batch.audio_target).double() ** 2).mean()
    assert float(losses["loss/audio"]) == pytest.approx(float(sound.detach()), rel=1e-6)
    assert float(losses["loss"].detach()) == pytest.approx(float(losses["loss/normal"] + losses["loss/audio"]), rel=1e-6)
    tripled = twice(batch_of(model, sound=True))["loss"]
    assert float((tripled - losses["loss"]).detach()) == pytest.approx(2 * float(sound.detach()), rel=1e-5)
    part = batch_of(model, slice(1, 3), sound=True)
    once(part)
    assert torch.equal(part.batch.audio_noise, batch.batch.audio_noise[1:])


def test_sound_is_preserved_too_and_the_first_pass_keeps_its_own(model_of: Any) -> None:
    model = model_of(variants.AudioModel, "video", "audio")
    model.model.requires_grad_(False)
    torch.manual_seed(4)
    model.network = new_network(model.model, 2, 2.0)
    for param in model.network.parameters():
        torch.nn.init.normal_(param, std=0.2)
    step = TrainStep(model, spec_for(blank_prompt_preservation=True, audio_loss_multiplier=2.0))
    batch = batch_of(model, sound=True)
    alone = step(batch)
    blank = model.encode_prompt(["", "", ""])
    losses = step(dataclasses.replace(batch, preservation_embeds=blank))
    made = batch.batch
    assert made.audio_pred_slot is None
    wanted = ((made.audio_pred_preservation - made.audio_pred_prior).double() ** 2).mean()
    assert float(losses["loss/preservation_audio"]) == pytest.approx(float(wanted.detach()), rel=1e-6)
    assert float(losses["loss/audio"]) == float(alone["loss/audio"])
    whole = alone["loss"] + losses["loss/preservation"] + 2 * losses["loss/preservation_audio"]
    assert float(losses["loss"].detach()) == pytest.approx(float(whole.detach()), rel=1e-6)
    assert float(losses["loss/preservation"]) > 0
    prior = step(dataclasses.replace(batch, prior_reg=True))
    with adapter_off(model.network), torch.no_grad():
        assert float(prior["loss/audio"]) > 0 and torch.equal(made.audio_target, made.audio_pred_prior)
