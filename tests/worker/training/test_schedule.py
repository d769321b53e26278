"""Learning rates against the curves of torch, diffusers and transformers, every step of them."""

from typing import Any

import pytest
import torch
from diffusers.optimization import get_scheduler
from torch.optim import lr_scheduler
from transformers import optimization

from models.spec import TrainSettings
from worker.training.schedule import lr_at

STEPS, LR = 40, 2e-3
WARMUPS = [0, 1, 10, STEPS]


def ours(kind: str, warmup: int, **params: Any) -> list[float]:
    train = TrainSettings(steps=STEPS, lr=LR, lr_scheduler=kind, lr_warmup_steps=warmup, lr_scheduler_params=params)  # type: ignore[arg-type]
    return [lr_at(step, train) for step in range(STEPS)]


def theirs(make: Any) -> list[float]:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=LR)
    schedule = make(optimizer)
    rates = []
    for _ in range(STEPS):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    return rates


def same(one: list[float], other: list[float]) -> None:
    assert one == pytest.approx(other, rel=1e-12, abs=1e-18)


@pytest.mark.parametrize("warmup", WARMUPS)
@pytest.mark.parametrize("kind", ["constant", "linear", "cosine"])
def test_rates_follow_diffusers(kind: str, warmup: int) -> None:
    name = "constant_with_warmup" if kind == "constant" else kind
    same(ours(kind, warmup), theirs(lambda o: get_scheduler(name, o, num_warmup_steps=warmup, num_training_steps=STEPS)))


@pytest.mark.parametrize("cycles", [1, 2, 3, 7])
@pytest.mark.parametrize("warmup", WARMUPS)
def test_restarts_follow_diffusers(warmup: int, cycles: int) -> None:
    options = {"num_warmup_steps": warmup, "num_training_steps": STEPS, "num_cycles": cycles}
    wanted = theirs(lambda o: get_scheduler("cosine_with_restarts", o, **options))
    same(ours("cosine_with_restarts", warmup, num_cycles=cycles), wanted)


def test_restarts_without_a_warm_up_are_torchs_warm_restarts() -> None:
    wanted = theirs(lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, T_0=STEPS // 4, eta_min=LR * 0.2))
    same(ours("cosine_with_restarts", 0, num_cycles=4, min_lr_ratio=0.2), wanted)


@pytest.mark.parametrize("ratio", [0.0, 0.1, 1.0])
def test_cosine_ends_at_its_lowest_rate_as_in_torch_and_transformers(ratio: float) -> None:
    same(ours("cosine", 0, min_lr_ratio=ratio), theirs(lambda o: lr_scheduler.CosineAnnealingLR(o, STEPS, eta_min=LR * ratio)))
    options = {"num_warmup_steps": 10, "num_training_steps": STEPS, "min_lr_rate": ratio}
    same(
        ours("cosine", 10, min_lr_ratio=ratio),
        theirs(lambda o: optimization.get_cosine_with_min_lr_schedule_with_warmup(o, **options)),
    )


@pytest.mark.parametrize("warmup", WARMUPS[:3])
@pytest.mark.parametrize(("power", "ratio"), [(1.0, 0.0), (2.0, 0.05), (0.5, 0.3)])
def test_a_polynomial_follows_transformers(power: float, ratio: float, warmup: int) -> None:
    options = {"num_warmup_steps": warmup, "num_training_steps": STEPS, "lr_end": LR * ratio, "power": power}
    wanted = theirs(lambda o: optimization.get_polynomial_decay_schedule_with_warmup(o, **options))
    same(ours("polynomial", warmup, power=power, min_lr_ratio=ratio), wanted)


def test_a_line_ends_at_its_lowest_rate_as_in_torch() -> None:
    wanted = theirs(lambda o: lr_scheduler.LinearLR(o, start_factor=1.0, end_factor=0.25, total_iters=STEPS))
    same(ours("linear", 0, min_lr_ratio=0.25), wanted)


@pytest.mark.parametrize("warmup", [0, 10])
def test_drops_follow_torch_and_are_counted_from_the_end_of_the_warm_up(warmup: int) -> None:
    def make(optimizer: Any) -> Any:
        drops = lr_scheduler.StepLR(optimizer, step_size=7, gamma=0.3)
        if not warmup:
            return drops
        rise = lr_scheduler.LambdaLR(optimizer, lambda step: step / warmup)
        return lr_scheduler.SequentialLR(optimizer, [rise, drops], milestones=[warmup])

    same(ours("step", warmup, step_size=7, gamma=0.3), theirs(make))


@pytest.mark.parametrize("kind", ["linear", "cosine", "cosine_with_restarts", "polynomial"])
def test_the_end_is_the_lowest_rate_and_stays(kind: str) -> None:
    train = TrainSettings(steps=10, lr=1.0, lr_scheduler=kind, lr_scheduler_params={"min_lr_ratio": 0.1})  # type: ignore[arg-type]
    assert [lr_at(step, train) for step in (10, 11, 500)] == pytest.approx([0.1] * 3)


def test_extending_a_job_moves_the_end_of_the_fall_and_does_not_warm_up_again() -> None:
    short, long = (TrainSettings(steps=steps, lr=1.0, lr_scheduler="linear", lr_warmup_steps=4) for steps in (14, 24))
    assert [lr_at(step, short) for step in range(5)] == [lr_at(step, long) for step in range(5)]
    assert lr_at(13, short) == pytest.approx(0.1)
    assert lr_at(13, long) == pytest.approx(0.55)
