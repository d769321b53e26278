"""Options of an arch that change no encoding do not make the cache anew; all others do."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from models import catalog
from models.base import BaseModel
from models.data import datasets
from models.extensions import Extension, FreeOptions
from models.prompt_embeds import AdvancedPromptEmbeds
from models.spec import Spec, TrainSpec, entry, options_that_encode
from tests.models.variants import card
from worker.data import encode
from worker.data.batches import Batches
from worker.report import Reporter

ABOUT: dict[str, Any] = {"title": "t", "section": "Advanced", "order": 1, "help": "h"}


class Options(Spec):
    plain: int = entry(1, **ABOUT)
    undeclared: int = 1
    text: int = entry(1, encodes=("text",), **ABOUT)
    neither: int = entry(1, encodes=(), **ABOUT)


class Counting(BaseModel):
    arch = "options"

    def __init__(self) -> None:
        super().__init__("cpu", SimpleNamespace(), dtype="fp32")
        self.pictures = self.texts = 0

    def get_bucket_divisibility(self) -> int:
        return 16

    def encode_images(self, image_list: Any, *_: Any) -> torch.Tensor:
        self.pictures += len(image_list)
        return torch.stack(list(image_list))

    def get_prompt_embeds(self, prompt: list[str]) -> AdvancedPromptEmbeds:
        self.texts += len(prompt)
        return AdvancedPromptEmbeds(text_embeds=[torch.ones(1, 1)] * len(prompt))


@pytest.fixture
def encoded(tmp_path: Path, tiny_job: Any, pictures: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> Any:
    """`encoded(Options, text=2)`: how many pictures and texts a job with these model_kwargs encodes."""
    folder = pictures(count=4)

    def run(options: type[Spec], **given: Any) -> tuple[int, int]:
        made = card().model_copy(update={"name": "options", "options": options})
        monkeypatch.setitem(vars(catalog), "_registered", (hash(options), {"options": Extension("options", "here", "1", made)}))
        model = {"arch": "options", "name_or_path": "weights", "model_kwargs": given}
        spec = catalog.parse_job(tiny_job(model=model, network={"linear": 4}))
        assert isinstance(spec, TrainSpec)
        counting = Counting()
        Batches(counting, spec, [datasets.survey(spec.datasets[0], folder)]).cache(Reporter(tmp_path / "run", 1))
        return counting.pictures, counting.texts

    return run


def test_only_options_that_an_encoding_hangs_on_encode_again(encoded) -> None:
    assert encoded(Options) == (4, 4)
    assert encoded(Options) == encoded(Options, neither=2) == (0, 0)
    assert encoded(Options, text=2) == (0, 4)
    assert encoded(Options, text=2, neither=2) == (0, 0)
    assert encoded(Options, plain=2) == encoded(Options, undeclared=2) == (4, 4)


def test_every_option_of_a_class_that_declares_none_encodes_again(encoded) -> None:
    assert encoded(FreeOptions, anything=1) == encoded(FreeOptions, anything=2) == (4, 4)
    assert encoded(FreeOptions, anything=2) == (0, 0)


@pytest.mark.parametrize(
    ("arch", "options", "texts"),
    [
        ("flux2_klein_4b", {"match_target_res": True, "max_text_length": 64}, {"max_text_length": 64}),
        ("pocket", {"channels": [16, 32]}, {}),
    ],
)
def test_what_encodings_of_the_bundled_archs_hang_on(arch, options, texts) -> None:
    made = catalog.arch(arch).options(**options)
    assert options_that_encode(made, "text") == texts
    assert options_that_encode(made, "latents") == {}


def test_another_way_of_reading_pictures_makes_their_latents_anew_and_no_texts(encoded, monkeypatch) -> None:
    assert encoded(Options)[0] == 4
    assert encoded(Options) == (0, 0)
    monkeypatch.setattr("worker.data.encode.READING", encode.READING + 1)
    assert encoded(Options) == (4, 0)
