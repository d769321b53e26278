"""How much is read at once, and what is said of files that no decoder can read."""

import os
import struct
import subprocess
import sys
import threading
import warnings
import zlib

import numpy as np
import pytest
from PIL import Image, PngImagePlugin

from models.data import limits, look, pictures
from models.data.datasets import survey
from models.data.limits import Budget
from models.data.look import look_at
from models.spec import DatasetSpec
from tests.picture_files import png_chunk, write_png

pytestmark = pytest.mark.filterwarnings("ignore:::PIL")  # pytest has its own filters
BROKEN_EXIF = b"Exif\0\0II*\0\x08\0\0\0\xff\xff" + b"\x12\x01\x03\0\xff\xff\xff\xff" * 3


def why(path, decode: bool = True) -> str:
    return look_at(path, look.kind_of(path.name), decode=decode)["problem"]


@pytest.mark.parametrize("decode", [True, False])
def test_a_picture_that_is_too_large_is_named_with_its_size(tmp_path, decode) -> None:
    path = write_png(tmp_path / "a.png", np.zeros((1, 1, 3), np.uint8))
    data = bytearray(path.read_bytes())
    data[16:24] = struct.pack(">II", 20000, 20000)
    data[29:33] = struct.pack(">I", zlib.crc32(data[12:29]))
    path.write_bytes(data)
    assert why(path, decode) == "20000 x 20000 is too large, at most 178 megapixels are read"


def test_a_file_that_is_too_large_is_named_before_it_is_opened(tmp_path) -> None:
    path = write_png(tmp_path / "a.png", np.zeros((1, 1, 3), np.uint8))
    os.truncate(path, 3 << 30)
    assert why(path, decode=False) == "a file of 3 GB is too large, at most 1 GB are read"


def test_text_in_a_picture_beyond_pillow_s_limit_is_named(tmp_path) -> None:
    packed = zlib.compress(b"x" * (2 * PngImagePlugin.MAX_TEXT_CHUNK))
    write_png(tmp_path / "a.png", np.zeros((1, 1, 3), np.uint8), extra=png_chunk(b"zTXt", b"workflow\0\0" + packed))
    assert why(tmp_path / "a.png") == "more than 1 MB of packed text inside; save it without that"


@pytest.mark.parametrize(
    ("begins", "reason"),
    [
        (
            b"version https://git-lfs.github.com/spec/v1\noid sha256:0",
            "a Git LFS pointer and not the picture itself; run git lfs pull",
        ),
        (b"\n<!DOCTYPE html><html>", "a web page and not a picture"),
        (b"\0\0\0\x18ftypheic\0\0\0\0", "HEIC, which is not read; save it as PNG or JPEG"),
        (b"I am text", "not a picture in any form that is read"),
        (b"", "empty file"),
    ],
)
def test_what_is_no_picture_is_named_as_what_it_is(tmp_path, begins, reason) -> None:
    (tmp_path / "a.png").write_bytes(begins)
    assert [why(tmp_path / "a.png", decode) for decode in (True, False)] == [reason, reason]


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (RuntimeError("Failed to decode"), "its content is broken (Failed to decode)"),
        (KeyError("x"), "its content is broken"),
        (MemoryError(), "there is not enough memory to decode it"),
        (SyntaxError("broken PNG file"), "its content is broken (broken PNG file)"),
        (OSError("image file is truncated (3 bytes not processed)"), "cut short"),
    ],
)
def test_whatever_pillow_raises_is_a_fault_of_the_file(tmp_path, monkeypatch, error, reason) -> None:
    def failing(*_) -> None:
        raise error

    Image.new("RGB", (4, 4)).save(tmp_path / "a.png")
    monkeypatch.setattr(pictures, "loaded", failing)
    assert why(tmp_path / "a.png") == reason


