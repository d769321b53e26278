"""Timesteps against closed formulae in float64 and the schedulers of diffusers; nothing here is random."""

import itertools
import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from diffusers import DDPMScheduler, FlowMatchEulerDiscreteScheduler

from models.base import BaseModel
from models.errors import UserError
from models.spec import TrainSettings
from worker.training.shift import num_tokens
from worker.training.timesteps import BLEND_MOST, WEIGHTS, Timesteps, loss_weights

SHAPE = (16, 32, 48)
SHARES = [0.0, 1e-6, 0.01, 0.2, 0.4, 0.5, 0.77, 0.99, 1 - 1e-6]
RANGES = [(0.0, 1000.0), (0.0, 875.0), (875.0, 1000.0), (300.0, 301.0)]


class Model(BaseModel):
    """A model of which only scheduler and denoiser's config matter."""

    def __init__(self, scheduler: Any = None, **config: Any) -> None:
        super().__init__("cpu", SimpleNamespace(), dtype="fp32", noise_scheduler=scheduler)
        self.model = SimpleNamespace(config=config)


@pytest.fixture
def at(monkeypatch: pytest.MonkeyPatch) -> Any:
    """`at(share, kind, low, high)`: the timestep that an even draw of `share` becomes."""

    def pick(share: float, kind: str, *ends: float, model: BaseModel | None = None, shape: Any = SHAPE, **train: Any) -> float:
        picker = Timesteps(model or Model(), TrainSettings(timestep_type=kind, **train)).picker(shape, *ends)
        with monkeypatch.context() as patched:
            patched.setattr(torch, "rand", lambda *_, **__: torch.tensor(share, dtype=torch.float64))
            return picker()

    return pick


def cdf(kind: str, level: float) -> float:
    """P(t / 1000 <= level), written once more."""
    x = torch.tensor(level, dtype=torch.float64)
    if kind == "sigmoid":
        return float(torch.special.ndtr(torch.logit(x)))
    if kind == "lognorm_blend":
        cut = torch.special.ndtr(torch.tensor(BLEND_MOST, dtype=torch.float64).log() / 0.333)
        bell = 1 - torch.special.ndtr(((1 - x) * BLEND_MOST).log() / 0.333) / cut
        return float(0.75 * bell + 0.25 * x)
    return level


@pytest.mark.parametrize("share", SHARES)
def test_an_even_draw_becomes_the_quantile_of_its_kind(at: Any, share: float) -> None:
    assert at(share, "linear") == pytest.approx(1000 * (1 - share), rel=1e-12)
    assert at(share, "weighted") == at(share, "linear")
    normal = torch.special.ndtri(torch.tensor(1 - share, dtype=torch.float64))
    assert at(share, "sigmoid") == pytest.approx(1000 * float(torch.sigmoid(normal)), rel=1e-9, abs=1)
    assert cdf("lognorm_blend", at(share, "lognorm_blend") / 1000) == pytest.approx(1 - share, abs=1e-12)


@pytest.mark.parametrize(("kind", "ends"), list(itertools.product(["linear", "sigmoid", "lognorm_blend"], RANGES)))
def test_a_range_gives_the_same_distribution_on_condition_that_it_lies_there(
    at: Any, kind: str, ends: tuple[float, float]
) -> None:
    low, high = (cdf(kind, end / 1000) for end in ends)
    for share in SHARES:
        t = at(share, kind, *ends)
        assert ends[0] < t <= ends[1]
        assert (cdf(kind, t / 1000) - low) / (high - low) == pytest.approx(1 - share, abs=1e-8)


@pytest.mark.parametrize("kind", ["linear", "sigmoid", "lognorm_blend"])
def test_emphasis_takes_the_place_as_a_cube_also_within_a_range(at: Any, kind: str) -> None:
    for share in (0.1, 0.5, 0.8):
        for emphasis, place in (("content", share**3), ("style", 1 - (1 - share) ** 3)):
            assert cdf(kind, at(share, kind, content_or_style=emphasis) / 1000) == pytest.approx(1 - place, abs=1e-9)
        cube_low = 1 - cdf(kind, 0.875)  # content, t <= 875: the place is beyond that of 875
        first = cube_low ** (1 / 3)
        place = (first + share * (1 - first)) ** 3
        assert cdf(kind, at(share, kind, 0.0, 875.0, content_or_style="content") / 1000) == pytest.approx(1 - place, abs=1e-9)


def test_steps_bound_the_levels(at: Any) -> None:
    for share in SHARES:
        assert 400 < at(share, "sigmoid", min_denoising_steps=200, max_denoising_steps=600) <= 800
    assert at(0.5, "linear", 0.0, 700.0, min_denoising_steps=200, max_denoising_steps=600) == pytest.approx(550)
    with pytest.raises(UserError, match="between 900 and 800"):
        at(0.5, "linear", 900.0, 1000.0, min_denoising_steps=200)


