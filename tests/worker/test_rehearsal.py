"""The rule that runs a whole job: it holds for the template and what it can be turned into, and sees what no single call shows."""

from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from models import catalog
from models.archs.example.model import ExampleModel
from models.conform import Broken
from models.errors import UserError
from tests.models import variants
from worker.rehearsal import a_job_runs
from worker.report import PreviewTold

JOBS = [
    (variants.ShortenedVideoModel, ("video",), 4, "video"),
    (variants.ImageToVideoModel, ("video", "i2v"), 8, "video, i2v"),
    (variants.AudioModel, ("video", "audio"), 4, "video, audio"),
]


@pytest.mark.parametrize(("cls", "capabilities", "channels", "claimed"), JOBS, ids=lambda value: getattr(value, "__name__", None))
def test_a_job_with_every_input_that_the_card_claims_runs(
    cls: type[ExampleModel], capabilities: tuple[str, ...], channels: int, claimed: str, tmp_path: Path
) -> None:
    subject = variants.subject(cls, tmp_path, *capabilities, in_channels=channels)
    assert a_job_runs(subject) == f"2 steps and a preview with {claimed}"
    assert catalog.extensions() == {}  # the card was in the catalogue for the job alone


def ends(reporter: Any) -> None:
    raise UserError("these layers have no public name")


def fails_in_previews(reporter: Any) -> None:
    reporter.log("the preview of prompt 0 is left out: ValueError: no sampler yet", "WARNING")


def makes_a_clip(reporter: Any) -> None:
    reporter.preview(PreviewTold(Path(), Path(), {"media": "video"}))


FAULTS = [
    (ends, "its job ends with: these layers have no public name"),
    (fails_in_previews, "its job makes no preview: .*no sampler yet"),
    (makes_a_clip, "its preview is of kind video; wanted image"),
]


@pytest.mark.parametrize(("run", "said"), FAULTS, ids=lambda value: getattr(value, "__name__", None))
def test_a_job_that_ends_or_makes_no_preview_breaks_the_rule(run: Any, said: str, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("worker.rehearsal.run", lambda _spec, _places, reporter, _device: run(reporter))
    with pytest.raises(Broken, match=said):
        a_job_runs(variants.subject(ExampleModel, tmp_path))


def test_a_card_whose_job_is_refused_breaks_the_rule(tmp_path: Path) -> None:
    subject = variants.subject(ExampleModel, tmp_path)
    subject.card = subject.card.model_copy(update={"defaults": {"train": {"timestep_type": "shift"}}})
    with pytest.raises(Broken, match="its job is refused: /train/timestep_type: timestep_type 'shift' follows the schedule of"):
        a_job_runs(subject)


class Watched(variants.DistilledModel):
    """Notes how strongly the training adapter acts, by what the prediction is for; None where there is none."""

    seen: ClassVar[set[tuple[str, float | None]]] = set()

    def get_noise_prediction(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        strength = None if self.assistant_lora is None else self.assistant_lora.multiplier
        self.seen.add(("step" if torch.is_grad_enabled() else "preview", strength))
        return super().get_noise_prediction(*args, **kwargs)


def test_a_jobs_training_adapter_stays_merged_in_its_steps_and_is_taken_off_in_its_previews(tmp_path: Path) -> None:
    Watched.seen.clear()
    a_job_runs(variants.subject(Watched, tmp_path, "training_adapter"))
    assert Watched.seen == {("step", None), ("preview", None), ("step", 0.0), ("preview", -1.0)}
