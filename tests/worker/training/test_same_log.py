"""What a run that goes on does at each step is what an undisturbed one does: rate, averages, pictures and noise, not the loss alone."""

import hashlib
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from worker.data.fingerprint import tensor_bytes
from worker.report import StepTold
from worker.training import loop as train
from worker.training.steps import Drawn, TrainStep

STOP, TOTAL, LONGER, WARM_UP = 10, 20, 40, 4
LORA = {"type": "lora", "linear": 2, "linear_alpha": 2.0}


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> dict[int, dict[str, Any]]:
    """By step, what was last done there: `lr`, `moments` (the norm of each of AdamW's), `pictures` and `noise` (a digest)."""
    lines: dict[int, dict[str, Any]] = {}
    call, draw, steps = TrainStep.__call__, TrainStep.draw, train.steps

    def called(self: TrainStep, taken: Any) -> Any:
        lines.setdefault(taken.step + 1, {})["pictures"] = [item.path for item in taken.batch.file_items]
        return call(self, taken)

    def drawn(self: TrainStep, latents: torch.Tensor, step: int, first: int) -> Drawn:
        made = draw(self, latents, step, first)
        digest = hashlib.sha256(tensor_bytes(made.noise))
        digest.update(tensor_bytes(made.timesteps))
        lines.setdefault(step + 1, {})["noise"] = digest.hexdigest()
        return made

    def stepped(train_step: Any, spec: Any, state: Any, *rest: Any) -> Any:
        for _ in steps(train_step, spec, state, *rest):
            kept = [state.optimizer.state[param] for param in state.params.values()]
            moments = {key: math.hypot(*(float(each[key].norm()) for each in kept)) for key in ("exp_avg", "exp_avg_sq")}
            lines[state.step]["moments"] = moments
            yield

    monkeypatch.setattr(TrainStep, "__call__", called)
    monkeypatch.setattr(TrainStep, "draw", drawn)
    monkeypatch.setattr(train, "steps", stepped)
    return lines


@pytest.fixture
def run(log: dict[int, dict[str, Any]], small_job: Any, run_here: Any, scripted: Any, stopped: Any) -> Callable[..., Any]:
    """`run("folder", steps)` answers with the log of what this run did, by step; `stop_at` cuts it off after that step."""

    def start(folder: str, steps: int, stop_at: int | None = None) -> dict[int, dict[str, Any]]:
        schedule = {"lr_warmup_steps": WARM_UP, "lr_scheduler": "cosine", "optimizer": "adamw", "batch_size": 2}
        train_section = {**schedule, "steps": steps, "lr": 1e-2, "disable_sampling": True}
        job = small_job(network=LORA, train=train_section)
        log.clear()
        reporter = scripted(folder)
        tell = reporter.step

        def told(step: StepTold) -> None:
            log[step.step]["lr"] = step.lr
            tell(step)
            if step.step == stop_at:
                reporter._wish = "pause"

        reporter.step = told
        if stop_at is None:
            run_here(job, reporter)
        else:
            from worker.report import Stop

            with pytest.raises(Stop):
                run_here(job, reporter)
        return {step: dict(line) for step, line in log.items()}

    return start


def test_a_resumed_run_logs_what_an_undisturbed_one_does(run) -> None:
    through = run("through", TOTAL)
    first, rest = run("cut", TOTAL, stop_at=STOP), run("cut", TOTAL)
    assert (list(first), list(rest)) == (list(range(1, STOP + 1)), list(range(STOP + 1, TOTAL + 1)))
    assert {**first, **rest} == through
    assert all(set(line) == {"lr", "moments", "pictures", "noise"} for line in through.values())
    assert len({line["noise"] for line in through.values()}) == TOTAL  # so equal logs say something
    assert len({str(line["pictures"]) for line in through.values()}) > 2
    rates = [line["lr"] for line in through.values()]
    assert rates[:WARM_UP] == [1e-2 * step / WARM_UP for step in range(WARM_UP)]
    assert rates[WARM_UP:] == sorted(rates[WARM_UP:], reverse=True)


def test_a_total_that_grows_at_a_resume_moves_the_end_of_the_curve_and_warms_up_no_second_time(run) -> None:
    first, rest = run("cut", TOTAL, stop_at=STOP), run("cut", LONGER)
    long = run("long", LONGER)
    assert list(rest) == list(range(STOP + 1, LONGER + 1))
    for step, line in rest.items():
        assert {key: line[key] for key in ("lr", "pictures", "noise")} == {
            key: long[step][key] for key in ("lr", "pictures", "noise")
        }
        done = (step - 1 - WARM_UP) / (LONGER - WARM_UP)
        assert line["lr"] == pytest.approx(1e-2 * 0.5 * (1 + math.cos(math.pi * done)), rel=1e-12)  # the cosine, by hand
    assert {key: first[STOP][key] for key in ("pictures", "noise")} == {key: long[STOP][key] for key in ("pictures", "noise")}
    assert first[STOP]["lr"] < rest[STOP + 1]["lr"] < first[WARM_UP + 1]["lr"]  # up to the longer curve, below its top
    grown = rest[STOP + 1]["moments"]["exp_avg_sq"]
    assert (
        grown > 0.99 * first[STOP]["moments"]["exp_avg_sq"]
    )  # v' = 0.999 v + 0.001 g²: the averages went on and began at no zero
