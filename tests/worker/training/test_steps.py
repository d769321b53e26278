"""A training step: how its parts add up, and that micro-batches make one batch. Formulae here are written once more."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from models import catalog
from models.adapters.attach import new_network
from models.base import BaseModel
from models.batch import Batch
from models.errors import UserError
from models.prompt_embeds import AdvancedPromptEmbeds
from models.spec import TrainSpec
from worker.data.batches import TrainBatch
from worker.training.steps import Gathered, TrainStep, adapter_off

SHAPE = (4, 8, 8)
LATENTS = torch.randn(5, *SHAPE, generator=torch.Generator().manual_seed(1))
MASKS = torch.rand(5, 1, 32, 32, generator=torch.Generator().manual_seed(2))


class Net(nn.Module):
    """Mixes channels; time and text are added. 5-D latents are taken as they are."""

    def __init__(self) -> None:
        super().__init__()
        self.mix, self.out = nn.Linear(4, 16), nn.Linear(16, 4)

    def forward(self, x: torch.Tensor, t: torch.Tensor, text: torch.Tensor) -> torch.Tensor:
        rows = (x + (t / 1000 + text).reshape(-1, *[1] * (x.ndim - 1))).movedim(1, -1)
        hidden = nn.functional.dropout(self.mix(rows).tanh(), 0.25, self.training)
        return self.out(hidden).movedim(-1, 1)


class Little(BaseModel):
    is_flow_matching = True

    def __init__(self) -> None:
        super().__init__("cpu", SimpleNamespace(), dtype="fp32")
        torch.manual_seed(0)
        self.model = Net().eval()
        self.seen: list[tuple[torch.Tensor, float]] = []

    def get_noise_prediction(self, latent_model_input: Any, timestep: Any, text_embeddings: Any, **_: Any) -> torch.Tensor:
        text = torch.stack([item.mean() for item in text_embeddings.text_embeds])
        self.seen.append((latent_model_input, 1.0 if self.network is None else self.network.multiplier))
        return self.model(latent_model_input, timestep, text)


def spec_for(network: bool = False, trigger: str | None = None, **train: Any) -> TrainSpec:
    job = {
        "kind": "train",
        "name": "t",
        "model": {"arch": "pocket", "name_or_path": "random"},
        "network": {"linear": 2, "linear_alpha": 2.0} if network else None,
        "datasets": [{"folder_path": "colours"}, {"folder_path": "class", "is_reg": True}],
        "train": {"batch_size": 5, "timestep_type": "linear", **train},
    }
    if trigger:
        job["trigger_word"] = trigger
    made = catalog.parse_job(job)
    assert isinstance(made, TrainSpec)
    return made


def embeds(count: int, value: float = 1.0) -> AdvancedPromptEmbeds:
    return AdvancedPromptEmbeds(text_embeds=[torch.full((1, 1), value + place) for place in range(count)])


def taken(first: int = 0, count: int = 5, mask: bool = False, **more: Any) -> TrainBatch:
    rows = slice(first, first + count)
    batch = Batch(LATENTS[rows], [""] * count, mask_tensor=MASKS[rows] if mask else None)
    return TrainBatch(batch, AdvancedPromptEmbeds(text_embeds=embeds(5).text_embeds[rows]), step=3, first=first, **more)


def adapted(model: BaseModel, live: bool = True) -> list[nn.Parameter]:
    """Put an adapter on, which does something if `live`."""
    torch.manual_seed(4)
    model.model.requires_grad_(False)
    model.network = new_network(model.model, 2, 2.0)
    for name, param in model.network.named_parameters():
        if live and name.endswith("lora_B"):
            nn.init.normal_(param)
    return list(model.network.parameters())


def grads(params: Any) -> list[torch.Tensor]:
    return [param.grad.clone() for param in params]


EVERYTHING = {"timestep_type": "weighted", "loss_type": "huber", "huber_c": 0.3, "noise_offset": 0.1}


def test_a_noise_offset_that_the_architecture_would_drop_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Little, "get_latent_noise_from_latents", lambda _, latents: torch.randn(latents.shape))
    TrainStep(Little(), spec_for())
    with pytest.raises(UserError, match=r"arch 'pocket' draws its own noise and has no noise_offset; 0\.1 must be 0"):
        TrainStep(Little(), spec_for(noise_offset=0.1))


@pytest.mark.parametrize("sizes", [[5], [2, 2, 1], [1, 1, 1, 1, 1], [3, 2], [2, 3]])
def test_micro_batches_of_any_size_have_the_gradient_of_one_batch_of_them_all(sizes: list[int]) -> None:
    whole, split = Little(), Little()
    gathered = Gathered(spec_for(**EVERYTHING))
    gathered.add(TrainStep(whole, spec_for(**EVERYTHING))(taken(mask=True)), 5)
    wanted = gathered.mean(whole.model.parameters())
    spec = spec_for(**EVERYTHING | {"batch_size": max(sizes), "gradient_accumulation": len(sizes)})
    gathered, step, first = Gathered(spec), TrainStep(split, spec), 0
    for size in sizes:
        gathered.add(step(taken(first, size, mask=True)), size)
        first += size
    made = gathered.mean(split.model.parameters())
    assert float(made["loss"]) == pytest.approx(float(wanted["loss"]), rel=1e-6)
    for one, other in zip(grads(whole.model.parameters()), grads(split.model.parameters()), strict=True):
        assert torch.allclose(one, other, rtol=1e-6, atol=1e-7)


def test_as_in_ai_toolkit_gradients_add_up_and_the_loss_is_their_mean() -> None:
    model, single = Little(), Little()
    spec = spec_for(batch_size=2, gradient_accumulation=2, as_in_ai_toolkit=True)
    gathered, step = Gathered(spec), TrainStep(model, spec)
    losses = []
    for first in (0, 2):
        gathered.add(step(taken(first, 2)), 2)
        losses.append(TrainStep(single, spec)(taken(first, 2))["loss"])
    sum(losses).backward()
    made = gathered.mean(model.model.parameters())
    assert float(made["loss"]) == pytest.approx(sum(float(loss.detach()) for loss in losses) / 2)
    for one, other in zip(grads(model.model.parameters()), grads(single.model.parameters()), strict=True):
        assert torch.allclose(one, other, rtol=1e-5, atol=1e-7)


def by_hand(model: Little, step: TrainStep, batch: TrainBatch, weights: torch.Tensor, c: float) -> float:
    """Pseudo-Huber, times the timesteps' weights and the mask over its mean: a mean over each sample, then over samples."""
    drawn = step.draw(batch.batch.latents, batch.step, batch.first)
    with torch.no_grad():
        t = drawn.timesteps.double().reshape(-1, 1, 1, 1) / 1000
        noise, clean = drawn.noise.double(), batch.batch.latents.double()
        noisy = ((1 - t) * clean + t * noise).float()
        prediction = model.predict_noise(noisy, text_embeddings=batch.embeds, timestep=drawn.timesteps).double()
    loss = ((prediction - (noise - clean)) ** 2 + c**2).sqrt() - c
    mask = batch.batch.mask_tensor.double()[:, :, ::4, ::4]  # 32 to 8: the nearest pixel is every fourth
    loss = loss * weights.reshape(-1, 1, 1, 1) * mask / mask.mean((1, 2, 3), keepdim=True)
    return float(loss.mean())