@pytest.mark.parametrize("extension", ["avif", "webp", "png", "tif", "gif", "jpg", "bmp"])
def test_files_with_bytes_changed_are_read_or_named(tmp_path, extension) -> None:
    draw = np.random.default_rng(0)
    whole = tmp_path / f"whole.{extension}"
    Image.effect_noise((24, 24), 90).convert("RGB").save(whole)
    for number in range(40):
        data = bytearray(whole.read_bytes())
        for at in draw.integers(0, min(len(data), 400), 3):
            data[at] = draw.integers(0, 256)
        path = tmp_path / f"{number}.{extension}"
        path.write_bytes(data)
        facts = look_at(path, "picture", decode=True)
        assert "problem" in facts or facts["width"] > 0


def test_a_broken_avif_is_named(tmp_path) -> None:
    Image.effect_noise((64, 64), 90).convert("RGB").save(tmp_path / "a.avif")
    data = bytearray((tmp_path / "a.avif").read_bytes())
    begin = data.index(b"mdat") + 4
    data[begin : begin + 200] = b"\0" * 200
    (tmp_path / "a.avif").write_bytes(data)
    assert why(tmp_path / "a.avif").startswith("its content is broken")


def test_threads_that_decode_share_a_budget_of_pixels(tmp_path, monkeypatch) -> None:
    amounts = []

    class Recording(Budget):
        def of(self, amount):
            amounts.append(amount)
            return super().of(amount)

    monkeypatch.setattr(pictures, "PIXELS", Recording(limits.MOST_PIXELS))
    for number in range(5):
        Image.new("RGB", (10, 20)).save(tmp_path / f"{number}.png")
    assert len(survey(DatasetSpec(folder_path="x", default_caption=""), tmp_path).items) == 5
    assert amounts == [200] * 5


def test_a_budget_is_shared_and_a_large_one_is_not_passed_by_small_ones() -> None:
    budget, order = Budget(10), []

    def enter(amount: int) -> None:
        with budget.of(amount):
            order.append(amount)

    with budget.of(6):
        enter(4)  # fits beside it
        large = threading.Thread(target=enter, args=(50,))  # more than there is: it waits until it is alone
        large.start()
        while not budget._in_order.locked():
            threading.Event().wait(0.001)
        small = threading.Thread(target=enter, args=(1,))
        small.start()
        assert order == [4]
    for thread in (large, small):
        thread.join()
    assert order == [4, 50, 1]


def test_files_are_decoded_by_as_many_threads_as_there_are_cores(monkeypatch) -> None:
    for cores, threads in ((1, 2), (4, 4), (64, 8)):
        monkeypatch.setattr(limits.os, "sched_getaffinity", lambda _, cores=cores: set(range(cores)), raising=False)
        assert limits.decoding_threads() == threads


def test_pillow_s_own_warnings_reach_nobody(tmp_path) -> None:
    """In a process of its own: pytest has its own filters."""
    Image.new("RGB", (4, 8)).save(tmp_path / "a.jpg", exif=BROKEN_EXIF)
    code = "import sys, pathlib; from models.data.pictures import open_picture as o; print(o(pathlib.Path(sys.argv[1])).size)"
    done = subprocess.run([sys.executable, "-c", code, tmp_path / "a.jpg"], capture_output=True, text=True, check=True)
    assert (done.stdout.strip(), done.stderr) == ("(4, 8)", "")
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        with Image.open(tmp_path / "a.jpg") as image:
            image.getexif()
    assert said  # or this test shows nothing


@pytest.mark.parametrize("exif", [b"Exif\0\0no such thing", BROKEN_EXIF, b"Exif\0\0MM\0*"], ids=["none", "cut", "short"])
def test_exif_that_cannot_be_read_is_noted(tmp_path, exif) -> None:
    Image.new("RGB", (4, 8)).save(tmp_path / "a.jpg", exif=exif)
    for decode in (True, False):
        facts = look_at(tmp_path / "a.jpg", "picture", decode=decode)
        assert (facts["width"], facts["height"], facts["notes"]) == (4, 8, [pictures.BROKEN_EXIF])
