"""The held-out loss: what its numbers are, that training does not notice it, and that a resume repeats it."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from models import catalog
from models.base import BaseModel
from models.batch import Batch
from models.prompt_embeds import AdvancedPromptEmbeds
from models.spec import TrainSpec, ValidationSpec
from worker.data.batches import TrainBatch
from worker.report import Reporter, Stop
from worker.training.ema import Ema
from worker.training.steps import TrainStep
from worker.training.validation import Validation, is_due

LATENTS = torch.randn(3, 4, 4, 4, generator=torch.Generator().manual_seed(1))
LEVELS = [62.5, 500.0, 1000.0]


class Scaling(BaseModel):
    """Predicts its input times one weight, after dropout."""

    is_flow_matching = True

    def __init__(self) -> None:
        super().__init__("cpu", SimpleNamespace(), dtype="fp32")
        self.model = nn.Sequential(nn.Dropout(0.5))
        self.model.weight = nn.Parameter(torch.tensor(0.5))
        self.model[0].training = False  # a frozen part that stays as it is
        self.model.training = True
        self.batches: list[Any] = []

    def get_noise_prediction(
        self, latent_model_input: Any, timestep: Any, text_embeddings: Any, batch: Any = None
    ) -> torch.Tensor:
        self.batches.append(batch)
        return self.model(latent_model_input) * self.model.weight


class Told(Reporter):
    def __init__(self, folder: Any, stop_after: int = 10**9) -> None:
        super().__init__(folder, 1)
        self.numbers: list[tuple[int, dict[str, float]]] = []
        self.left = stop_after

    def check(self) -> None:
        super().check()
        self.left -= 1
        if self.left < 0:
            raise Stop("requeue")

    def metrics(self, step: int, values: Any) -> None:
        self.numbers.append((step, dict(values)))


def spec_for(**train: Any) -> TrainSpec:
    model = {"arch": "pocket", "name_or_path": "random"}
    job = {"kind": "train", "name": "t", "model": model, "network": None, "datasets": [{"folder_path": "x"}], "train": train}
    made = catalog.parse_job({**job, "validation": {"fraction": 0.5, "every": 4, "timesteps": LEVELS, "seed": 9}})
    assert isinstance(made, TrainSpec)
    return made


def held_out(*sizes: int) -> Any:
    def batches() -> Any:
        first = 0
        for size in sizes:
            latents = LATENTS[first : first + size]
            embeds = AdvancedPromptEmbeds(text_embeds=[torch.ones(1, 1)] * size)
            yield TrainBatch(Batch(latents, [""] * size), embeds, first=first)
            first += size

    return batches


def numbers(model: BaseModel, folder: Any, *sizes: int, ema: Ema | None = None, **train: Any) -> dict[str, float]:
    told, spec = Told(folder), spec_for(**train)
    Validation(TrainStep(model, spec), held_out(*sizes), ema, told).run(spec.validation, 7)
    ((step, values),) = told.numbers
    assert step == 7
    return values


def by_hand(weight: float, cost: Any = lambda d: d**2) -> dict[str, float]:
    noises = []
    from worker.seeds import seed_for

    for place in range(3):
        torch.manual_seed(seed_for(9, "validation", place))
        noises.append(torch.randn(1, 4, 4, 4))
    noise, clean = torch.cat(noises).double(), LATENTS.double()
    levels = {}
    for level in LEVELS:
        t = level / 1000
        levels[f"val/loss/{level:g}"] = float(cost(((1 - t) * clean + t * noise) * weight - (noise - clean)).mean())
    return {"val/loss": sum(levels.values()) / 3, **levels}


def test_it_is_the_mean_over_items_and_levels_of_the_plain_loss(tmp_path: Any) -> None:
    wanted = by_hand(0.5)
    assert set(wanted) == {"val/loss", "val/loss/62.5", "val/loss/500", "val/loss/1000"}
    for sizes in ((3,), (2, 1), (1, 1, 1)):
        assert numbers(Scaling(), tmp_path, *sizes) == pytest.approx(wanted, rel=1e-5)
    assert numbers(Scaling(), tmp_path, 3, loss_type="mae", timestep_type="weighted") == pytest.approx(
        by_hand(0.5, abs), rel=1e-5
    )


def test_averaged_weights_are_what_is_tried(tmp_path: Any) -> None:
    model = Scaling()
    ema = Ema({"weight": model.model.weight}, 0.9)
    ema.shadow["weight"].fill_(2.0)
    assert numbers(model, tmp_path, 3, ema=ema) == pytest.approx(by_hand(2.0), rel=1e-5)
    assert float(model.model.weight.detach()) == 0.5


def test_the_model_sees_the_batch_and_nothing_of_it_is_changed(tmp_path: Any) -> None:
    model = Scaling()
    torch.manual_seed(5)
    before = torch.get_rng_state()
    numbers(model, tmp_path, 2, 1)
    assert [len(batch.latents) for batch in model.batches] == [2, 2, 2, 1, 1, 1]
    assert torch.equal(torch.get_rng_state(), before)
    assert model.model.training and not model.model[0].training
    assert model.model.weight.grad is None


def test_a_stop_is_heeded_between_passes_and_leaves_the_model_as_it_was(tmp_path: Any) -> None:
    model, told = Scaling(), Told(tmp_path, stop_after=4)
    ema = Ema({"weight": model.model.weight}, 0.9)
    ema.shadow["weight"].fill_(2.0)
    with pytest.raises(Stop):
        Validation(TrainStep(model, spec_for()), held_out(2, 1), ema, told).run(spec_for().validation, 1)
    assert told.numbers == [] and len(model.batches) == 4
    assert float(model.model.weight.detach()) == 0.5 and model.model.training


def test_it_comes_first_every_so_often_and_at_the_end() -> None:
    assert [step for step in range(11) if is_due(step, spec_for(steps=10))] == [0, 4, 8, 10]
    without = spec_for(steps=10).model_copy(update={"validation": None})
    assert not is_due(0, without)


@pytest.fixture
def job(pictures: Any, tiny_job: Any) -> Any:
    pictures(count=5)

    def make(validation: Any, **changes: Any) -> dict[str, Any]:
        options = {"train.ema_config": {"use_ema": True, "ema_decay": 0.5}, "train.disable_sampling": True, **changes}
        made = tiny_job(network={"linear": 2, "linear_alpha": 2.0, "dropout": 0.3}, **options)
        return {**made, "validation": validation}

    return make


def test_training_does_not_notice_it(
    job: Any, pictures: Any, home: Any, run_here: Any, weights_of: Any, same: Any, tmp_path: Any
) -> None:
    """With a held-out folder of its own, so that both jobs train on the same pictures."""
    pictures("held", 2, 48)
    told = Told(tmp_path / "with")
    run_here(job({"dataset": {"folder_path": "held"}, "every": 2}), told)
    run_here(job(None), Told(tmp_path / "without"))
    assert [step for step, _ in told.numbers] == [0, 2, 4, 6]
    assert same(weights_of(tmp_path / "with"), weights_of(tmp_path / "without"))


def test_a_resume_tells_the_same_numbers(job: Any, run_here: Any, weights_of: Any, same: Any, tmp_path: Any) -> None:
    class StopsAt(Told):
        def step(self, told: Any) -> None:
            super().step(told)
            if told.step == 4:
                self.left = 0

    validation = {"fraction": 0.3, "every": 1, "timesteps": [500.0]}
    whole = Told(tmp_path / "whole")
    run_here(job(validation), whole)
    first = StopsAt(tmp_path / "halves")
    with pytest.raises(Stop):
        run_here(job(validation), first)
    second = Told(tmp_path / "halves")
    run_here(job(validation), second)
    assert second.numbers[0][0] == 4
    assert dict(first.numbers + second.numbers) == dict(whole.numbers)
    assert len(dict(whole.numbers)) == 7
    assert same(weights_of(tmp_path / "whole"), weights_of(tmp_path / "halves"))


def test_its_defaults_are_four_levels() -> None:
    assert ValidationSpec(fraction=0.1).timesteps == [125.0, 375.0, 625.0, 875.0]
