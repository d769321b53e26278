"""Samplers, against the schedulers of diffusers stepping the same velocities."""

import pytest
import torch
from diffusers import FlowMatchEulerDiscreteScheduler, FlowMatchHeunDiscreteScheduler

from models.samplers import FLOW_SAMPLERS, euler, flow_timesteps, heun


def velocity(x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    """A field that bends: it depends on the place and on the time."""
    return torch.sin(3 * x) + x * t.reshape(-1, 1, 1, 1) / 500 - 0.3


@pytest.mark.parametrize("num_steps", [1, 4, 25])
@pytest.mark.parametrize("shift", [1.0, 3.0])
def test_euler_equals_diffusers(num_steps: int, shift: float) -> None:
    noise = torch.randn(2, 4, 8, 8, generator=torch.Generator().manual_seed(3))
    scheduler = FlowMatchEulerDiscreteScheduler(shift=shift)
    scheduler.set_timesteps(sigmas=[1 - i / num_steps for i in range(num_steps)])
    theirs = noise
    for t in scheduler.timesteps:
        theirs = scheduler.step(velocity(theirs, t.reshape(1)), t, theirs, return_dict=False)[0]
    ours = euler(velocity, noise, flow_timesteps(num_steps, shift))
    # both are float32: the step's length is rounded once here and as a difference of sigmas there
    assert torch.allclose(ours, theirs, rtol=0, atol=4e-6)


@pytest.mark.parametrize("num_steps", [2, 4, 25])
@pytest.mark.parametrize("shift", [1.0, 3.0])
def test_heun_equals_diffusers(num_steps: int, shift: float) -> None:
    noise = torch.randn(2, 4, 8, 8, generator=torch.Generator().manual_seed(3))
    scheduler = FlowMatchHeunDiscreteScheduler(shift=shift)
    scheduler.set_timesteps(num_steps)
    theirs = noise
    for t in scheduler.timesteps:
        theirs = scheduler.step(velocity(theirs, t.reshape(1)), t, theirs, return_dict=False)[0]
    times = torch.cat([scheduler.timesteps[:1], scheduler.timesteps[1::2], torch.zeros(1)])  # each of theirs once, and the end
    # theirs goes by way of the clean latent, in float32, and divides by the sigma, which is 0.001 at the end: 1e-7 becomes 1e-4
    assert torch.allclose(heun(velocity, noise, times), theirs, rtol=0, atol=2e-4)
    assert not torch.allclose(euler(velocity, noise, times), theirs, rtol=0, atol=2e-2)


def test_heun_is_of_second_order_and_euler_of_first() -> None:
    """dx/dt = -x along t from 1 to 0 has the solution e: halving the steps' length divides the error by 4, or by 2."""
    start = torch.ones(1, 1, dtype=torch.float64)

    def error(sampler: str, num_steps: int) -> float:
        # The last step is Euler's in both, so the integration stops short of 0 here.
        times = torch.linspace(1000, 500, num_steps + 1, dtype=torch.float64)
        return abs(float(FLOW_SAMPLERS[sampler](lambda x, _: -x, start, times)) - 2.718281828459045**0.5)

    for sampler, order in (("euler", 1), ("heun", 2)):
        ratios = [error(sampler, 20 * 2**k) / error(sampler, 40 * 2**k) for k in range(3)]
        assert ratios == pytest.approx([2.0**order] * 3, rel=0.03), sampler


def test_timesteps_equal_the_shifted_ones_of_diffusers() -> None:
    scheduler = FlowMatchEulerDiscreteScheduler(shift=3.0)
    scheduler.set_timesteps(sigmas=[1 - i / 10 for i in range(10)])
    assert torch.allclose(flow_timesteps(10, 3.0)[:-1], scheduler.timesteps, rtol=1e-6, atol=0)


@pytest.mark.parametrize("shift", [1.0, 3.0])
def test_timesteps_fall_from_pure_noise_to_clean(shift: float) -> None:
    times = flow_timesteps(10, shift)
    assert (times[0], times[-1], len(times)) == (1000.0, 0.0, 11)
    assert bool((times[1:] < times[:-1]).all())


def test_a_constant_velocity_lands_on_the_clean_latent_whatever_the_steps() -> None:
    clean, noise = torch.full((1, 4, 2, 2), 0.5), torch.full((1, 4, 2, 2), -1.0)
    for num_steps in (1, 7, 50):
        for sampler in FLOW_SAMPLERS.values():
            assert torch.allclose(sampler(lambda *_: noise - clean, noise, flow_timesteps(num_steps)), clean, atol=1e-6)


def test_the_velocity_sees_one_timestep_and_no_gradient() -> None:
    seen = []

    def watch(x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        seen.append((t.shape, float(t), torch.is_grad_enabled()))
        return torch.zeros_like(x)

    euler(watch, torch.zeros(3, 1, 2, 2), flow_timesteps(2))
    assert seen == [((1,), 1000.0, False), ((1,), 500.0, False)]
    seen.clear()
    heun(watch, torch.zeros(3, 1, 2, 2), flow_timesteps(2))
    assert seen == [((1,), 1000.0, False), ((1,), 500.0, False), ((1,), 500.0, False)]
