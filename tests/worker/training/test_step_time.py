"""The time of a step, and so speed and what is left: what passes for steps and nothing else, with a device that computes later."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from worker import report
from worker.report import Reporter, StepTold
from worker.training import checkpoint, loop


class Clock:
    """Monotonic seconds that pass only where a test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def passing(self, seconds: float, act: Callable[..., Any]) -> Callable[..., Any]:
        def acts(*args: Any, **kwargs: Any) -> Any:
            self.now += seconds
            return act(*args, **kwargs)

        return acts


class Recorded(Reporter):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder, 100)
        self.seconds: list[float] = []
        self.speeds: list[float] = []

    def _tell_steps(self, told: list[dict[str, Any]], speed: float) -> None:
        self.seconds += [each["step_seconds"] for each in told]
        self.speeds.append(speed)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    for module in (report, loop):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: made.now))
    return made


class Late:
    """A loss that is there 2 s after it is asked for, as on a device that still computes."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    def __float__(self) -> float:
        self.clock.now += 2.0
        return 0.5


def test_a_steps_time_is_that_of_the_device_and_not_that_of_issuing_it(clock: Clock, tmp_path: Path) -> None:
    reporter = Recorded(tmp_path)
    for number in range(1, 5):
        loss: Any = Late(clock)
        reporter._pending.append(StepTold(number, loss, torch.zeros(()), 1e-3))
    reporter.flush()
    assert reporter.seconds == [2.0] * 4
    assert reporter.speeds == [0.5]


def test_the_first_step_is_reported_at_once_and_later_ones_together(clock: Clock, tmp_path: Path) -> None:
    reporter = Recorded(tmp_path)
    reported = []
    for number in range(1, 5):
        clock.now += 0.2
        reporter.step(StepTold(number, torch.zeros(()), torch.zeros(()), 1e-3))
        reported.append(len(reporter.seconds))
    assert reported == [1, 1, 1, 4]


def test_saves_validation_and_previews_are_no_step_time(
    small_job: Any, run_here: Any, clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop.TrainStep, "__call__", clock.passing(1.0, loop.TrainStep.__call__))
    monkeypatch.setattr(checkpoint, "save", clock.passing(100.0, checkpoint.save))
    monkeypatch.setattr(loop.preview, "render", clock.passing(300.0, lambda *_, **__: {}))
    monkeypatch.setattr(loop.validation.Validation, "run", clock.passing(500.0, lambda *_: None))
    reporter = Recorded(tmp_path / "run")
    job = small_job(
        **{"train.steps": 6, "save.save_every": 2, "train.disable_sampling": False, "sample.sample_every": 3},
        **{"validation": {"fraction": 0.5, "every": 2}, "train.gradient_accumulation": 2},
    )
    run_here(job, reporter)
    assert reporter.seconds == pytest.approx([2.0] * 6)  # sums of floats
    assert reporter.speeds == pytest.approx([0.5] * 6)
