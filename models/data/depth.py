"""Pixel formats: each of Pillow's modes is scaled to 8 bits a channel by its own range, or refused. Torch-free.

Pillow's own conversion clips deeper pixels: most of a 16-bit picture becomes white, one of numbers from 0 to 1 black.
"""

import math
import sys
from collections.abc import Callable
from typing import Any

from PIL import Image, ImageChops, ImageFile, ImageOps

EIGHT_BITS = {"1", "L", "LA", "La", "P", "PA", "RGB", "RGBA", "RGBa", "RGBX", "CMYK", "YCbCr", "LAB", "HSV"}
SIXTEEN_BITS = {"I;16", "I;16B", "I;16L", "I;16N"}
FLOAT = "F"
MODES = {*EIGHT_BITS, *SIXTEEN_BITS, FLOAT}  # the modes that are read
HINT = "save it with 8 or 16 bits a channel"
HALF_A_LEVEL = 0.5 / 255

_OTHER = "B" if sys.byteorder == "little" else "L"
# Pillow's names for 16 bits a channel in a file, of which it keeps the upper eight. The other byte order gives the lower eight.
LOWER_EIGHT = {
    f"{mode};16{order}": f"{mode};16{other}"
    for mode in ("RGB", "RGBA", "RGBX", "CMYK")
    for order, other in (("B", "L"), ("L", "B"), ("N", _OTHER))
}
GREY_WITH_ALPHA = "LA;16B"
MIN_IS_WHITE, BITS, PHOTOMETRIC = 0, 258, 262  # of TIFF


class BadPixels(ValueError):
    """Pixels whose range is not known; the message says which."""


def check_mode(image: Image.Image) -> None:
    """Check that the mode's range is known. Raises BadPixels if not: for whole numbers of 32 bits, for example."""
    if image.mode not in MODES:
        what = "whole numbers of 32 bits or with a sign" if image.mode == "I" else "pixels of an unknown range"
        raise BadPixels(f"{what} (mode {image.mode}); {HINT}")


def is_deep(image: ImageFile.ImageFile) -> bool:
    """Return whether the file has 16 bits a channel of which Pillow keeps eight. Call it before the picture is decoded."""
    return bool(image.tile) and all(_raw(tile) in LOWER_EIGHT or _raw(tile) == GREY_WITH_ALPHA for tile in image.tile)


def loaded(image: ImageFile.ImageFile, again: Callable[[], ImageFile.ImageFile]) -> Image.Image:
    """Decode an opened picture to one of EIGHT_BITS; `again` opens its file once more. Raises BadPixels and the decoder's errors."""
    check_mode(image)
    if is_deep(image):
        return _rounded(image, again)
    full = 2 ** image.tag_v2[BITS][0] - 1 if image.mode in SIXTEEN_BITS and hasattr(image, "tag_v2") else 65535
    image.load()
    if image.mode in SIXTEEN_BITS:
        return _as_written(
            image, _with_key(image.convert("I").point(lambda value: value * (255 / full) + 0.5).convert("L"), full)
        )
    if image.mode == FLOAT:
        _check_range(image)
        return _as_written(image, image.point(lambda value: value * 255 + 0.5).convert("L"))
    return image


def _check_range(image: Image.Image) -> None:
    mean = image.resize((1, 1), Image.Resampling.BOX).getpixel((0, 0))  # not finite if any number is not finite
    low, high = image.getextrema()
    if not math.isfinite(mean):  # type: ignore[arg-type]
        raise BadPixels(f"some of its numbers are not finite (mode {image.mode}); {HINT}")
    if low < -HALF_A_LEVEL or high > 1 + HALF_A_LEVEL:  # type: ignore[operator]
        raise BadPixels(f"numbers from {low:.4g} to {high:.4g} where 0 to 1 is read (mode {image.mode}); {HINT}")


def _as_written(image: Image.Image, grey: Image.Image) -> Image.Image:
    """Invert the picture where 0 stands for white, which Pillow ignores in deep TIFFs."""
    written = getattr(image, "tag_v2", {}).get(PHOTOMETRIC)
    return ImageOps.invert(grey) if written == MIN_IS_WHITE else grey


def _with_key(image: Image.Image, full: int) -> Image.Image:
    """Scale the colour that counts as transparent like the pixels."""
    key = image.info.get("transparency")
    if isinstance(key, int | tuple):
        scaled = [round(value * 255 / full) for value in (key if isinstance(key, tuple) else (key,))]
        image.info["transparency"] = tuple(scaled) if isinstance(key, tuple) else scaled[0]
    return image


def _rounded(image: ImageFile.ImageFile, again: Callable[[], ImageFile.ImageFile]) -> Image.Image:
    """Round v / 257 for each value v = 256 high + low: the result is `high`, or one more or less where `low` is far from it."""
    as_bytes = _raw(image.tile[0]) == GREY_WITH_ALPHA
    with again() as lower:
        lower.tile = [_named(tile, "RGBA" if as_bytes else LOWER_EIGHT[_raw(tile)]) for tile in lower.tile]
        lower.load()
    low: Image.Image = lower
    if as_bytes:
        _, grey, _, alpha = lower.split()
        low = Image.merge("RGBA", (grey, grey, grey, alpha))
    image.load()
    far = [value > 128 for value in range(256)] * len(image.getbands())
    more, less = (ImageChops.subtract(*pair).point(far) for pair in ((low, image), (image, low)))
    whole = ImageChops.subtract(ImageChops.add(image, more), less)
    whole.info = image.info
    return _with_key(whole, 65535)


def _raw(tile: Any) -> str:
    return str(tile.args if isinstance(tile.args, str) else tile.args[0])


def _named(tile: Any, raw: str) -> Any:
    return tile._replace(args=raw if isinstance(tile.args, str) else (raw, *tile.args[1:]))