@pytest.mark.parametrize("options", [{"shift": 3.0}, {"shift": 3.0, "shift_terminal": 0.1}, {"shift": 1.0}])
def test_static_shift_is_that_of_diffusers(at: Any, options: dict[str, float]) -> None:
    scheduler = FlowMatchEulerDiscreteScheduler(**options)
    model = Model(FlowMatchEulerDiscreteScheduler(**options))
    shares = [0.0, 0.25, 0.5, 0.9]
    scheduler.set_timesteps(sigmas=[*(1 - share for share in shares), 1e-12])  # the end, by which it stretches
    assert [at(share, "shift", model=model) for share in shares] == pytest.approx(scheduler.timesteps[:-1].tolist(), rel=1e-6)


@pytest.mark.parametrize("kind", ["exponential", "linear"])
@pytest.mark.parametrize("shape", [(16, 32, 48), (16, 128, 128)])
def test_dynamic_shift_grows_with_the_tokens_as_in_diffusers(at: Any, kind: str, shape: tuple[int, ...]) -> None:
    from diffusers.pipelines.flux.pipeline_flux import calculate_shift

    def fresh() -> Any:
        return FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True, time_shift_type=kind, shift=3.0)

    tokens = shape[1] * shape[2] // 4
    scheduler, shares = fresh(), [0.0, 0.3, 0.6, 0.95]
    scheduler.set_timesteps(sigmas=[1 - share for share in shares], mu=calculate_shift(tokens))
    model = Model(fresh(), in_channels=64, patch_size=1)
    assert [at(share, "shift", model=model, shape=shape) for share in shares] == pytest.approx(
        scheduler.timesteps.tolist(), rel=1e-6
    )


@pytest.mark.parametrize("spacing", ["karras", "exponential"])
def test_other_spacings_are_the_schedulers_own_at_its_thousand_levels(at: Any, spacing: str) -> None:
    model = Model(FlowMatchEulerDiscreteScheduler(shift=2.0, **{f"use_{spacing}_sigmas": True}))
    wanted = FlowMatchEulerDiscreteScheduler(shift=2.0, **{f"use_{spacing}_sigmas": True})
    wanted.set_timesteps(1000)
    for index in (0, 1, 400, 998):
        assert at(index / 999, "shift", model=model) == pytest.approx(float(wanted.timesteps[index]), rel=1e-5)
    low, high = float(wanted.timesteps[600]), float(wanted.timesteps[200])
    assert at(0.5, "shift", low, high, model=model) == pytest.approx(float(wanted.timesteps[400]), rel=1e-5)
    untouched = FlowMatchEulerDiscreteScheduler(shift=2.0, **{f"use_{spacing}_sigmas": True})
    assert torch.equal(model.noise_scheduler.timesteps, untouched.timesteps)


@pytest.mark.parametrize("scheduler", [None, DDPMScheduler()])
def test_shift_without_a_schedule_to_follow_is_an_error(scheduler: Any) -> None:
    with pytest.raises(UserError, match="take sigmoid, linear or weighted"):
        Timesteps(Model(scheduler), TrainSettings(timestep_type="shift"))


@pytest.mark.parametrize(
    ("config", "shape", "tokens"),
    [
        ({"patch_size": 1, "in_channels": 64}, (16, 64, 96), 32 * 48),  # packed before the call, and so not four times as many
        ({"patch_size": 2, "in_channels": 64}, (16, 64, 96), 32 * 48),
        ({"patch_size": 2, "in_channels": 16}, (16, 64, 96), 32 * 48),
        ({"patch_size": 1, "in_channels": 128}, (128, 32, 48), 32 * 48),
        ({"patch_size": (1, 2, 2), "in_channels": 36}, (16, 21, 60, 104), 21 * 30 * 52),
        ({"patch_size": 2}, (16, 5, 60, 104), 5 * 30 * 52),
        ({"in_channels": 8}, (4, 8, 8), 64),
        ({}, (4, 8, 8), 64),
    ],
)
def test_tokens_are_counted_as_the_denoiser_makes_them(config: dict[str, Any], shape: tuple[int, ...], tokens: int) -> None:
    assert num_tokens(Model(**config), shape) == tokens


@pytest.mark.parametrize(
    ("kind", "levels"),
    [("one_step", [1000]), ("two_step", [1000, 500]), ("four_step", [1000, 750, 500, 250])],
)
def test_few_step_kinds_know_only_their_levels(at: Any, kind: str, levels: list[int]) -> None:
    assert sorted({at(share, kind) for share in SHARES}, reverse=True) == levels
    assert {at(share, "eight_step", 250.0, 500.0) for share in SHARES} == {375.0, 500.0}
    with pytest.raises(UserError, match="'one_step' has no level between 0 and 875"):
        at(0.5, "one_step", 0.0, 875.0)


def test_weights_are_the_table_with_lines_between_and_a_mean_of_one() -> None:
    assert loss_weights([1000 - 25 * i for i in range(40)], raw=True) == WEIGHTS[:40]
    assert loss_weights([1.0], raw=True) == WEIGHTS[40:]
    assert loss_weights([990.0], raw=True)[0] == pytest.approx(0.9057 + 0.4 * (1.2201 - 0.9057))
    fine = [(i + 0.5) / 64 for i in range(64000)]
    assert math.fsum(loss_weights(fine)) / len(fine) == pytest.approx(1, abs=1e-7)
    assert loss_weights([500.0])[0] == pytest.approx(0.9254, rel=1e-3)
