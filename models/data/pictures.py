"""How a picture file is read. Torch-free. Transparent parts are laid on white; a mask file is read as its brightness."""

import io
from pathlib import Path

from PIL import Image, ImageOps

PICTURES = {".png", ".jpg", ".jpeg", ".jfif", ".webp", ".avif", ".bmp", ".tif", ".tiff", ".gif"}
ROTATED = {5, 6, 7, 8}  # EXIF orientations that swap width and height
EXIF_ORIENTATION = 0x0112
GAP = 2
FAULTS = (OSError, SyntaxError, ValueError, Image.DecompressionBombError)  # what Pillow raises for files that it cannot read


def open_picture(source: Path | bytes, at_least: tuple[int, int] | None = None) -> Image.Image:
    """The picture as upright 8-bit RGB: EXIF turn applied, CMYK and palettes converted, 16-bit scaled, transparency laid on
    white, the first frame of an animation. `source` is a file, or what it holds. Raises OSError when it cannot be decoded whole.

    With `at_least` (width, height) a JPEG far larger than that comes smaller, still GAP times as large as asked: its decoder then skips
    detail that resizing would throw away (Pillow's draft mode, and its own advice for what stays invisible)."""
    upright = _upright(source, at_least)
    if upright.has_transparency_data:
        rgba = upright.convert("RGBA")
        ground = Image.new("RGBA", rgba.size, (255, 255, 255, 255))
        upright = Image.alpha_composite(ground, rgba)
    return upright if upright.mode == "RGB" else upright.convert("RGB")


def open_alpha(source: Path | bytes) -> Image.Image:
    """How opaque the upright picture is, in 8-bit grey; white all over where it has no transparency."""
    upright = _upright(source)
    if not upright.has_transparency_data:
        return Image.new("L", upright.size, 255)
    return upright.convert("RGBA").getchannel("A")


def look_at_picture(data: bytes) -> tuple[int, int] | str:
    """Upright (width, height) of a file's bytes, decoded in full, or why they cannot be used."""
    if not data:
        return "empty file"
    try:
        with Image.open(io.BytesIO(data)) as image:
            size = _size(image)
            image.load()
    except FAULTS as error:
        return _reason(error)
    return size


def look_at_header(path: Path) -> tuple[int, int] | str:
    """The same, as far as the file's header tells."""
    try:
        if path.stat().st_size == 0:
            return "empty file"
        with Image.open(path) as image:
            return _size(image)
    except FAULTS as error:
        return _reason(error)


def _upright(source: Path | bytes, at_least: tuple[int, int] | None = None) -> Image.Image:
    with Image.open(io.BytesIO(source) if isinstance(source, bytes) else source) as image:
        if at_least is not None and image.format == "JPEG":
            turned = image.getexif().get(EXIF_ORIENTATION) in ROTATED
            image.draft(None, tuple(GAP * side for side in (reversed(at_least) if turned else at_least)))  # type: ignore[arg-type]
        image.seek(0)
        image.load()
        turned = image.getexif().get(EXIF_ORIENTATION, 1) != 1
        upright: Image.Image = ImageOps.exif_transpose(image) if turned else image
    if upright.mode.startswith("I"):  # 16-bit grey: Pillow's own convert clips instead of scaling
        upright = upright.convert("I").point(lambda value: value * (1 / 257)).convert("L")
    return upright


def _size(image: Image.Image) -> tuple[int, int]:
    width, height = image.size
    return (height, width) if image.getexif().get(EXIF_ORIENTATION) in ROTATED else (width, height)


def _reason(error: BaseException) -> str:
    return "cut short" if "truncated" in str(error) else f"not a readable picture: {type(error).__name__}"