def test_a_loss_is_the_product_of_its_parts() -> None:
    model, options = Little(), {"loss_type": "huber", "huber_c": 0.3, "timestep_type": "weighted"}
    step = TrainStep(model, spec_for(**options, reg_weight=0.5))
    drawn = step.draw(LATENTS, 3, 0)
    from worker.training.timesteps import loss_weights

    weights = torch.tensor(loss_weights(drawn.levels), dtype=torch.float64)
    batch = taken(mask=True)
    plain = by_hand(model, step, batch, weights, 0.3)
    assert float(step(batch)["loss"].detach()) == pytest.approx(plain, rel=1e-6)
    assert float(step(taken(mask=True, loss_multiplier=3.0))["loss"].detach()) == pytest.approx(3 * plain, rel=1e-6)
    regular = taken(mask=True, loss_multiplier=3.0, is_reg=True)
    assert float(step(regular)["loss"].detach()) == pytest.approx(1.5 * plain, rel=1e-6)


def test_a_model_may_scale_its_loss_and_add_to_it() -> None:
    class Own(Little):
        def scale_loss(self, loss: torch.Tensor) -> torch.Tensor:
            assert loss.shape == LATENTS.shape
            return loss * 4

        def get_additional_loss(self, pred: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
            assert pred.requires_grad and pred.shape == target.shape == LATENTS.shape
            return (pred * 0).sum() + 7

    plain = float(TrainStep(Little(), spec_for())(taken())["loss"].detach())
    assert float(TrainStep(Own(), spec_for())(taken())["loss"].detach()) == pytest.approx(4 * plain + 7, rel=1e-6)


@pytest.mark.parametrize("shape", [(4, 8, 8), (4, 3, 8, 8)])
def test_noise_offset_shifts_whole_channels_and_nothing_else(shape: tuple[int, ...]) -> None:
    latents = torch.zeros(64, *shape)
    plain, shifted = (TrainStep(Little(), spec_for(noise_offset=offset)).draw(latents, 3, 0) for offset in (0.0, 0.5))
    assert torch.equal(plain.timesteps, shifted.timesteps)
    shift = (shifted.noise - plain.noise).flatten(2)
    assert torch.allclose(shift, shift[..., :1].expand_as(shift), atol=1e-6)
    assert float(shift[..., 0].std()) == pytest.approx(0.5, rel=0.15)


KEEPING: list[dict[str, Any]] = [
    {"diff_output_preservation": True, "diff_output_preservation_class": "dog"},
    {"blank_prompt_preservation": True},
]


def kept(weight: float, keeping: dict[str, Any]) -> TrainSpec:
    name = next(iter(keeping))
    return spec_for(network=True, trigger="sks", **keeping, **{f"{name}_multiplier": weight})


@pytest.mark.parametrize("keeping", KEEPING)
def test_preservation_adds_what_the_adapter_changes_under_the_other_caption(keeping: dict[str, Any]) -> None:
    model = Little()
    adapted(model)
    other = embeds(5, value=9.0)
    step = TrainStep(model, kept(2.5, keeping))
    alone = float(step(taken())["loss"].detach())
    model.seen.clear()
    losses = step(taken(preservation_embeds=other))
    assert [multiplier for _, multiplier in model.seen] == [1.0, 0.0, 1.0]
    assert all(torch.equal(noisy, model.seen[0][0]) for noisy, _ in model.seen)
    times = step.draw(LATENTS, 3, 0).timesteps
    with torch.no_grad():
        now = model.predict_noise(model.seen[0][0], text_embeddings=other, timestep=times)
        with adapter_off(model.network):
            before = model.predict_noise(model.seen[0][0], text_embeddings=other, timestep=times)
    changed = float(((now - before).double() ** 2).mean())
    assert changed > 0.01
    assert float(losses["loss/preservation"]) == pytest.approx(changed, rel=1e-6)
    assert float(losses["loss/normal"]) == alone
    assert float(losses["loss"].detach()) == pytest.approx(alone + 2.5 * changed, rel=1e-6)
    assert set(losses) == {"loss", "loss/normal", "loss/preservation"}


@pytest.mark.parametrize("keeping", KEEPING)
def test_preservation_of_no_weight_trains_the_same_weights(keeping: dict[str, Any]) -> None:
    trained = []
    for weight in (None, 1e-30, 1.0):
        model = Little()
        model.model.train()  # dropout: the further passes must not move its draws
        params = adapted(model, live=False)
        optimizer = torch.optim.AdamW(params, lr=1e-2, eps=1e-6)
        step = TrainStep(model, kept(weight or 1.0, keeping))
        for _ in range(4):
            optimizer.zero_grad()
            step(taken(preservation_embeds=embeds(5, 9.0) if weight else None))["loss"].backward()
            optimizer.step()
        trained.append([param.detach().clone() for param in params])
    without, nothing, much = trained
    assert all(torch.equal(one, other) for one, other in zip(without, nothing, strict=True))
    assert not all(torch.equal(one, other) for one, other in zip(without, much, strict=True))


def test_prior_regularisation_aims_at_what_the_model_said_without_the_adapter() -> None:
    model = Little()
    params = adapted(model, live=False)
    model.model.train()
    step = TrainStep(model, spec_for(network=True))
    loss = step(taken(prior_reg=True))["loss"]
    loss.backward()
    assert float(loss) == 0  # a new adapter changes nothing, and both passes drop the same
    model.model.eval()
    params = adapted(model)
    loss = step(taken(prior_reg=True))["loss"]
    loss.backward()
    assert float(loss) > 0.01 and any(float(grad.norm()) > 0 for grad in grads(params))


def test_the_adapter_comes_back_as_it_was_even_after_an_error() -> None:
    model = Little()
    adapted(model)
    model.network.multiplier = 0.7
    with pytest.raises(RuntimeError), adapter_off(model.network):
        assert model.network.multiplier == 0
        raise RuntimeError
    assert model.network.multiplier == 0.7


def test_every_draw_of_a_step_hangs_on_seed_step_and_place(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Little()
    model.model.train()
    adapted(model)

    def loss(**changes: Any) -> float:
        torch.manual_seed(len(model.seen))  # whatever was drawn before
        batch = taken(preservation_embeds=embeds(5, 2.0))
        return float(TrainStep(model, kept(1.0, KEEPING[0]))(TrainBatch(**{**vars(batch), **changes}))["loss"].detach())

    assert loss() == loss()
    assert len({loss(), loss(step=4), loss(first=5)}) == 3
