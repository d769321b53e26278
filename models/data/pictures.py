"""Reading of picture files. Torch-free. A file gives the pixels that viewers show: upright, in sRGB, transparency laid on white."""

import struct
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from PIL import Image, ImageChops, ImageFile, UnidentifiedImageError
from PIL.PngImagePlugin import MAX_TEXT_CHUNK, MAX_TEXT_MEMORY
from PIL.TiffImagePlugin import TiffImageFile

from models.data.colour import profile_fault, to_srgb
from models.data.depth import BadPixels, check_mode, is_deep, loaded
from models.data.limits import FILES, MOST_BYTES, PIXELS, release_memory, too_large
from models.data.texts import readable_size
from models.errors import UserError

PICTURES = {".png", ".jpg", ".jpeg", ".jfif", ".webp", ".avif", ".bmp", ".tif", ".tiff", ".gif"}
READING = 2  # part of every cached latent's key: another value whenever the same file gives other pixels
GAP = 2
EXIF_ORIENTATION = 0x0112
TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
GREY = {"1", "L", "LA", "La"}
ROTATED = {5, 6, 7, 8}  # the turns that swap width and height
SEVERAL_FRAMES = "more than one frame or page, of which only the first is used"
BROKEN_EXIF = "broken EXIF data, which may have held a turn"
OTHER_FORMS = {
    b"version https://git-lfs": "a Git LFS pointer and not the picture itself; run git lfs pull",
    b"<!doctype html": "a web page and not a picture",
    b"<html": "a web page and not a picture",
    b"<svg": "an SVG drawing; save it as PNG",
    b"\xff\x0a": "JPEG XL, which is not read; save it as PNG or JPEG",
    b"\x00\x00\x00\x0cjxl ": "JPEG XL, which is not read; save it as PNG or JPEG",
}
HEIC = (b"ftypheic", b"ftypheix", b"ftypmif1", b"ftyphevc")

# Pillow's own limit and warnings name no file; the limit is checked here, and faults become notes, both with the file's name.
Image.MAX_IMAGE_PIXELS = None
warnings.filterwarnings("ignore", module=r"PIL\.")


class BadPicture(ValueError):
    """A file that cannot be used as a picture; the text says why."""


def open_picture(path: Path, at_least: tuple[int, int] | None = None) -> Image.Image:
    """Return the picture as upright 8-bit RGB in sRGB: EXIF turn and colour profile applied, transparency laid on white, the first frame of
    an animation. Raises UserError naming the file when it cannot be decoded whole.

    With `at_least` (width, height) a JPEG far larger than that comes smaller, still GAP times as large as requested: its decoder then
    skips detail that resizing would throw away (Pillow's draft mode, and its own advice for what stays invisible)."""
    with picture(path, at_least) as image:
        return image.copy()


@contextmanager
def picture(path: Path, at_least: tuple[int, int] | None = None) -> Iterator[Image.Image]:
    """Open it like `open_picture`, for use inside the block: so long its pixels count in the budget that all threads share."""
    with _made(path, on_white, at_least) as image:
        yield image


@contextmanager
def mask(path: Path, *, alpha: bool = False) -> Iterator[Image.Image]:
    """Open a mask as 8-bit grey: its brightness times its opacity; the opacity alone with `alpha`, and if its colour is black all over.
    A mask's numbers are data: no colour profile is applied. Raises UserError as `open_picture` does."""
    with _made(path, _opacity if alpha else _mask) as image:
        yield image


def look_at_picture(path: Path, *, decode: bool) -> dict[str, Any]:
    """Return the picture's upright `width` and `height`, and `notes` on parts of the file that are ignored; with `decode` all of it is
    decoded first. Raises BadPicture, and OSError where the file cannot be reached."""
    try:
        if decode:
            with _upright(path) as (image, notes):
                size = image.size
        else:
            with _opened(path) as image:
                size, notes = image.size, _notes(image)
                size = (size[1], size[0]) if _turn(image) in ROTATED else size
    except Exception as error:
        raise _fault(error, path) from None
    return {"width": size[0], "height": size[1], **({"notes": notes} if notes else {})}


@contextmanager
def _made(
    path: Path, make: Callable[[Image.Image], Image.Image], at_least: tuple[int, int] | None = None
) -> Iterator[Image.Image]:
    with ExitStack() as held:
        try:
            image = make(held.enter_context(_upright(path, at_least))[0])
        except Exception as error:
            raise UserError(f"{path} cannot be used: {_fault(error, path)}", code="bad_picture") from None
        yield image


@contextmanager
def _opened(path: Path) -> Iterator[ImageFile.ImageFile]:
    """Open the picture and read its header. Pillow gets a file object, which it does not map: a mapped file that someone cuts short
    would end the process."""
    size = path.stat().st_size
    if size == 0:
        raise BadPicture("empty file")
    if size > MOST_BYTES:
        raise BadPicture(f"a file of {readable_size(size)} is too large, at most {readable_size(MOST_BYTES)} are read")
    with FILES.of(size), path.open("rb") as file, Image.open(file) as image:
        if fault := too_large(*image.size):
            raise BadPicture(fault)
        check_mode(image)
        yield image


