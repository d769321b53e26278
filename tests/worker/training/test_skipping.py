"""`train.on_non_finite: skip`: a step whose loss or gradient is not finite changes nothing, and a run of nothing else ends."""

import json
from typing import Any

import pytest
import torch

from models.spec.train import MOST_SKIPPED
from server.store import events, jobs
from server.store.engine import reading
from worker import tasks
from worker.report import NonFiniteLoss
from worker.training import loop as train

LORA = {"type": "lora", "linear": 2, "linear_alpha": 2.0}


@pytest.fixture
def spoil(monkeypatch: pytest.MonkeyPatch) -> Any:
    """`spoil(steps, value)`: the loss of these steps (counted from 1) is multiplied by this."""
    plain = train.TrainStep.__call__

    def set_up(steps: Any, value: float = float("nan")) -> None:
        def broken(self: Any, taken: Any) -> Any:
            losses = plain(self, taken)
            return losses | {"loss": losses["loss"] * value} if taken.step + 1 in steps else losses

        monkeypatch.setattr(train.TrainStep, "__call__", broken)

    return set_up


@pytest.fixture
def job(small_job: Any) -> Any:
    def make(**changes: Any) -> dict[str, Any]:
        schedule = {"train.on_non_finite": "skip", "train.lr_scheduler": "cosine", "train.ema_config": {"use_ema": True}}
        made: dict[str, Any] = small_job(network=LORA, **{**schedule, **changes})
        return made

    return make


def leave_out(monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    """From now on the update of this step is not made: neither the optimizer nor the averages hear of it."""
    update, ema, count = torch.optim.AdamW.step, train.Ema.update, {"optimizer": 0, "ema": 0}

    def stepped(self: Any, *args: Any) -> Any:
        count["optimizer"] += 1
        return None if count["optimizer"] == step else update(self, *args)

    def averaged(self: Any) -> None:
        count["ema"] += 1
        if count["ema"] != step:
            ema(self)

    monkeypatch.setattr(torch.optim.AdamW, "step", stepped)
    monkeypatch.setattr(train.Ema, "update", averaged)


@pytest.mark.parametrize("accumulation", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_skipped_step_is_an_update_left_out_also_when_the_run_is_cut(
    job, run_here, scripted, stopped, state_of, same, spoil, monkeypatch, accumulation
) -> None:
    asked = job(**{"train.gradient_accumulation": accumulation})
    with monkeypatch.context() as patch:
        leave_out(patch, 7)
        wanted = state_of(run_here(asked, folder="left out"), 12)
    plain = state_of(run_here(asked, folder="plain"), 12)
    spoil({7})
    through = scripted("through")
    assert same(state_of(run_here(asked, through), 12), wanted)
    assert not same(wanted, plain)
    assert through.heard("step") == list(range(1, 13))
    for number, at in enumerate((6, 7)):
        stopped(asked, ("step", at), folder=f"cut {number}")
        rest = scripted(f"cut {number}")
        run_here(asked, rest)
        assert same(state_of(rest.workdir, 12), wanted)


def test_skip_changes_no_bit_of_a_run_whose_losses_are_finite(job, run_here, state_of, same) -> None:
    one = run_here(job(), folder="skip")
    other = run_here(job(**{"train.on_non_finite": "stop"}), folder="stop")
    assert same(state_of(one, 12), state_of(other, 12))


def test_what_was_skipped_is_told(migrated, job, spoil, monkeypatch) -> None:
    from models.catalog import parse_job

    monkeypatch.setattr(tasks, "child", tasks.Child())
    added, _ = jobs.add(parse_job(job(**{"train.steps": 8})).model_dump(mode="json"))
    spoil({3}, float("inf"))
    claimed = jobs.claim_next("w", ["pocket"])
    assert claimed is not None
    tasks.work(claimed)
    assert jobs.get(added.id).status == "succeeded"
    with reading() as session:
        told = events.after(session, added.id, 0, 1000)
        losses = events.series(session, added.id, "loss", 0)
    assert [step for step, loss in losses if loss is None] == [3]
    assert [step for step, _ in losses] == list(range(1, 9))
    warned = [row.data["message"] for row in told if row.data.get("level") == "WARNING"]
    assert warned == ["step 3 is skipped and changes nothing: its loss became inf"]
    json.dumps([row.data for row in told], allow_nan=False)


def test_a_gradient_that_is_not_finite_is_skipped_though_its_loss_is(job, run_here, scripted, state_of, monkeypatch) -> None:
    clip, count = train.clip_grad_norm_, [0]

    def clipped(params: Any, most: float) -> torch.Tensor:
        count[0] += 1
        return clip(params, most) * (float("inf") if count[0] == 4 else 1)

    monkeypatch.setattr(train, "clip_grad_norm_", clipped)
    reporter = scripted()
    said: list[str] = []
    reporter.log = lambda message, _="INFO": said.append(message)
    run_here(job(), reporter)
    assert [text for text in said if "skipped" in text] == [
        "step 4 is skipped and changes nothing: its gradient's norm became inf"
    ]
    assert all(bool(tensor.isfinite().all()) for tensor in state_of(reporter.workdir, 12).values())


def test_nothing_but_bad_steps_ends_the_job(job, run_here, scripted, spoil, state_of, same) -> None:
    spoil(range(6, 1000))
    reporter = scripted()
    with pytest.raises(NonFiniteLoss) as error:
        run_here(job(**{"train.steps": 40, "save.save_every": 5}), reporter)
    last = 5 + MOST_SKIPPED
    assert reporter.heard("step") == list(range(1, last + 1))
    assert error.value.message == (
        f"the loss became nan at step {last}, the last of {MOST_SKIPPED} in a row that were skipped; training stopped; "
        "the last good save is of step 10"
    )
    assert same(state_of(reporter.workdir, 5), state_of(reporter.workdir, 10))


def test_bad_steps_that_come_now_and_then_end_nothing(job, run_here, scripted, spoil) -> None:
    spoil({step for step in range(1, 41) if step % MOST_SKIPPED})
    reporter = scripted()
    run_here(job(**{"train.steps": 40}), reporter)
    assert reporter.heard("saved") == ["step_000000040"]
