"""Entries: an item at one size, cut and turned one way. An epoch shows every entry once. Torch-free.

A picture is scaled so that it covers its bucket, cut to it at the centre or at a random place, and then flipped. A regularisation set's
entries make a stream of their own.
"""

import hashlib
import json
import math
import random
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from models import catalog
from models.data.buckets import Bucket, bucket_size
from models.data.captions import CaptionRule
from models.data.datasets import Item, Survey
from models.spec import DatasetSpec, TrainSpec


@dataclass(frozen=True)
class View:
    """How a picture is cut, in pixels: scaled to `scaled_width` x `scaled_height`, of which the box of `width` x `height` at (`left`,
    `top`) is taken and then flipped. All zero for sounds."""

    width: int = 0
    height: int = 0
    scaled_width: int = 0
    scaled_height: int = 0
    left: int = 0
    top: int = 0
    flip_x: bool = False
    flip_y: bool = False


@dataclass(frozen=True)
class Entry:
    """`dataset` is the number of the dataset within the job."""

    item: Item
    dataset: int
    view: View
    rule: CaptionRule = field(default_factory=CaptionRule)

    @property
    def bucket(self) -> Bucket:
        """What must agree within a batch."""
        return (self.dataset, self.view.width, self.view.height, self.item.num_frames, self.item.media.milliseconds)

    @property
    def plain(self) -> "Entry":
        """The same picture at the same size without anything random: unflipped, cut at the centre, captions as they are."""
        return replace(self, view=_view(self.item, (self.view.width, self.view.height)), rule=self.rule.plain)


def make_entries(spec: TrainSpec, surveys: Sequence[Survey], divisibility: int) -> list[Entry]:
    """What one epoch of the job shows, in a fixed order."""
    entries: list[Entry] = []
    for number, (dataset, found) in enumerate(zip(spec.datasets, surveys, strict=False)):
        rule = CaptionRule.of(spec, dataset)
        views = _views(dataset, number, found.items, sizes(spec, divisibility), spec.train.seed)
        entries += [Entry(item, number, view, rule) for item, view in views]
    return entries


def parted(spec: TrainSpec, surveys: Sequence[Survey], divisibility: int) -> tuple[list[Entry], list[Entry]]:
    """(what is trained, what is held out). Whatever is held out is trained nowhere: not in another dataset, not as regularisation. What
    is held out is shown plain: every item once at each size, without anything random. `surveys` are those of `every_dataset`."""
    entries, out = make_entries(spec, surveys, divisibility), held_out(spec, surveys)
    held = [entry for entry in entries if not entry.rule.is_reg and is_held_out(entry.item, out)]
    if spec.validation and (dataset := spec.validation.dataset):
        rule, number = CaptionRule.of(spec, dataset), len(spec.datasets)  # its number follows the job's own
        views = _views(dataset, number, surveys[number].items, sizes(spec, divisibility), spec.train.seed)
        held = [Entry(item, number, view, rule) for item, view in views]
    kept = [entry for entry in entries if not is_held_out(entry.item, out)]
    return kept, list(dict.fromkeys(entry.plain for entry in held))


def held_out(spec: TrainSpec, surveys: Sequence[Survey]) -> frozenset[str]:
    """The digests and paths of the files that are held out. Raises ValueError as `chosen` does."""
    if spec.validation is None:
        return frozenset()
    if spec.validation.dataset:
        media = [item.media for item in surveys[len(spec.datasets)].items]
        return frozenset({each.file for each in media} | {each.digest for each in media if each.digest})
    taught = [found for dataset, found in zip(spec.datasets, surveys, strict=False) if not dataset.is_reg]
    return chosen((identity(item) for found in taught for item in found.items), spec.validation.fraction or 0)


def is_held_out(item: Item, out: Collection[str]) -> bool:
    """Whether it is one of `held_out`'s. A plan may know a file's digest in one dataset and not in another, hence both."""
    return item.media.digest in out or item.media.file in out


def identity(item: Item) -> str:
    """What makes equal files one: the digest of the content; the path while that is not known."""
    return item.media.digest or item.media.file


def chosen(identities: Iterable[str], fraction: float) -> frozenset[str]:
    """Those whose SHA-256, as a number on [0, 1), is below `fraction`. So each is chosen by itself, whatever else is there and whatever the
    seeds: data that grows takes nothing over that was trained. At least one is chosen, the lowest, and at least one is not, the
    highest. Raises ValueError if there are fewer than two."""
    places = {each: int.from_bytes(hashlib.sha256(f"held out/{each}".encode()).digest()) for each in identities}
    if len(places) < 2:
        raise ValueError(f"{len(places)} different items cannot be parted")
    ranked = sorted(places, key=lambda each: places[each])
    count = sum(place < fraction * 2**256 for place in places.values())
    return frozenset(ranked[: min(max(1, count), len(ranked) - 1)])


def dataset_hash(surveys: Sequence[Survey]) -> str:
    """A SHA-256 of all that the data is: the contents of the items, their masks and control pictures, and their captions. Names, places
    and order do not count."""
    lines = sorted(
        json.dumps([item.media.digest, item.caption, item.mask and item.mask.digest, [each.digest for each in item.controls]])
        for found in surveys
        for item in found.items
    )
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def cut(view: View) -> dict[str, int | bool]:
    """The view as JSON: part of a cache's key, and shown in plans."""
    return dict(vars(view))


def sizes(spec: TrainSpec, divisibility: int) -> Callable[[Item, int], tuple[int, int]]:
    """The size that an item is shown at for a resolution: its bucket, or that of a network that takes no other."""
    card = catalog.archs().get(spec.model.arch)
    fixed = card.fixed_size if card else None
    return lambda item, resolution: fixed or bucket_size(item.width, item.height, resolution, divisibility)


def _views(
    dataset: DatasetSpec, number: int, items: Sequence[Item], size_of: Callable[[Item, int], tuple[int, int]], seed: int
) -> Iterator[tuple[Item, View]]:
    flips = [
        (x, y) for y in ((False, True) if dataset.flip_y else (False,)) for x in ((False, True) if dataset.flip_x else (False,))
    ]
    for resolution in dataset.resolution:
        for item in items:
            if item.media.kind == "sound":
                yield from [(item, View())] * (dataset.num_repeats if resolution == dataset.resolution[0] else 0)
                continue
            size = size_of(item, resolution)
            for repeat in range(dataset.num_repeats):
                place = None
                if dataset.random_crop:
                    draw = random.Random(f"{seed}/{number}/{item.name}/{repeat}/crop")
                    place = draw.random(), draw.random()
                for flip_x, flip_y in flips:
                    yield item, _view(item, size, place, flip_x, flip_y)


def _view(
    item: Item, size: tuple[int, int], place: tuple[float, float] | None = None, flip_x: bool = False, flip_y: bool = False
) -> View:
    """`place` is how far along what hangs over the box lies, in [0, 1) on each axis; None: at the centre."""
    width, height = size
    if not (width and height):
        return View()
    scaled_width, scaled_height = covering(item.width, item.height, width, height)
    over_x, over_y = scaled_width - width, scaled_height - height
    left, top = (over_x // 2, over_y // 2) if place is None else (int(place[0] * (over_x + 1)), int(place[1] * (over_y + 1)))
    return View(width, height, scaled_width, scaled_height, left, top, flip_x, flip_y)


def covering(width: int, height: int, box_width: int, box_height: int) -> tuple[int, int]:
    """The size, of the picture's shape, that just covers the box."""
    scale = max(box_width / width, box_height / height)
    return max(box_width, math.ceil(width * scale)), max(box_height, math.ceil(height * scale))
