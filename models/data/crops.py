"""Warnings about pictures that are cut or enlarged much to fit their buckets. Torch-free."""

from collections.abc import Iterator, Sequence

from models import catalog
from models.data.datasets import Item, Survey, every_dataset
from models.data.entries import covering, sizes
from models.data.look import Media
from models.errors import Problem
from models.spec import CONTROL_FOLDERS, DatasetSpec, TrainSpec
from models.words import named

LEAST_KEPT = 0.5  # of a picture's area, without a warning; a square bucket keeps 0.56 of 16:9
MOST_ENLARGED = 2.0  # times each side, without a warning


def crop_warnings(spec: TrainSpec, surveys: Sequence[Survey], divisibility: int) -> list[Problem]:
    """Name the pictures of which more than half is cut away or that are enlarged more than twice, and the masks and control pictures
    that are cut to another shape. `surveys` are those of `every_dataset`."""
    size_of = sizes(spec, divisibility)
    card = catalog.archs().get(spec.model.arch)
    whole = bool(card and "multi_reference" in card.capabilities)  # such a model takes control pictures as they are
    warnings = []
    for (pointer, dataset), found in zip(every_dataset(spec), surveys, strict=True):
        shown = [item for item in found.items if item.width and item.height]
        cut = [
            f"{item.name} ({item.width} x {item.height} as {width} x {height}: {text})"
            for item in shown
            for width, height, text in _cuts(item, [size_of(item, resolution) for resolution in dataset.resolution])
        ]
        if cut:
            message = f"much of these is cut away or enlarged to fit a bucket: {named(cut)}"
            warnings.append(Problem(f"{pointer}/resolution", message))
        for key, what, names in _unlike(dataset, shown, whole):
            message = f"{what} of another shape than their picture, cut to it at the centre: {named(names)}"
            warnings.append(Problem(f"{pointer}/{key}", message))
    return warnings


def _cuts(item: Item, boxes: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int, str]]:
    """Yield (width, height, words) of the first of the sizes at which too much is cut or enlarged."""
    for width, height in boxes:
        scaled_width, scaled_height = covering(item.width, item.height, width, height)
        kept, times = width * height / (scaled_width * scaled_height), scaled_width / item.width
        parts = [f"{1 - kept:.0%} cut away"] if kept < LEAST_KEPT else []
        parts += [f"enlarged {times:.3g} times"] if times > MOST_ENLARGED else []
        if parts:
            yield width, height, ", ".join(parts)
            return


def _unlike(dataset: DatasetSpec, items: Sequence[Item], whole: bool) -> Iterator[tuple[str, str, list[str]]]:
    """Yield (key, noun, names of their pictures) of masks and control pictures that are cut to another shape."""
    keys = [key for key in CONTROL_FOLDERS if getattr(dataset, key)]
    beside = [("mask_path", "masks", [(item.name, item, item.mask) for item in items])]
    if len(keys) == 1 and not whole:
        beside += [(keys[0], "control pictures", [(item.name, item, control) for item in items for control in item.controls])]
    for key, what, pairs in beside:
        if names := [name for name, item, other in pairs if other and _is_cut(item, other)]:
            yield key, what, names


def _is_cut(item: Item, other: Media) -> bool:
    """Return whether more than a pixel of `other` is cut away where it covers the item."""
    over = (other.width - other.height * item.width / item.height, other.height - other.width * item.height / item.width)
    return max(over) > 1
