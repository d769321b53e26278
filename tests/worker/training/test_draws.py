"""What a training sample sees hangs on (seed, step, place) alone: not on batching, nor on what was drawn before."""

from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from models import catalog
from models.base import BaseModel
from models.data import datasets
from models.prompt_embeds import AdvancedPromptEmbeds
from models.spec import TrainSpec
from worker.data.batches import Batches
from worker.report import Reporter
from worker.seeds import seed_for, sow
from worker.training.steps import TrainStep

LATENTS = torch.zeros(6, 4, 8, 8)


class Plain(BaseModel):
    """A model whose latents are the pixels and whose embeds are the text's length."""

    def __init__(self) -> None:
        super().__init__("cpu", SimpleNamespace(), dtype="fp32")

    def get_bucket_divisibility(self) -> int:
        return 16

    def encode_images(self, image_list: Any, *_: Any) -> torch.Tensor:
        return torch.stack(list(image_list))

    def get_prompt_embeds(self, prompt: list[str]) -> AdvancedPromptEmbeds:
        return AdvancedPromptEmbeds(text_embeds=[torch.full((1, 1), float(len(text))) for text in prompt])


def draw_noise(spec: TrainSpec, latents: torch.Tensor, step: int, first: int) -> tuple[torch.Tensor, torch.Tensor]:
    drawn = TrainStep(Plain(), spec).draw(latents, step, first)
    return drawn.noise, drawn.timesteps


def spec_for(seed: int = 42, kind: str = "sigmoid", **dataset: Any) -> TrainSpec:
    made = catalog.parse_job(
        {
            "kind": "train",
            "name": "t",
            "model": {"arch": "pocket", "name_or_path": "random"},
            "datasets": [{"folder_path": "colours", **dataset}],
            "train": {"seed": seed, "batch_size": 2, "timestep_type": kind},
        }
    )
    assert isinstance(made, TrainSpec)
    return made


@pytest.fixture
def batches(pictures, tmp_path) -> Any:
    folder = pictures(count=5)

    def make(spec: TrainSpec) -> Batches:
        made = Batches(Plain(), spec, [datasets.survey(spec.datasets[0], folder)])
        made.cache(Reporter(tmp_path / "run", 1))
        return made

    return make


def test_a_sample_gets_the_same_noise_in_any_batch() -> None:
    noise, times = draw_noise(spec_for(), LATENTS, step=7, first=0)
    for size in (1, 2, 3):
        parts = [draw_noise(spec_for(), LATENTS[:size], 7, first) for first in range(0, 6, size)]
        assert torch.equal(torch.cat([part[0] for part in parts]), noise)
        assert torch.equal(torch.cat([part[1] for part in parts]), times)


def test_noise_does_not_hang_on_what_was_drawn_before() -> None:
    one = draw_noise(spec_for(), LATENTS, 7, 0)[0]
    torch.randn(100)
    assert torch.equal(draw_noise(spec_for(), LATENTS, 7, 0)[0], one)


def test_every_place_step_and_seed_has_noise_of_its_own() -> None:
    noises = [draw_noise(spec_for(seed), LATENTS, step, 0)[0] for seed, step in ((42, 7), (42, 8), (43, 7))]
    samples = torch.cat(noises).flatten(1)
    assert float(torch.pdist(samples).min()) > 1
    assert float(samples.mean()) == pytest.approx(0, abs=0.05)
    assert float(samples.std()) == pytest.approx(1, abs=0.05)


@pytest.mark.parametrize(("kind", "middle_share"), [("sigmoid", 0.7287), ("linear", 0.5)])
def test_timesteps_are_drawn_as_their_kind_says(kind: str, middle_share: float) -> None:
    """The share between 250 and 750: for a logit-normal P(|N(0, 1)| < ln 3) = 0.728, for an even draw one half."""
    spec = spec_for(kind=kind)
    times = torch.cat([draw_noise(spec, torch.zeros(100, 1, 1, 1), step, 0)[1] for step in range(20)])
    assert bool(((times >= 0) & (times <= 1000)).all())
    assert float(((times > 250) & (times < 750)).float().mean()) == pytest.approx(middle_share, abs=0.035)


