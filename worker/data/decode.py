"""From files to tensors: pictures, masks and control pictures, cut as an entry's view says."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps

from models.data import pictures
from models.data.entries import View, covering
from models.data.fileindex import stamp_of
from models.data.look import Media, sha256_of
from models.errors import UserError

RESAMPLING = "bicubic 1"  # part of every cached latent's key: another value whenever the numbers change
TURN = {
    (True, False): Image.Transpose.FLIP_LEFT_RIGHT,
    (False, True): Image.Transpose.FLIP_TOP_BOTTOM,
    (True, True): Image.Transpose.ROTATE_180,
}


def pixels(path: Path, width: int, height: int) -> torch.Tensor:
    """(3, H, W) in [-1, 1]: upright, scaled to cover width x height (bicubic), centre-cropped."""
    with pictures.picture(path) as image:
        scaled = covering(image.width, image.height, width, height)
        return signed_pixels(cut_image(image, centred(scaled, width, height)))


def centred(scaled: tuple[int, int], width: int, height: int) -> View:
    return View(width, height, *scaled, (scaled[0] - width) // 2, (scaled[1] - height) // 2)


def picture(media: Media, view: View) -> torch.Tensor:
    """(3, H, W) in [-1, 1] of a picture. Raises UserError if the file is not any more what it was."""
    with _unchanged(media, pictures.picture(media.path, (view.scaled_width, view.scaled_height))) as image:
        return signed_pixels(cut_image(image, view))


def control(media: Media, view: View, like: Media) -> torch.Tensor:
    """(3, H, W) in [0, 1]: scaled and cut like the picture `like` that it belongs to."""
    with _unchanged(media, pictures.picture(media.path)) as image:
        return unit_pixels(cut_image(_as_large(image, view, like), view))


def raw_control(media: Media, view: View) -> torch.Tensor:
    """(3, H', W') in [0, 1]: at its own size, flipped like the picture that it belongs to."""
    with _unchanged(media, pictures.picture(media.path)) as image:
        return unit_pixels(_turned(image, view))


def mask(media: Media, view: View, like: Media, *, alpha: bool, invert: bool, floor: float) -> torch.Tensor:
    """(1, H, W) in [floor, 1] of a mask's brightness, or with `alpha` of how opaque the picture is; cut like the picture."""
    with _unchanged(media, pictures.mask(media.path, alpha=alpha)) as grey:
        levels = torch.from_numpy(np.array(cut_image(_as_large(grey, view, like), view))).float()[None] / 255
    return floor + (1 - floor) * (1 - levels if invert else levels)


def cut_image(image: Image.Image, view: View) -> Image.Image:
    """What the view takes of an upright picture. Scaled down it is filtered over its whole footprint."""
    scaled = (view.scaled_width, view.scaled_height)
    if image.size != scaled:
        image = image.resize(scaled, Image.Resampling.BICUBIC)
    if scaled != (view.width, view.height):
        image = image.crop((view.left, view.top, view.left + view.width, view.top + view.height))
    return _turned(image, view)


def unit_pixels(image: Image.Image) -> torch.Tensor:
    """(3, H, W) in [0, 1] of an RGB picture."""
    return _levels(image).div_(255)


def signed_pixels(image: Image.Image) -> torch.Tensor:
    """(3, H, W) in [-1, 1] of an RGB picture; the same numbers as 2 x - 1 of its unit pixels."""
    return _levels(image).div_(127.5).sub_(1)


def levels_of(pixels: torch.Tensor) -> torch.Tensor:
    """Signed pixels as the bytes that they were made of, a quarter of their size."""
    return ((pixels + 1) * 127.5).round().to(torch.uint8)


def pixels_of(levels: torch.Tensor) -> torch.Tensor:
    """The inverse of `levels_of`, exactly."""
    return levels.float().div_(127.5).sub_(1)


@contextmanager
def _unchanged(media: Media, opening: AbstractContextManager[Image.Image]) -> Iterator[Image.Image]:
    """Open the picture. Raises UserError if the file was changed since the run looked at it: caches depend on its content."""
    with ExitStack() as stack:
        try:
            image = stack.enter_context(opening)
        except UserError:
            check_unchanged(media)
            raise
        check_unchanged(media)
        yield image


def check_unchanged(media: Media) -> None:
    """Check that the file was not changed since the run looked at it. Raises UserError."""
    try:
        if stamp_of(media.path) == media.stamp or sha256_of(media.path) == media.digest:
            return
    except OSError as error:
        raise UserError(f"{media.path} cannot be read any more: {error.strerror or error}", code="data_changed") from None
    raise _changed(media)


def _changed(media: Media) -> UserError:
    return UserError(f"{media.path} was changed while the job ran", code="data_changed", hint="resume the job; it looks again")


def _levels(image: Image.Image) -> torch.Tensor:
    """(3, H, W) in 0..255, as floats."""
    levels_CHW = torch.from_numpy(np.array(image)).permute(2, 0, 1)
    return levels_CHW.to(torch.float32, memory_format=torch.contiguous_format)


def _as_large(image: Image.Image, view: View, like: Media) -> Image.Image:
    """A picture of another shape than the one it belongs to, centre-cropped to that shape."""
    if image.size == (like.width, like.height):
        return image
    return ImageOps.fit(image, (view.scaled_width, view.scaled_height), Image.Resampling.BICUBIC)


def _turned(image: Image.Image, view: View) -> Image.Image:
    turn = TURN.get((view.flip_x, view.flip_y))
    return image if turn is None else image.transpose(turn)
