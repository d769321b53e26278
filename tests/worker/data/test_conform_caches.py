"""The rule on caches: versions of the text and latent spaces decide what is found again."""

from pathlib import Path
from typing import Any

import pytest

import worker.conform
from models.archs.example.card import ARCHS
from models.archs.example.model import ExampleModel
from models.conform import Broken, subject_for
from worker.conform import space_versions_key_the_caches


class Unnamed(ExampleModel):
    text_embedding_space_version = None  # type: ignore[assignment]


class UnnamedLatents(ExampleModel):
    latent_space_version = ""


class Restless(ExampleModel):
    @property
    def latent_space_version(self) -> str:
        return f"vae at {id(self)}"


class Assigned(ExampleModel):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.latent_space_version = "vae 2"


@pytest.mark.parametrize("cls", [ExampleModel, Assigned])
def test_the_template_keeps_it(cls: type[ExampleModel], tmp_path: Path) -> None:
    assert space_versions_key_the_caches(subject_for(ARCHS[0], tmp_path, cls)) == "found again, and not after a new version"


@pytest.mark.parametrize(
    ("mutant", "said"),
    [
        (Unnamed, "text_embedding_space_version is None; it must be a text"),
        (UnnamedLatents, "latent_space_version is ''; it must be a text"),
        (Restless, "the cached latents are not found again by the same model loaded anew: latent_space_version is 'vae at"),
    ],
)
def test_a_seeded_fault_is_seen(mutant: type[ExampleModel], said: str, tmp_path: Path) -> None:
    with pytest.raises(Broken, match=said):
        space_versions_key_the_caches(subject_for(ARCHS[0], tmp_path, mutant))


def test_a_cache_that_ignores_the_version_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = worker.conform.space

    def ignoring(*args: Any) -> dict[str, Any]:
        return {key: value for key, value in real(*args).items() if key != "space"}

    monkeypatch.setattr(worker.conform, "space", ignoring)
    with pytest.raises(Broken, match="the cached text would still be taken although text_embedding_space_version changed"):
        space_versions_key_the_caches(subject_for(ARCHS[0], tmp_path))
