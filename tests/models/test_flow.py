"""Flow matching's two formulas, against float64 and against diffusers."""

import pytest
import torch
from diffusers import FlowMatchEulerDiscreteScheduler

from models import flow

TIMES = torch.tensor([0.0, 1.0, 249.7, 500.0, 873.25, 1000.0])


@pytest.fixture
def pair() -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(1)
    return torch.randn(6, 4, 8, 8, generator=draw), torch.randn(6, 4, 8, 8, generator=draw)


def test_mix_is_the_straight_path_in_float64(pair) -> None:
    clean, noise = pair
    t = (TIMES.double() / 1000).reshape(-1, 1, 1, 1)
    wanted = (1 - t) * clean.double() + t * noise.double()
    mixed = flow.mix(clean, noise, TIMES)
    assert torch.allclose(mixed.double(), wanted, rtol=0, atol=1e-6)  # one rounding of values below 5 in float32
    assert torch.equal(mixed[0], clean[0])
    assert torch.equal(mixed[-1], noise[-1])


def test_mix_equals_the_scale_noise_of_diffusers(pair) -> None:
    clean, noise = pair
    scheduler = FlowMatchEulerDiscreteScheduler()
    scheduler.set_timesteps(sigmas=[0.9, 0.55, 0.3])
    times = scheduler.timesteps[[0, 2, 1]]
    assert torch.equal(flow.mix(clean[:3], noise[:3], times), scheduler.scale_noise(clean[:3], times, noise[:3]))


def test_half_precision_latents_are_mixed_at_the_very_timestep(pair) -> None:
    clean, noise = (latents.bfloat16() for latents in pair)
    times = torch.tensor([1.3, 249.7, 501.0, 503.0, 873.25, 999.0])
    wanted = flow.mix(clean.double(), noise.double(), times)
    assert torch.equal(flow.mix(clean, noise, times), wanted.bfloat16())


def test_one_timestep_serves_the_whole_batch(pair) -> None:
    clean, noise = pair
    assert torch.equal(flow.mix(clean, noise, torch.tensor([300.0])), flow.mix(clean, noise, torch.full((6,), 300.0)))


@pytest.mark.parametrize("shape", [(2, 12), (2, 4, 3, 8, 8)])
def test_mix_takes_any_rank(shape: tuple[int, ...]) -> None:
    clean, noise = torch.zeros(shape), torch.ones(shape)
    mixed = flow.mix(clean, noise, torch.tensor([250.0, 750.0]))
    assert torch.equal(mixed[0], torch.full(shape[1:], 0.25))
    assert torch.equal(mixed[1], torch.full(shape[1:], 0.75))


def test_mix_keeps_the_latents_dtype(pair) -> None:
    clean, noise = (each.to(torch.bfloat16) for each in pair)
    assert flow.mix(clean, noise, TIMES).dtype == torch.bfloat16


def test_velocity_is_the_derivative_of_the_path(pair) -> None:
    clean, noise = (each.double() for each in pair)
    forward = flow.mix(clean, noise, torch.tensor([501.0], dtype=torch.float64))
    backward = flow.mix(clean, noise, torch.tensor([499.0], dtype=torch.float64))
    assert torch.allclose((forward - backward) / 0.002, flow.velocity(clean, noise), atol=1e-10)
    assert torch.equal(flow.velocity(clean, noise), noise - clean)
