"""Which size a picture is trained at, and which pictures share a batch."""

import random
from collections import Counter

import pytest

from models.data.buckets import batches_per_epoch, bucket_size, epoch_batches

GOLDEN = [
    ((1920, 1080, 512, 16), (672, 384)),
    ((1920, 1080, 1024, 16), (1360, 768)),
    ((1080, 1920, 768, 32), (576, 1024)),
    ((300, 200, 512, 16), (288, 208)),
    ((4000, 3000, 1024, 32), (1152, 896)),
    ((1000, 1500, 1024, 8), (840, 1248)),
    ((10, 10, 512, 16), (16, 16)),
    ((512, 512, 512, 16), (512, 512)),
    ((32, 32, 512, 16), (32, 32)),
    ((10000, 10, 512, 16), (10000, 16)),
    ((1, 4096, 32, 16), (16, 64)),
    ((4096, 1, 32, 16), (64, 16)),
    ((1, 4096, 8, 16), (16, 16)),
]
SHAPES = [(64, 64)] * 4 + [(64, 32)] * 2 + [(32, 64)]


@pytest.mark.parametrize(("given", "bucket"), GOLDEN)
def test_bucket_goldens(given, bucket) -> None:
    assert bucket_size(*given) == bucket


def test_a_bucket_divides_fits_the_area_and_keeps_the_shape() -> None:
    draw = random.Random(3)
    for _ in range(2000):
        width, height, multiple = draw.randint(64, 5000), draw.randint(64, 5000), draw.choice([8, 16, 32])
        resolution = draw.choice([256, 512, 768, 1024])
        w, h = bucket_size(width, height, resolution, multiple)
        assert w % multiple == h % multiple == 0
        assert w * h <= resolution**2
        scale = min(1.0, resolution / (width * height) ** 0.5)
        assert abs(w - width * scale) < multiple or w == multiple
        assert abs(h - height * scale) < multiple or h == multiple


def test_no_bucket_has_more_pixels_than_its_resolution_allows() -> None:
    draw = random.Random(4)
    for _ in range(2000):
        width, height, multiple = draw.randint(1, 40), draw.randint(1, 20000), draw.choice([8, 16, 32])
        resolution = draw.choice([32, 64, 512])
        w, h = bucket_size(width, height, resolution, multiple)
        assert w * h <= resolution**2
        assert w % multiple == h % multiple == 0
        assert min(w, h) > 0


def test_a_turned_picture_gets_the_turned_bucket() -> None:
    for width, height in [(1920, 1080), (300, 200), (1000, 1500)]:
        assert bucket_size(width, height, 512, 16) == bucket_size(height, width, 512, 16)[::-1]


def test_two_epochs_use_each_picture_exactly_twice() -> None:
    epochs = [epoch_batches(SHAPES, 4, seed=1, epoch=number) for number in range(2)]
    used = Counter(index for epoch in epochs for batch in epoch for index in batch)
    assert used == dict.fromkeys(range(7), 2)
    assert [sorted(map(len, epoch)) for epoch in epochs] == [[1, 2, 4], [1, 2, 4]]
    assert batches_per_epoch(SHAPES, 4) == 3


def test_a_batch_holds_one_shape() -> None:
    for batch in epoch_batches(SHAPES * 3, 4, seed=5, epoch=0):
        assert len({(SHAPES * 3)[index] for index in batch}) == 1
        assert len(batch) <= 4


def test_the_order_depends_on_seed_and_epoch_alone() -> None:
    sizes = [(64, 64)] * 40
    assert epoch_batches(sizes, 2, 1, 0) == epoch_batches(sizes, 2, 1, 0)
    assert epoch_batches(sizes, 2, 1, 0) != epoch_batches(sizes, 2, 1, 1)
    assert epoch_batches(sizes, 2, 1, 0) != epoch_batches(sizes, 2, 2, 0)


def test_accumulated_batches_hold_what_one_large_batch_would() -> None:
    for step, large in enumerate(epoch_batches([(64, 64)] * 12, 4, seed=3, epoch=0)):
        small = epoch_batches([(64, 64)] * 12, 1, seed=3, epoch=0, accumulation=4)[4 * step : 4 * step + 4]
        assert [index for batch in small for index in batch] == large


def test_the_order_is_the_same_on_every_machine() -> None:
    assert epoch_batches(SHAPES, 4, seed=42, epoch=0) == [[2, 1, 0, 3], [6], [4, 5]]


@pytest.mark.parametrize(("batch_size", "num"), [(1, 7), (2, 4), (3, 4), (4, 3), (100, 3)])
def test_the_plan_counts_the_batches_that_the_loop_makes(batch_size, num) -> None:
    assert batches_per_epoch(SHAPES, batch_size) == len(epoch_batches(SHAPES, batch_size, 0, 0)) == num


def test_no_pictures_make_no_batches() -> None:
    assert epoch_batches([], 4, 0, 0) == []
    assert batches_per_epoch([], 4) == 0
