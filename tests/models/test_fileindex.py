"""Files are looked at again when they changed, and only then."""

import errno
import os
import time
from pathlib import Path
from typing import Any

import av
import pytest
from PIL import Image

from models.data import look
from models.data.datasets import survey
from models.data.fileindex import COARSE_TICK_NS, FileIndex, stamp_of
from models.spec import DatasetSpec


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "data"
    made.mkdir()
    for number in range(4):
        Image.effect_noise((20, 20), 50 + number).save(made / f"{number}.png")
        (made / f"{number}.txt").write_text("a caption")
    return made


@pytest.fixture
def looked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files that were read."""
    names: list[str] = []
    real = look.look_at

    def counted(path: Path, *args, **kwargs):
        names.append(path.name)
        return real(path, *args, **kwargs)

    monkeypatch.setattr(look, "look_at", counted)
    return names


@pytest.fixture
def aged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files count as older than any clock's tick."""
    monkeypatch.setattr(
        "models.data.fileindex.time.time_ns", lambda: time.clock_gettime_ns(time.CLOCK_REALTIME) + 2 * COARSE_TICK_NS
    )


def start(folder: Path) -> dict[str, str]:
    """A job's look: file names with their digests."""
    index = FileIndex(folder.parent / "cache" / "index.sqlite")
    found = survey(DatasetSpec(folder_path="x", on_bad_file="skip"), folder, index=index)
    index.close()
    return {item.name: item.media.digest for item in found.items}


def test_a_second_look_reads_only_what_changed(folder, looked, aged) -> None:
    first = start(folder)
    assert sorted(looked) == [f"{number}.png" for number in range(4)]
    looked.clear()
    assert start(folder) == first
    assert looked == []
    Image.new("RGB", (20, 20)).save(folder / "2.png")
    (folder / "3.png").rename(folder / "moved.png")
    (folder / "3.txt").rename(folder / "moved.txt")
    second = start(folder)
    assert sorted(looked) == ["2.png", "moved.png"]
    assert second["2.png"] != first["2.png"]
    assert second["moved.png"] == first["3.png"]


@pytest.mark.parametrize("in_place", [True, False])
def test_a_picture_replaced_with_the_same_size_and_time_is_read_again(folder, looked, aged, in_place) -> None:
    first = start(folder)
    looked.clear()
    path = folder / "1.png"
    before = path.stat()
    data = bytearray(path.read_bytes())
    data[-1] ^= 1  # in the last chunk's checksum, which Pillow passes over
    if in_place:
        path.write_bytes(data)
    else:
        (folder / "new").write_bytes(data)
        (folder / "new").replace(path)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert (path.stat().st_size, path.stat().st_mtime_ns) == (before.st_size, before.st_mtime_ns)
    assert start(folder)["1.png"] != first["1.png"]
    assert looked == ["1.png"]


@pytest.mark.parametrize("name", ["a.mp4", "a.wav"])
def test_a_clip_or_sound_that_could_not_be_got_at_may_be_later(tmp_path, monkeypatch, name) -> None:
    def failing(*_, **__):
        raise av.FFmpegError(errno.EIO, "input/output error")

    (tmp_path / name).write_bytes(b"nothing")
    kind = look.kind_of(name)
    assert look.look_at(tmp_path / name, kind, decode=True)["problem"].startswith("not a readable ")
    monkeypatch.setattr(av, "open", failing)
    assert look.look_at(tmp_path / name, kind, decode=True) == {"problem": "cannot be read: input/output error"}


def test_what_kept_a_file_from_being_read_is_not_remembered(folder, aged, monkeypatch) -> None:
    (folder / "0.png").write_bytes(b"no picture")
    real = Path.open

    def failing(path: Path, *args: Any, **options: Any) -> Any:
        if path.name == "2.png":
            raise OSError(errno.EIO, "input/output error")
        return real(path, *args, **options)

    with monkeypatch.context() as broken:
        broken.setattr(Path, "open", failing)
        assert sorted(start(folder)) == ["1.png", "3.png"]
    assert sorted(start(folder)) == ["1.png", "2.png", "3.png"]
    index = FileIndex(folder.parent / "cache" / "index.sqlite")
    assert "problem" in index.known(folder)[str(folder / "0.png")][1]  # what the content says is
    index.remember(
        [(str(folder / "1.png"), stamp_of(folder / "1.png"), {"problem": "cannot be read: input/output error"})]
    )  # by an older one
    index.close()
    assert "1.png" in start(folder)


def test_a_file_as_young_as_its_clock_s_tick_is_not_trusted(folder, looked, monkeypatch) -> None:
    monkeypatch.setattr("models.data.fileindex.time.time_ns", lambda: stamp_of(folder / "0.png")[3])
    start(folder)
    looked.clear()
    start(folder)
    assert "0.png" in looked


def test_bad_files_are_remembered_too(folder, looked, aged) -> None:
    (folder / "0.png").write_bytes(b"text")
    assert set(start(folder)) == {"1.png", "2.png", "3.png"}
    looked.clear()
    assert set(start(folder)) == {"1.png", "2.png", "3.png"}
    assert looked == []


@pytest.mark.parametrize("damage", [b"not a database", b""])
def test_a_damaged_index_is_made_again(folder, aged, looked, damage) -> None:
    first = start(folder)
    for path in (folder.parent / "cache").iterdir():
        path.unlink()
    (folder.parent / "cache" / "index.sqlite").write_bytes(damage * 100)
    assert start(folder) == first
    looked.clear()
    assert start(folder) == first
    assert looked == []


def test_names_that_begin_alike_are_kept_apart(tmp_path, aged) -> None:
    index = FileIndex(tmp_path / "index.sqlite")
    rows = [(str(tmp_path / name), (1, 2, 3, 4), {"width": 1}) for name in ("a/1", "a/b/2", "ab/3", "a0")]
    index.remember(rows)
    assert sorted(index.known(tmp_path / "a")) == [str(tmp_path / "a/1"), str(tmp_path / "a/b/2")]
