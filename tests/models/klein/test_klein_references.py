"""The sizes that FLUX.2 klein's reference pictures get, against diffusers' own image processor."""

from typing import Any

import numpy as np
import pytest
import torch
from diffusers.pipelines.flux2.image_processor import Flux2ImageProcessor
from PIL import Image

from models.archs.flux2_klein import references
from models.errors import UserError
from models.precise import NotFinite
from tests.models.klein.tiny_klein import unit

PROCESSOR = Flux2ImageProcessor(vae_scale_factor=16)


@pytest.mark.parametrize("size", [(1300, 1000), (64, 96), (103, 70), (700, 2100)])
def test_references_get_the_size_that_diffusers_gives_them(size: tuple[int, int]) -> None:
    image = Image.fromarray(np.random.default_rng(1).integers(0, 256, (*size[::-1], 3), dtype=np.uint8))
    shrunk = PROCESSOR._resize_if_exceeds_area(image, 1024 * 1024)
    width, height = (side // 16 * 16 for side in shrunk.size)
    wanted = PROCESSOR.preprocess(shrunk, height=height, width=width, resize_mode="crop")[0]
    assert torch.equal(references.fit(unit(image)) * 2 - 1, wanted)


@pytest.mark.parametrize(
    ("size", "area", "wanted"),
    [((64, 64), 128 * 128, (128, 128)), ((200, 100), 64 * 64, (96, 32)), ((40, 40), 256, (32, 32)), ((30, 90), 9216, (64, 160))],
)
def test_references_can_follow_the_area_of_the_target(size: tuple[int, int], area: int, wanted: tuple[int, int]) -> None:
    fitted = references.fit(torch.rand(3, size[1], size[0]), area)
    assert (fitted.shape[2], fitted.shape[1]) == wanted


def test_a_reference_that_is_too_small_is_named() -> None:
    with pytest.raises(UserError, match="control image of 40x12 pixels is too small"):
        references.fit(torch.rand(3, 12, 40))


def test_a_control_picture_whose_latents_are_not_finite_is_refused(klein: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[torch.dtype] = []

    def encode(pixels: torch.Tensor, **_: Any) -> torch.Tensor:
        made.append(klein.vae.dtype)
        return torch.full((1, 128, 2, 2), torch.nan if klein.vae.dtype == torch.float16 or pixels.mean() > 0 else 1.0)

    monkeypatch.setattr(klein, "encode_images", encode)
    klein.vae.half()
    try:
        assert bool(klein._reference(torch.zeros(3, 32, 32), 2, 2).isfinite().all())
        with pytest.raises(NotFinite, match=r"the latents of a control picture are not finite in float16 .*, nor in fp32"):
            klein._reference(torch.ones(3, 32, 32), 2, 2)
    finally:
        klein.vae.float()
    assert made == [torch.float16, torch.float32] * 2
