"""Aspect buckets: which size each picture is trained at, and which pictures share a batch. Torch-free: a plan shows the same.

One rule: a bucket is as near as can be to the picture's shape and to `resolution`² pixels (or the picture's own, where it has fewer),
never has more than `resolution`² (but at least one multiple a side), and its sides are multiples of the arch's divisibility. An epoch
shows every picture once; a bucket's last batch may be short. A batch holds items of one bucket of one dataset; clips of one number of
frames, sounds of one length.
"""

import math
import random
from collections import Counter, defaultdict
from collections.abc import Sequence
from functools import lru_cache
from itertools import product

Bucket = tuple[int, ...]  # whatever must agree within a batch: (width, height), say


@lru_cache(maxsize=4096)
def bucket_size(width: int, height: int, resolution: int, divisibility: int) -> tuple[int, int]:
    """(width, height) in pixels of the bucket for a picture of that size.

    Of the four ways to round both sides up or down to a multiple, the one whose area is closest to the target
    min(width * height, resolution²); sides of zero or beyond the area limit do not count. Ties: rounding down first.
    """
    target = min(width * height, resolution**2)
    scale = math.sqrt(target / (width * height))
    sides = []
    for side in (width, height):
        exact = side * scale / divisibility
        sides.append([math.floor(exact) * divisibility, math.ceil(exact) * divisibility])
    fits = [(w, h) for w, h in product(*sides) if w and h and w * h <= resolution**2]
    if not fits:  # a strip that is narrower than one multiple: as long as the area allows
        longest = max(resolution**2 // divisibility // divisibility, 1) * divisibility
        return min(max(sides[0][0], divisibility), longest), min(max(sides[1][0], divisibility), longest)
    return min(fits, key=lambda size: abs(size[0] * size[1] - target))


def epoch_batches(buckets: Sequence[Bucket], batch_size: int, seed: int, epoch: int, accumulation: int = 1) -> list[list[int]]:
    """The batches of one epoch as lists of indices into `buckets`, each batch of one bucket, in a shuffled order that depends
    only on the arguments. Every index appears exactly once. `accumulation` batches follow each other as one batch of that many times
    the size would have held them, as far as a bucket reaches."""
    shuffle = random.Random(f"{seed}/{epoch}").shuffle
    members: dict[Bucket, list[int]] = defaultdict(list)
    for index, size in enumerate(buckets):
        members[size].append(index)
    together = []
    for size in sorted(members):
        shuffle(members[size])
        together += _pieces(members[size], batch_size * accumulation)
    shuffle(together)
    return [batch for each in together for batch in _pieces(each, batch_size)]


def _pieces(whole: list[int], size: int) -> list[list[int]]:
    return [whole[start : start + size] for start in range(0, len(whole), size)]


def batches_per_epoch(buckets: Sequence[Bucket], batch_size: int) -> int:
    """How many batches `epoch_batches` makes of any epoch."""
    return sum(-(-count // batch_size) for count in Counter(buckets).values())
