"""A training step of FLUX.2 klein: its loss against the formula in float64, checkpointing, embeds out of a cache."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from models import catalog
from models.adapters.attach import new_network
from models.batch import Batch
from models.prompt_embeds import concat_prompt_embeds
from models.spec import TrainSpec
from tests.models.klein.tiny_klein import LENGTH, PROMPTS, embeds_of, load, unit
from worker.data.batches import TrainBatch
from worker.training.steps import TrainStep


@pytest.fixture
def spec() -> TrainSpec:
    made = catalog.parse_job(
        {
            "kind": "train",
            "name": "one",
            "model": {"arch": "flux2_klein_4b", "name_or_path": "x", "dtype": "fp32"},
            "datasets": [{"folder_path": "x"}],
        }
    )
    assert isinstance(made, TrainSpec)
    return made


@pytest.fixture
def batch(klein: Any, photos: list[Image.Image]) -> Batch:
    clean = torch.randn(2, klein.model.config.in_channels, 4, 5, generator=torch.Generator().manual_seed(4))
    return Batch(clean, list(PROMPTS), control_tensor_list=[[unit(photos[0])], [unit(photos[1]), unit(photos[2])]])


def test_the_loss_of_a_step_is_the_formula_in_float64(klein: Any, pipe: Any, spec: TrainSpec, batch: Batch, photos: Any) -> None:
    step = TrainStep(klein, spec)
    loss = step(TrainBatch(batch, klein.encode_prompt(list(PROMPTS)), step=3))["loss"]
    drawn = step.draw(batch.latents, 3, 0)
    noise, t = drawn.noise, drawn.timesteps
    exact = copy.deepcopy(pipe.transformer).double()
    vae = copy.deepcopy(pipe.vae).double()
    texts = embeds_of(pipe, *PROMPTS).double()
    squares = []
    for i, pictures in enumerate([photos[:1], photos[1:]]):
        s, x0, n = t[i].double() / 1000, batch.latents[i].double(), noise[i].double()
        mixed = (1 - s) * x0 + s * n
        tokens, ids = [mixed.reshape(mixed.shape[0], -1).T], [pipe._prepare_latent_ids(mixed[None])[0]]
        for place, photo in enumerate(pictures):
            width, height = (side // 16 * 16 for side in photo.size)
            pixels = pipe.image_processor.preprocess(photo, height=height, width=width, resize_mode="crop").double()
            z = vae.encode(pixels).latent_dist.mode()[0]
            z = torch.stack([z[:, row::2, column::2] for row in (0, 1) for column in (0, 1)], dim=1).flatten(0, 1)
            z = (z - vae.bn.running_mean.view(-1, 1, 1)) / torch.sqrt(vae.bn.running_var.view(-1, 1, 1) + 1e-4)
            tokens.append(z.reshape(z.shape[0], -1).T)
            ids.append(torch.tensor([[10 * place + 10, y, x, 0] for y in range(z.shape[1]) for x in range(z.shape[2])]))
        predicted = exact(
            hidden_states=torch.cat(tokens)[None], timestep=s[None], encoder_hidden_states=texts[i : i + 1],
            img_ids=torch.cat(ids), txt_ids=torch.tensor([[0, 0, 0, place] for place in range(LENGTH)]), return_dict=False,
        )[0][0, :20].T.reshape(x0.shape)  # fmt: skip
        squares.append((predicted - (n - x0)).square())
    assert float(loss.detach()) == pytest.approx(float(torch.stack(squares).mean().detach()), rel=1e-5)


def test_gradient_checkpointing_changes_neither_loss_nor_gradients(klein: Any, tiny: Path, spec: TrainSpec, batch: Batch) -> None:
    def learn(checkpointing: bool) -> tuple[torch.Tensor, list[Any]]:
        model = load(tiny)
        model.model.train()
        torch.manual_seed(0)
        network = new_network(model.get_model_to_train(), 2, 2.0, model.get_transformer_block_names())
        stir(network)
        if checkpointing:
            model.enable_gradient_checkpointing()
        loss = TrainStep(model, spec)(TrainBatch(batch, klein.encode_prompt(list(PROMPTS))))["loss"]
        loss.backward()
        return loss.detach(), [parameter.grad for parameter in network.parameters()]

    (plain, gradients), (checkpointed, others) = learn(False), learn(True)
    assert torch.equal(plain, checkpointed)
    assert all(bool(gradient.abs().sum() > 0) for gradient in gradients)
    assert all(torch.equal(one, other) for one, other in zip(gradients, others, strict=True))


def stir(network: Any) -> None:
    """Give B numbers, as training would."""
    draw = torch.Generator().manual_seed(9)
    with torch.no_grad():
        for layer in network.layers.values():
            layer.lora_B.copy_(0.2 * torch.randn(layer.lora_B.shape, generator=draw))


def test_joined_embeds_of_a_cache_predict_what_fresh_ones_do(klein: Any) -> None:
    x = torch.randn(2, klein.model.config.in_channels, 4, 4, generator=torch.Generator().manual_seed(2))
    joined = concat_prompt_embeds([klein.encode_prompt(prompt) for prompt in PROMPTS], klein.te_padding_side)
    with torch.no_grad():
        one = klein.predict_noise(x, text_embeddings=joined, timestep=400.0)
        other = klein.predict_noise(x, text_embeddings=klein.encode_prompt(list(PROMPTS)), timestep=400.0)
    assert torch.equal(one, other)
