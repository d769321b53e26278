"""Weights that break are never saved; what was saved before stays."""

from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from models.archs.pocket.model import PocketModel
from models.errors import UserError
from worker.training import loop as train


@pytest.fixture
def job(pictures: Any, tiny_job: Any) -> dict[str, Any]:
    pictures()
    return tiny_job(
        **{"train.disable_sampling": True, "train.steps": 10, "save": {"save_every": 5, "recover_every_seconds": 3600.0}}
    )


def kept(reporter: Any) -> list[str]:
    return sorted(path.name for path in reporter.workdir.glob("bundles/*"))


@pytest.mark.parametrize(
    ("bad_step", "bad_rate", "said"),
    [
        (7, float("nan"), "became nan at step 8"),  # the update of step 7 breaks the weights, the loss of step 8 shows it
        (10, float("nan"), "not finite after step 10"),  # nothing but the weights shows it
        (5, 1e39, "not finite after step 5"),  # beyond fp32, right before a save
    ],
)
def test_a_run_whose_weights_break_stops_and_keeps_its_last_good_save(
    job: Any, run_here: Any, scripted: Any, monkeypatch: Any, bad_step: int, bad_rate: float, said: str
) -> None:
    monkeypatch.setattr(train, "lr_at", lambda step, _: bad_rate if step + 1 == bad_step else 1e-3)
    reporter = scripted()
    with pytest.raises(UserError, match=said) as stopped:
        run_here(job, reporter)
    assert stopped.value.code == "non_finite_loss"
    kept_step = 5 if bad_step > 5 else 0
    assert stopped.value.message.endswith(f"of step {kept_step}" if kept_step else "training stopped; nothing was saved yet")
    assert stopped.value.hint.endswith(f"resume goes on from step {kept_step}." if kept_step else "resume begins anew.")
    assert kept(reporter) == ([] if bad_step == 5 else ["step_000000005"])
    for path in reporter.workdir.rglob("*.safetensors"):
        assert all(bool(torch.isfinite(tensor).all()) for tensor in load_file(path).values())


def test_a_loss_that_becomes_nan_stops_the_run_and_names_the_step(
    job: Any, run_here: Any, scripted: Any, monkeypatch: Any
) -> None:
    plain = train.TrainStep.__call__

    def broken(self: Any, taken: Any) -> Any:
        losses = plain(self, taken)
        return losses | {"loss": losses["loss"] * float("nan")} if taken.step + 1 >= 7 else losses

    monkeypatch.setattr(train.TrainStep, "__call__", broken)
    reporter = scripted()
    with pytest.raises(UserError, match="loss became nan at step 7"):
        run_here(job, reporter)
    assert kept(reporter) == ["step_000000005"]


FIRST = {
    "base": ("predict", "the base model's prediction for {file} is not finite (NaN or infinite)"),
    "latents": ("latents", "the latents of {file} are not finite (NaN or infinite)"),
    "embeds": ("embeds", "the embeds of {file} are not finite (NaN or infinite)"),
}


@pytest.mark.parametrize("spoilt, said", FIRST.values(), ids=list(FIRST))
def test_a_first_loss_that_is_nan_names_what_came_in_and_not_the_learning_rate(
    small_job: Any, run_here: Any, scripted: Any, monkeypatch: Any, spoilt: str, said: str
) -> None:
    nan = float("nan")
    plain, predict = train.TrainStep.__call__, PocketModel.get_noise_prediction
    files: list[str] = []

    def first(self: Any, taken: Any) -> Any:
        files[:] = [item.path for item in taken.batch.file_items]
        if spoilt == "latents":
            taken.batch.latents.fill_(nan)
        if spoilt == "embeds":
            taken.embeds.text_embeds[0].fill_(nan)
        return plain(self, taken)

    monkeypatch.setattr(train.TrainStep, "__call__", first)
    if spoilt == "predict":
        monkeypatch.setattr(PocketModel, "get_noise_prediction", lambda *args, **kwargs: predict(*args, **kwargs) * nan)
    reporter = scripted()
    with pytest.raises(UserError) as stopped:
        run_here(small_job(network={"type": "lora", "linear": 2}), reporter)
    said = said.format(file=", ".join(files))
    assert stopped.value.message == (
        f"the loss is nan at step 1, before anything was trained: {said}; training stopped; nothing was saved yet"
    )
    assert stopped.value.code == "non_finite_loss"
    assert stopped.value.hint.startswith("The learning rate is not the cause. Train in bf16 or fp32 if this is fp16")