@pytest.mark.parametrize("cached", [True, False])
def test_batches_from_any_number_on_are_the_same_batches(batches, cached: bool) -> None:
    made = batches(spec_for(cache_latents=cached, cache_latents_to_disk=cached, caption_dropout_rate=0.4))
    stream = made.from_number(0)
    first = [next(stream) for _ in range(10)]
    again = batches(spec_for(cache_latents=cached, cache_latents_to_disk=cached, caption_dropout_rate=0.4)).from_number(4)
    for one, other in zip(first[4:], again, strict=False):
        assert one.batch.captions == other.batch.captions
        assert torch.equal(one.batch.latents, other.batch.latents)
        assert all(torch.equal(a, b) for a, b in zip(one.embeds.text_embeds, other.embeds.text_embeds, strict=True))


def test_cached_and_fresh_latents_are_the_same_and_so_are_the_pixels_beside_them(batches) -> None:
    cached, fresh = (
        batches(spec_for(cache_latents=cache, cache_latents_to_disk=cache)).from_number(0) for cache in (True, False)
    )
    for _ in range(6):
        one, other = next(cached).batch, next(fresh).batch
        assert torch.equal(one.latents, other.latents)
        assert torch.equal(one.tensor, other.tensor)
        assert torch.equal(other.tensor, other.latents)


def test_an_epoch_shows_every_picture_once(batches) -> None:
    made = batches(spec_for())
    assert made.num_batches == 3
    stream = made.from_number(0)
    for _ in range(4):
        shown = [caption for _ in range(3) for caption in next(stream).batch.captions]
        assert sorted(shown) == [f"colour number {index}" for index in range(5)]


@pytest.mark.parametrize("rate", [0.0, 0.3, 1.0])
def test_captions_are_dropped_as_often_as_asked_with_the_embeds_of_the_empty_text(batches, rate: float) -> None:
    stream = batches(spec_for(caption_dropout_rate=rate)).from_number(0)
    seen = Counter()
    for _ in range(600):
        taken = next(stream)
        seen.update(caption == "" for caption in taken.batch.captions)
        assert [float(item) for item in taken.embeds.text_embeds] == [len(caption) for caption in taken.batch.captions]
    assert seen[True] / seen.total() == pytest.approx(rate, abs=0.05)


def test_small_batches_drop_the_captions_that_one_large_batch_would(pictures, tmp_path) -> None:
    """Over a step's whole batch, what is dropped depends on the place alone."""
    folder = pictures("four", 4)

    def dropped(**train: int) -> list[list[bool]]:
        spec = spec_for(caption_dropout_rate=0.5)
        spec = spec.model_copy(update={"train": spec.train.model_copy(update=train)})
        made = Batches(Plain(), spec, [datasets.survey(spec.datasets[0], folder)])
        made.cache(Reporter(tmp_path / "run", 1))
        stream = made.from_number(0)
        steps = [[next(stream).batch for _ in range(spec.train.gradient_accumulation)] for _ in range(8)]
        return [[caption == "" for batch in step for caption in batch.captions] for step in steps]

    large = dropped(batch_size=4)
    assert dropped(batch_size=2, gradient_accumulation=2) == large
    assert len(set(map(tuple, large))) > 1


def test_sowing_gives_what_torchs_own_seeding_gives() -> None:
    sow(torch.device("cpu"), 42, 7, "x")
    drawn = torch.rand(3), torch.randn(3)
    torch.manual_seed(seed_for(42, 7, "x"))
    assert torch.equal(torch.rand(3), drawn[0]) and torch.equal(torch.randn(3), drawn[1])
