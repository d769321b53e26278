"""Learning rates against the curves of diffusers, averages against float64."""

import pytest
import torch
from diffusers.optimization import get_scheduler

from models.spec import TrainSettings
from worker.ema import Ema
from worker.optim import lr_at, make_optimizer

STEPS = 40


def diffusers_curve(kind: str, warmup: int) -> list[float]:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=2e-3)
    name = "constant_with_warmup" if kind == "constant" else kind
    schedule = get_scheduler(name, optimizer, num_warmup_steps=warmup, num_training_steps=STEPS)
    rates = []
    for _ in range(STEPS):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    return rates


@pytest.mark.parametrize("warmup", [0, 1, 10, STEPS])
@pytest.mark.parametrize("kind", ["constant", "linear", "cosine"])
def test_the_rate_follows_the_curve_of_diffusers(kind: str, warmup: int) -> None:
    train = TrainSettings(steps=STEPS, lr=2e-3, lr_scheduler=kind, lr_warmup_steps=warmup)
    assert [lr_at(step, train) for step in range(STEPS)] == pytest.approx(diffusers_curve(kind, warmup), rel=1e-12, abs=1e-18)


def test_extending_a_job_moves_the_end_of_the_fall() -> None:
    short, long = (TrainSettings(steps=steps, lr=1.0, lr_scheduler="linear") for steps in (10, 20))
    assert lr_at(9, short) == pytest.approx(0.1)
    assert lr_at(9, long) == pytest.approx(0.55)


def test_the_optimizer_takes_the_options_of_the_job() -> None:
    options = {"beta1": 0.8, "beta2": 0.95, "eps": 1e-7, "weight_decay": 0.2}
    train = TrainSettings.model_validate({"lr": 3e-4, "optimizer_params": options})
    start = torch.randn(5)
    ours, theirs = torch.nn.Parameter(start.clone()), torch.nn.Parameter(start.clone())
    optimizer = make_optimizer([ours], train)
    plain = torch.optim.AdamW([theirs], lr=3e-4, betas=(0.8, 0.95), eps=1e-7, weight_decay=0.2)
    for _ in range(5):
        for param, each in ((ours, optimizer), (theirs, plain)):
            each.zero_grad()
            (param**3).sum().backward()
            each.step()
    assert torch.allclose(ours, theirs, rtol=0, atol=1e-7)
    assert not torch.equal(ours, start)


def test_the_average_is_that_of_float64() -> None:
    param = torch.nn.Parameter(torch.randn(50))
    ema = Ema({"w": param}, decay=0.9)
    wanted = param.detach().double()
    for _ in range(30):
        with torch.no_grad():
            param.add_(torch.randn(50))
        ema.update()
        wanted = 0.9 * wanted + 0.1 * param.detach().double()
    assert torch.allclose(ema.shadow["w"].double(), wanted, rtol=0, atol=1e-5)


def test_the_average_is_in_the_model_only_inside_and_the_weights_come_back_bit_for_bit() -> None:
    param = torch.nn.Parameter(torch.randn(50))
    ema = Ema({"w": param}, decay=0.9)
    with torch.no_grad():
        param.add_(1)
    ema.update()
    own = param.detach().clone()
    with pytest.raises(RuntimeError, match="inside"), ema.applied():
        assert torch.equal(param, ema.shadow["w"])
        assert not torch.equal(param, own)
        raise RuntimeError("inside")
    assert torch.equal(param, own)