@contextmanager
def _upright(path: Path, at_least: tuple[int, int] | None = None) -> Iterator[tuple[Image.Image, list[str]]]:
    """Decode the picture, turn it upright and scale it to 8 bits a channel; with notes on parts that are ignored."""
    with _opened(path) as image:
        if at_least is not None and image.format == "JPEG":
            sides = reversed(at_least) if _turn(image) in ROTATED else at_least
            image.draft(None, tuple(GAP * side for side in sides))  # type: ignore[arg-type]
        copies = 2 if is_deep(image) else 1
        with PIXELS.of(copies * image.width * image.height):
            image.seek(0)
            whole = loaded(image, lambda: Image.open(path))
            turn = _turn(image)
            upright = whole.transpose(TURNS[turn]) if turn in TURNS else whole
            try:
                yield upright, _notes(whole)
            finally:  # its memory is free before other threads may use as much
                for each in (upright, whole, image):
                    each.close()
                release_memory(upright.width * upright.height)


def _turn(image: Image.Image) -> int:
    """Return the EXIF orientation; 1 if there is none, and for TIFF, which Pillow turns by itself. Pillow's PNG class would decode the
    whole picture for it, hence the base class's method."""
    if isinstance(image, TiffImageFile):
        return 1
    try:
        return int(Image.Image.getexif(image).get(EXIF_ORIENTATION) or 1)
    except Exception:  # a broken block makes Pillow raise errors of many kinds
        return 1


def _notes(image: Image.Image) -> list[str]:
    return [note for note in (_frames_note(image), _exif_fault(image), profile_fault(image)) if note]


def _frames_note(image: Image.Image) -> str | None:
    """Return a note on an animation or on several pages. Further pictures in a phone's JPEG (MPO) are of the same view: no note."""
    try:
        return SEVERAL_FRAMES if image.format != "MPO" and getattr(image, "is_animated", False) else None
    except Exception:  # what follows the first frame is broken, and not used
        return SEVERAL_FRAMES


def _exif_fault(image: Image.Image) -> str | None:
    """Return a note on a broken EXIF block, of which Pillow reads as much as it can."""
    if not (block := bytes(image.info.get("exif") or b"").removeprefix(b"Exif\0\0")):
        return None
    order = {b"II*\0": "<", b"MM\0*": ">"}.get(block[:4])
    with suppress(struct.error):
        if order:
            (at,) = struct.unpack_from(f"{order}I", block, 4)
            (count,) = struct.unpack_from(f"{order}H", block, at)
            if at + 2 + 12 * count <= len(block):
                return None
    return BROKEN_EXIF


def on_white(image: Image.Image) -> Image.Image:
    """Convert to RGB in sRGB, with transparent parts laid on white."""
    if not image.has_transparency_data:
        return image if image.mode == "RGB" and "icc_profile" not in image.info else to_srgb(image)
    whole = _rgba(image)
    shown = to_srgb(whole.convert("L" if image.mode in GREY else "RGB"))
    shown.putalpha(whole.getchannel("A"))
    return Image.alpha_composite(Image.new("RGBA", whole.size, "white"), shown).convert("RGB")


def _mask(image: Image.Image) -> Image.Image:
    if not image.has_transparency_data:
        return image.convert("RGB").convert("L")
    shown = ImageChops.multiply(_rgba(image).convert("RGB").convert("L"), _opacity(image))
    return shown if shown.getbbox() else _opacity(image)


def _opacity(image: Image.Image) -> Image.Image:
    return _rgba(image).getchannel("A") if image.has_transparency_data else Image.new("L", image.size, 255)


def _rgba(image: Image.Image) -> Image.Image:
    return (image.convert("LA") if image.mode == "La" else image).convert("RGBA")


def _fault(error: Exception, path: Path) -> Exception:
    """Turn any error of a decoder into a BadPicture with the reason; an error of the system stays as it is."""
    text = str(error)
    match error:
        case BadPicture() | BadPixels():
            return BadPicture(text)
        case UnidentifiedImageError():
            return BadPicture(_other_form(path))
        case OSError() if error.errno:
            return error
        case MemoryError():
            return BadPicture("there is not enough memory to decode it")
        case ValueError() if "MAX_TEXT_CHUNK" in text:
            return BadPicture(f"more than {readable_size(MAX_TEXT_CHUNK)} of packed text inside; save it without that")
        case ValueError() if "text chunks" in text:
            return BadPicture(f"more than {readable_size(MAX_TEXT_MEMORY)} of text inside; save it without that")
    if "truncated" in text or "Truncated" in text:
        return BadPicture("cut short")
    return BadPicture(f"its content is broken ({text:.100})" if " " in text else "its content is broken")


def _other_form(path: Path) -> str:
    with path.open("rb") as file:
        first = file.read(64).removeprefix(b"\xef\xbb\xbf").lstrip().lower()
    if first[4:12] in HEIC:
        return "HEIC, which is not read; save it as PNG or JPEG"
    return next(
        (what for begin, what in OTHER_FORMS.items() if first.startswith(begin)), "not a picture in any form that is read"
    )
