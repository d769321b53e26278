"""A tiny random FLUX.2 klein, as diffusers and as we load it."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from diffusers import Flux2KleinPipeline
from PIL import Image

from models.archs.flux2_klein.model import Flux2KleinModel, write_tiny
from tests.models.klein.tiny_klein import load


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkpoint's folder, only to be read."""
    folder = tmp_path_factory.mktemp("klein") / "tiny"
    write_tiny(folder)
    return folder


@pytest.fixture(scope="module")
def klein(tiny: Path) -> Flux2KleinModel:
    return load(tiny)


@pytest.fixture(scope="module")
def pipe(tiny: Path) -> Any:
    pipe = Flux2KleinPipeline.from_pretrained(tiny)
    pipe.set_progress_bar_config(disable=True)
    return pipe


@pytest.fixture(scope="module")
def photos() -> list[Image.Image]:
    """Smooth pictures of several sizes, the second not a multiple of 16."""
    draw = np.random.default_rng(3)
    coarse = [Image.fromarray(draw.integers(0, 256, (4, 4, 3), dtype=np.uint8)) for _ in range(3)]
    return [
        image.resize(size, Image.Resampling.BICUBIC) for image, size in zip(coarse, [(64, 64), (103, 70), (64, 96)], strict=True)
    ]
