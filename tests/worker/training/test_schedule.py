"""Learning rates against the curves of torch, diffusers and transformers, every step of them."""

import math
from fractions import Fraction
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


def exact(step: int, train: TrainSettings) -> Fraction:
    """The share of the rate that is left, its place in the curve without rounding."""
    over, done = train.steps - train.lr_warmup_steps, step - train.lr_warmup_steps
    shape = train.lr_scheduler_params
    if done < 0:
        return Fraction(step, train.lr_warmup_steps)
    if train.lr_scheduler == "step":
        return Fraction(shape.gamma) ** (done // shape.step_size)
    if train.lr_scheduler.startswith("cosine"):
        cycles = shape.num_cycles if train.lr_scheduler == "cosine_with_restarts" else 1
        return Fraction((1 + math.cos(math.pi * float(Fraction(done * cycles, over) % 1))) / 2)
    left = 1 - Fraction(done, over)
    return left if train.lr_scheduler == "linear" else Fraction(float(left) ** shape.power)


@pytest.mark.parametrize(
    ("kind", "params"),
    [
        *(("cosine_with_restarts", {"num_cycles": cycles}) for cycles in (7, 26, 49, 50)),
        *(("linear", {}), ("cosine", {}), ("polynomial", {"power": 1.7}), ("step", {"step_size": 7, "gamma": 0.3})),
    ],
)
def test_every_step_of_every_schedule_is_where_exact_numbers_put_it(kind: str, params: dict[str, Any]) -> None:
    for steps, warmup in ((200, 0), (400, 10), (500, 10)):
        train = TrainSettings(steps=steps, lr=1.0, lr_scheduler=kind, lr_warmup_steps=warmup, lr_scheduler_params=params)  # type: ignore[arg-type]
        wanted = [float(exact(step, train)) for step in range(steps)]
        # 1e-15 is what rounding leaves of (1 + cos) / 2 near its end
        assert [lr_at(step, train) for step in range(steps)] == pytest.approx(wanted, rel=1e-12, abs=1e-15)


@pytest.mark.parametrize(
    ("steps", "warmup", "cycles", "at"), [(200, 0, 50, (116,)), (400, 10, 26, (235,)), (500, 10, 49, (20, 30, 50))]
)
def test_a_restart_is_at_the_full_rate_and_not_at_zero(steps: int, warmup: int, cycles: int, at: tuple[int, ...]) -> None:
    train = TrainSettings(
        steps=steps, lr=LR, lr_scheduler="cosine_with_restarts", lr_warmup_steps=warmup,
        lr_scheduler_params={"num_cycles": cycles},  # type: ignore[arg-type]
    )  # fmt: skip
    assert [lr_at(step, train) for step in at] == [LR] * len(at)
