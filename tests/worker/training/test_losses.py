"""Losses and weights against plain formulae in float64, and against diffusers."""

from typing import Any

import pytest
import torch
from diffusers import DDPMScheduler
from diffusers.training_utils import compute_snr

from models.spec import TrainSettings
from worker.training.losses import elementwise, mask_weights, min_snr_weights

DRAW = torch.Generator().manual_seed(1)
ONE, OTHER = (torch.randn(3, 4, 8, 8, generator=DRAW) for _ in range(2))


@pytest.mark.parametrize(
    ("options", "formula"),
    [
        ({}, lambda d: d**2),
        ({"loss_type": "mae"}, abs),
        ({"loss_type": "huber"}, lambda d: (d**2 + 0.01**2) ** 0.5 - 0.01),
        ({"loss_type": "huber", "huber_c": 1.5}, lambda d: (d**2 + 1.5**2) ** 0.5 - 1.5),
    ],
)
def test_an_element_costs_what_its_formula_says(options: Any, formula: Any) -> None:
    wanted = formula(ONE.double() - OTHER.double())
    assert torch.allclose(elementwise(ONE, OTHER, TrainSettings(**options)).double(), wanted, rtol=1e-5, atol=1e-7)


def test_huber_lies_between_the_others() -> None:
    small, large = torch.tensor([1e-4]), torch.tensor([10.0])
    train = TrainSettings(loss_type="huber", huber_c=0.01)
    assert float(elementwise(small, torch.zeros(1), train)) == pytest.approx(1e-8 / 2 / 0.01, rel=1e-3)
    assert float(elementwise(large, torch.zeros(1), train)) == pytest.approx(10 - 0.01, rel=1e-6)


def test_losses_of_half_precision_are_taken_in_fp32() -> None:
    big = torch.full((1,), 300.0, dtype=torch.float16)  # its square is beyond fp16
    assert float(elementwise(big, torch.zeros_like(big), TrainSettings())) == 90000


def test_a_mask_takes_its_nearest_pixels_and_divides_by_each_samples_mean() -> None:
    masks = torch.zeros(3, 1, 32, 32)
    masks[0, 0, :16, :8] = 1  # an eighth
    masks[1] = 0.25
    weights = mask_weights(masks, ONE)
    assert weights.shape == (3, 1, 8, 8)
    assert torch.equal(weights[0, 0], torch.zeros(8, 8).index_put((torch.arange(4)[:, None], torch.arange(2)), torch.tensor(8.0)))
    assert torch.equal(weights[1], torch.ones(1, 8, 8))
    assert torch.equal(weights[2], torch.zeros(1, 8, 8))  # black all over: no division by zero
    clip = mask_weights(masks, torch.zeros(3, 4, 5, 8, 8))
    assert torch.equal(clip, weights[:, :, None])
    joint = mask_weights(masks, ONE, joint_mean=True)
    assert float(joint.mean()) == pytest.approx(1)
    assert float(joint[1].mean()) == pytest.approx(0.25 / (0.375 / 3))


@pytest.mark.parametrize("gamma", [1.0, 5.0, 20.0])
@pytest.mark.parametrize("kind", ["epsilon", "v_prediction"])
def test_min_snr_weights_are_those_of_the_paper(kind: str, gamma: float) -> None:
    scheduler = DDPMScheduler(prediction_type=kind)
    snr = compute_snr(scheduler, torch.arange(1000)).double()
    wanted = snr.clamp(max=gamma) / (snr + 1 if kind == "v_prediction" else snr)
    assert torch.allclose(min_snr_weights(scheduler, gamma).double(), wanted, rtol=1e-3)
    assert float(min_snr_weights(scheduler, gamma)[-1]) == pytest.approx(float(snr[-1] / (snr[-1] + 1)) if kind[0] == "v" else 1)


@pytest.mark.parametrize(("kind", "last"), [("epsilon", 1.0), ("v_prediction", 0.0)])
def test_a_schedule_that_ends_in_pure_noise_has_finite_weights(kind: str, last: float) -> None:
    weights = min_snr_weights(DDPMScheduler(prediction_type=kind, rescale_betas_zero_snr=True), 5.0)
    assert bool(torch.isfinite(weights).all())
    assert float(weights[-1]) == pytest.approx(last, abs=1e-6)
