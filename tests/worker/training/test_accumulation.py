"""Accumulation is a larger batch in pieces: the same updates, the same rates, counted in updates."""

import math
from typing import Any

import pytest
import torch

from worker.report import Reporter, StepTold

UPDATES, WARMUP, LR = 20, 8, 1e-2


class Rates(Reporter):
    def __init__(self, folder: Any) -> None:
        super().__init__(folder, UPDATES)
        self.rates: list[float] = []

    def step(self, told: StepTold) -> None:
        super().step(told)
        self.rates.append(told.lr)


def test_four_pictures_make_the_same_step_however_they_are_batched(
    pictures: Any, tiny_job: Any, run_here: Any, weights_of: Any, tmp_path: Any
) -> None:
    pictures(count=8)
    runs, made = {}, {}
    for size, accumulation in ((4, 1), (2, 2), (1, 4)):
        job = tiny_job(
            save={"save_every": UPDATES, "dtype": "fp32"},
            train={
                "steps": UPDATES, "lr": LR, "batch_size": size, "gradient_accumulation": accumulation,
                "lr_scheduler": "cosine", "lr_warmup_steps": WARMUP, "disable_sampling": True,
                # Adam turns the rounding of a gradient that is almost zero into a whole step
                "optimizer": "sgd", "optimizer_params": {"momentum": 0.9},
            },
        )  # fmt: skip
        runs[size] = Rates(tmp_path / str(size))
        run_here(job, runs[size])
        made[size] = weights_of(tmp_path / str(size))
    cosine = [0.5 * (1 + math.cos(math.pi * step / (UPDATES - WARMUP))) for step in range(UPDATES - WARMUP)]
    wanted = [LR * step / WARMUP for step in range(WARMUP)] + [LR * share for share in cosine]
    for run in runs.values():
        assert run.rates == pytest.approx(wanted, rel=1e-12)
    for name, tensor in made[4].items():
        for size in (2, 1):
            assert torch.allclose(tensor, made[size][name], rtol=0, atol=1e-5), name
