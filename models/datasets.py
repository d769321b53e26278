"""Folders of captioned pictures: what is in them, what is wrong with them, and how a picture is read. Torch-free.

Hidden files and folders, `._` companions and anything that is not a picture by its extension are passed over; the folder is
never written to. Transparent parts are laid on white. A caption's line breaks become spaces.
"""

import codecs
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from PIL import Image, ImageOps

from models.buckets import batches_per_epoch, bucket_size
from models.errors import Problem
from models.spec import DatasetSpec, TrainSpec

PICTURES = {".png", ".jpg", ".jpeg", ".webp", ".bmp", ".tif", ".tiff", ".gif"}
ROTATED = {5, 6, 7, 8}  # EXIF orientations that swap width and height
EXIF_ORIENTATION = 0x0112
NAMED = 5  # how many files an error names before it says "and N more"


@dataclass(frozen=True)
class Item:
    """A picture to train on; width and height in pixels, upright."""

    path: Path
    caption: str
    width: int
    height: int


@dataclass
class Survey:
    """What a dataset's folder holds. `refused` is (file name, reason); `uncaptioned` are file names without a usable caption."""

    folder: Path
    items: list[Item] = field(default_factory=list)
    refused: list[tuple[str, str]] = field(default_factory=list)
    uncaptioned: list[str] = field(default_factory=list)
    bad_captions: list[str] = field(default_factory=list)
    undecoded: int = 0

    def entries(self, spec: DatasetSpec, divisibility: int) -> list[tuple[Item, tuple[int, int]]]:
        """What one epoch shows: (item, bucket (width, height)), once per resolution and repeat, in a fixed order."""
        return [
            (item, bucket_size(item.width, item.height, resolution, divisibility))
            for resolution in spec.resolution
            for item in self.items
            for _ in range(spec.num_repeats)
        ]


def pictures(folder: Path) -> Iterator[Path]:
    """The picture files under `folder`, sorted, recursively, hidden ones passed over."""
    for path in sorted(folder.rglob("*")):
        hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
        if not hidden and path.suffix.lower() in PICTURES and path.is_file():
            yield path


def survey(spec: DatasetSpec, folder: Path, *, decode_at_most: int | None = None) -> Survey:
    """Look at every picture and caption of `folder`. Pictures are decoded in full, which is the only way to know that they
    can be, but no more than `decode_at_most` of them (None: all); for the rest only the header is read."""
    found = Survey(folder)
    paths = list(pictures(folder))
    with ThreadPoolExecutor() as pool:
        sizes = list(pool.map(lambda at: _size(at[1], decode_at_most is None or at[0] < decode_at_most), enumerate(paths)))
    found.undecoded = 0 if decode_at_most is None else max(0, len(paths) - decode_at_most)
    for path, size in zip(paths, sizes, strict=True):
        name = str(path.relative_to(folder))
        if isinstance(size, str):
            found.refused.append((name, size))
            continue
        try:
            caption = read_caption(path.with_suffix("." + spec.caption_ext.lstrip(".")))
        except UnicodeDecodeError:
            found.bad_captions.append(name)
            continue
        if not caption:
            if spec.default_caption is None:
                found.uncaptioned.append(name)
                continue
            caption = spec.default_caption
        found.items.append(Item(path, caption, *size))
    return found


def problems(found: Survey, spec: DatasetSpec, pointer: str) -> tuple[list[Problem], list[Problem]]:
    """(what refuses the job, what the user should know), with `pointer` being the dataset's place in the job."""
    errors, warnings = [], []
    folder = f"{pointer}/folder_path"
    if found.refused:
        named = _named([f"{name} ({reason})" for name, reason in found.refused])
        if spec.on_bad_file == "stop":
            errors.append(Problem(folder, f"unreadable pictures: {named}", "repair or remove them, or set on_bad_file to skip"))
        else:
            warnings.append(Problem(folder, f"skipped, unreadable: {named}"))
    if found.bad_captions:
        errors.append(
            Problem(
                f"{pointer}/caption_ext",
                f"captions are not UTF-8 or UTF-16 text: {_named(found.bad_captions)}",
                "save them as UTF-8",
            )
        )
    if found.uncaptioned:
        hint = "write the captions, or set default_caption (an empty text allows none)"
        message = f"no caption in a .{spec.caption_ext.lstrip('.')} file for: {_named(found.uncaptioned)}"
        errors.append(Problem(f"{pointer}/default_caption", message, hint))
    if not (found.items or errors):
        message = f"no pictures in {found.folder}; wanted: {', '.join(sorted(PICTURES))}"
        errors.append(Problem(folder, message))
    return errors, warnings


def epoch_summary(spec: TrainSpec, surveys: list[Survey], divisibility: int) -> dict[str, Any]:
    """Buckets, batches and epochs of a job, as a plan shows them."""
    datasets, batches = [], 0
    for dataset, found in zip(spec.datasets, surveys, strict=True):
        sizes = [size for _, size in found.entries(dataset, divisibility)]
        batches += batches_per_epoch(sizes, spec.train.batch_size)
        buckets = [{"width": w, "height": h, "images": sizes.count((w, h))} for w, h in sorted(set(sizes))]
        refused = [{"file": name, "reason": reason} for name, reason in found.refused]
        datasets.append(
            {
                "folder_path": dataset.folder_path,
                "images": len(found.items),
                "refused": refused,
                "captions_missing": len(found.uncaptioned),
                "buckets": buckets,
            }
        )
    steps = batches / spec.train.gradient_accumulation
    return {
        "datasets": datasets,
        "steps_per_epoch": round(steps, 2) if batches else None,
        "epochs": round(spec.train.steps / steps, 2) if batches else None,
    }


def read_caption(path: Path) -> str:
    """The caption in `path`, stripped, line breaks as spaces; "" if there is no such file. UTF-8 with or without a byte order
    mark, or UTF-16 with one. Raises UnicodeDecodeError on anything else: a caption is never guessed."""
    if not path.is_file():
        return ""
    data = path.read_bytes()
    utf16 = data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    text = data.decode("utf-16" if utf16 else "utf-8-sig")
    return " ".join(line.strip() for line in text.splitlines() if line.strip())


def open_picture(path: Path) -> Image.Image:
    """The picture as upright 8-bit RGB: EXIF turn applied, CMYK and palettes converted, 16-bit scaled, transparency laid on
    white, the first frame of an animation. Raises OSError when it cannot be decoded whole."""
    with Image.open(path) as image:
        image.seek(0)
        image.load()
        upright = ImageOps.exif_transpose(image)
    if upright.mode.startswith("I"):  # 16-bit grey: Pillow's own convert clips instead of scaling
        upright = upright.convert("I").point(lambda value: value * (1 / 257)).convert("L")
    if upright.has_transparency_data:
        rgba = upright.convert("RGBA")
        ground = Image.new("RGBA", rgba.size, (255, 255, 255, 255))
        upright = Image.alpha_composite(ground, rgba)
    return upright.convert("RGB")


def _size(path: Path, decode: bool) -> tuple[int, int] | str:
    """Upright (width, height), or why the file cannot be used."""
    try:
        if path.stat().st_size == 0:
            return "empty file"
        with Image.open(path) as image:
            width, height = image.size
            turned = image.getexif().get(EXIF_ORIENTATION) in ROTATED
            if decode:
                image.load()
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        return "cut short" if "truncated" in str(error) else f"not a readable picture: {type(error).__name__}"
    return (height, width) if turned else (width, height)


def _named(names: list[str]) -> str:
    more = len(names) - NAMED
    return ", ".join(names[:NAMED]) + (f" and {more} more" if more > 0 else "")
