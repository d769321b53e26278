"""Previews made several at a time: who shares a pass, and that nobody can tell from the pictures."""

from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import ImageChops

from models import catalog
from models.archs.example.card import ARCHS
from models.archs.example.model import ExampleModel
from models.base import BaseModel
from models.batch import GenerateImageConfig
from models.conform import Subject, subject_for
from models.groups import groups, offers_batches


def config(**more: Any) -> GenerateImageConfig:
    return GenerateImageConfig("a", **more)


def test_neighbours_of_one_kind_are_made_together() -> None:
    wide, steps, strong = config(width=768), config(num_inference_steps=9), config(network_multiplier=0.5)
    other = config(seed=7, negative_prompt="b")
    assert list(groups([config(), other, config(), wide, config()], 4)) == [[0, 1, 2], [3], [4]]
    assert list(groups([config(), other, config()], 2)) == [[0, 1], [2]]
    assert list(groups([config(), steps, strong, config(sampler="heun"), config(guidance_scale=1.0)], 4)) == [
        [0],
        [1],
        [2],
        [3],
        [4],
    ]
    assert list(groups([config()] * 3, 1)) == [[0], [1], [2]]
    assert list(groups([], 4)) == []


def test_pictures_with_parts_of_their_own_are_made_alone() -> None:
    for own in ({"ctrl_img": Path("a.png")}, {"latents": torch.zeros(1)}, {"extra_kwargs": {"a": 1}}):
        assert list(groups([config(**own), config(**own), config()], 4)) == [[0], [1], [2]]


def test_a_class_that_makes_pictures_its_own_way_is_not_asked_for_batches() -> None:
    class Other(ExampleModel):
        def generate_single_image(self, *args: Any, **kwargs: Any) -> Any:
            return None

    class Both(Other):
        def generate_batch(self, *args: Any, **kwargs: Any) -> Any:
            return []

    class Plain(BaseModel):
        def generate_single_image(self, *args: Any, **kwargs: Any) -> Any:
            return None

    class Same(ExampleModel):
        pass

    offered = {cls.__name__: offers_batches(object.__new__(cls)) for cls in (ExampleModel, Same, Other, Both, Plain, BaseModel)}
    assert offered == {"ExampleModel": True, "Same": True, "Other": False, "Both": True, "Plain": False, "BaseModel": False}


@pytest.fixture(scope="module", params=[*map(catalog.arch, catalog.archs()), ARCHS[0]], ids=lambda card: card.name)
def subject(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Subject:
    return subject_for(request.param, tmp_path_factory.mktemp("checkpoint"))


@pytest.mark.parametrize("guidance", [1.0, 4.0])
def test_pictures_made_together_are_those_made_alone(subject: Subject, guidance: float) -> None:
    model = subject.model
    model.get_model_to_train().eval()
    prompts = ["a red apple", "two birds on a wire above a very long street", "x"]
    for sampler in subject.card.samplers or (None,):
        wanted = [
            GenerateImageConfig(
                prompt,
                "",
                *subject.size,
                seed=seed,
                guidance_scale=guidance,
                num_inference_steps=3,
                sampler=sampler,
            )
            for seed, prompt in enumerate(prompts)
        ]
        embeds = lambda one: (model.encode_prompt(one.prompt), model.encode_prompt("grey"))  # noqa: E731
        assert offers_batches(model)
        alone, together = (list(model.generate_images(wanted, embeds, batch_size)) for batch_size in (1, 3))
        for one, other in zip(alone, together, strict=True):
            # A larger batch sums in another order: 1e-6 of a value, which moves a few of them over the edge between two levels.
            assert max(most for _, most in ImageChops.difference(one, other).getextrema()) <= 1
        assert ImageChops.difference(together[0], together[1]).getbbox() is not None


def test_a_batch_of_the_wrong_size_is_our_bug_and_says_whose(subject: Subject) -> None:
    class Forgetful(type(subject.model)):  # type: ignore[misc]
        def generate_batch(self, *args: Any) -> Any:
            return super().generate_batch(*args)[:1]

    model = object.__new__(Forgetful)
    model.__dict__ = subject.model.__dict__
    width, height = subject.size
    wanted = [config(width=width, height=height, num_inference_steps=1)] * 2
    embeds = model.encode_prompt("a"), model.encode_prompt("")
    with pytest.raises(ValueError, match=r"Forgetful\.generate_batch made 1 pictures, not 2"):
        list(model.generate_images(wanted, lambda _: embeds, 2))
