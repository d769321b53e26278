"""What a folder of captioned pictures holds, and what is wrong with it."""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from models.catalog import parse_job
from models.data.datasets import Survey, survey
from models.data.epochs import epoch_summary
from models.data.problems import dataset_problems
from models.spec import DatasetSpec


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "pictures"
    made.mkdir()
    return made


@pytest.fixture
def put(folder: Path) -> Callable[..., Path]:
    """`put("a.png", caption="x")`: a small picture of that name, with its caption."""

    def make(name: str, caption: str | bytes | None = "a caption", size: tuple[int, int] = (20, 10)) -> Path:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", size, (10, 200, 30)).save(path)
        if caption is not None:
            path.with_suffix(".txt").write_bytes(caption if isinstance(caption, bytes) else caption.encode())
        return path

    return make


def look(folder: Path, **changes: Any) -> tuple[Survey, list[str], list[str]]:
    """(the survey, the messages that refuse the job, the warnings)."""
    spec = DatasetSpec(folder_path=str(folder), **changes)
    found = survey(spec, folder)
    errors, warnings = dataset_problems(found, spec, "/datasets/0")
    return found, [fault.message for fault in errors], [fault.message for fault in warnings]


def names(found: Survey) -> list[str]:
    return [item.path.relative_to(found.folder).as_posix() for item in found.items]


def test_pictures_are_found_by_extension_in_any_case_and_depth_in_order(folder, put) -> None:
    for name in ("c.JPeG", "a.png", "B.JPG", "sub/deep/d.webp", "e.bmp", "f.tiff", "g.TIF", "h.gif"):
        put(name)
    (folder / "notes.md").write_text("no picture")
    found, errors, warnings = look(folder)
    assert names(found) == ["B.JPG", "a.png", "c.JPeG", "e.bmp", "f.tiff", "g.TIF", "h.gif", "sub/deep/d.webp"]
    assert (errors, warnings) == ([], [])
    assert {(item.width, item.height, item.caption) for item in found.items} == {(20, 10, "a caption")}


def test_what_systems_leave_behind_is_passed_over(folder, put) -> None:
    put("a.png")
    put(".ipynb_checkpoints/e.png")
    put(".hidden.png", caption=None)
    for name in ("._d.jpg", ".DS_Store", "Thumbs.db", "desktop.ini"):
        (folder / name).write_bytes(b"\0\5\x16\7")
    (folder / "folder.png").mkdir()
    found, errors, _ = look(folder)
    assert names(found) == ["a.png"]
    assert errors == []


def spoil(folder: Path) -> None:
    """Three files that are no pictures, each in its way; half.jpg has a whole header."""
    (folder / "empty.png").write_bytes(b"")
    (folder / "text.png").write_text("I am text")
    Image.effect_noise((200, 200), 80).save(folder / "whole.jpg")
    data = (folder / "whole.jpg").read_bytes()
    (folder / "whole.jpg").unlink()
    (folder / "half.jpg").write_bytes(data[: len(data) // 2])
    assert Image.open(folder / "half.jpg").size == (200, 200)
    for stem in ("empty", "text", "half"):
        (folder / f"{stem}.txt").write_text("a caption")


def test_unreadable_pictures_refuse_the_job_by_name(folder, put) -> None:
    put("good.png")
    spoil(folder)
    found, errors, _ = look(folder)
    assert found.refused == [
        ("empty.png", "empty file"),
        ("half.jpg", "cut short"),
        ("text.png", "not a picture in any form that is read"),
    ]
    text = "text.png (not a picture in any form that is read)"
    assert errors == [f"unreadable pictures: empty.png (empty file), half.jpg (cut short), {text}"]


def test_unreadable_pictures_are_skipped_on_demand_and_named_still(folder, put) -> None:
    put("good.png")
    spoil(folder)
    found, errors, [warning] = look(folder, on_bad_file="skip")
    assert names(found) == ["good.png"]
    assert errors == []
    assert warning.startswith("skipped, unreadable: empty.png (empty file), half.jpg (cut short), text.png")


def test_skipping_every_picture_leaves_nothing_to_train_on(folder) -> None:
    spoil(folder)
    _, errors, _ = look(folder, on_bad_file="skip")
    assert [message.split(";")[0] for message in errors] == [f"no pictures in {folder}"]


def test_many_bad_files_are_counted_not_listed(folder) -> None:
    for number in range(8):
        (folder / f"{number}.png").write_bytes(b"")
    _, [message], _ = look(folder)
    assert message.endswith("4.png (empty file) and 3 more")


def test_headers_alone_are_read_beyond_the_limit(folder, put) -> None:
    spoil(folder)
    spec = DatasetSpec(folder_path=str(folder))
    found = survey(spec, folder, decode_at_most=1)
    assert found.undecoded == 2
    assert [name for name, _ in found.refused] == ["empty.png", "text.png"]


def test_an_empty_folder_is_refused(folder) -> None:
    found, [message], _ = look(folder)
    assert found.items == []
    assert message.startswith(f"no pictures in {folder}; wanted: .avif, .bmp, .gif")


@pytest.mark.parametrize(
    ("written", "read"),
    [
        (b"a red apple", "a red apple"),
        (b"  a red apple \n", "a red apple"),
        (b"\xef\xbb\xbfa red apple", "a red apple"),
        (b"a red\r\napple\r\n", "a red apple"),
        ("a red apple".encode("utf-16"), "a red apple"),
        (b"\xfe\xff" + "äpfel 🍎".encode("utf-16-be"), "äpfel 🍎"),
        ("a 🍎 and an äpfel".encode(), "a 🍎 and an äpfel"),
        (b'say "hi", it\'s', 'say "hi", it\'s'),
        (b"--steps 5 --help", "--steps 5 --help"),
        (b"line one\n\n  line two  \nline three", "line one line two line three"),
        ("\U0001f468\u200d\U0001f469 \u200b".encode(), "\U0001f468\u200d\U0001f469 \u200b"),
        ("\U0001f468\u200d\U0001f469\tb\x0cc\x85d".encode(), "\U0001f468\u200d\U0001f469\tb c d"),
        (b"{[<prompt>]} \\n %s $HOME", "{[<prompt>]} \\n %s $HOME"),
    ],
)
def test_captions_are_read_as_they_were_meant(folder, put, written, read) -> None:
    put("a.png", caption=written)
    found, errors, _ = look(folder)
    assert [item.caption for item in found.items] == [read]
    assert errors == []


@pytest.mark.parametrize("written", ["größe".encode("latin-1"), b"\xff\xfe\x00", b"\x80"])
def test_a_caption_in_another_encoding_is_named_and_never_guessed(folder, put, written) -> None:
    put("fine.png")
    put("odd.png", caption=written)
    found, errors, _ = look(folder, default_caption="anything")
    assert names(found) == ["fine.png"]
    assert errors == ["captions are not UTF-8 or UTF-16 text: odd.png"]


@pytest.mark.parametrize(
    ("written", "reason"),
    [
        ("a".encode("utf-32"), "UTF-32, not UTF-8 or UTF-16 text"),
        (b"\0\0\xfe\xff" + "a".encode("utf-32-be"), "UTF-32, not UTF-8 or UTF-16 text"),
        (b"a\0b", "holds U+0000, a control character"),
        ("a\x1b".encode("utf-16"), "holds U+001B, a control character"),
        (b"a\xc2\x92s", "holds U+0092, a control character"),
    ],
)
def test_a_caption_with_control_characters_is_named_with_the_first(folder, put, written, reason) -> None:
    put("fine.png")
    put("odd.png", caption=written)
    found, errors, _ = look(folder, default_caption="anything")
    assert names(found) == ["fine.png"]
    assert errors == [f"caption files that cannot be used: odd.txt ({reason})"]


@pytest.mark.parametrize("written", [None, b"", b"   \n\t\r\n ", b"\xef\xbb\xbf", "\u200b\xa0\ufe0f\u2060".encode()])
def test_a_missing_or_blank_caption_refuses_the_job(folder, put, written) -> None:
    put("a.png", caption=written)
    found, errors, _ = look(folder)
    assert found.uncaptioned == ["a.png"]
    assert errors == ["1 of 1 pictures have no caption in a .txt file or in metadata.jsonl: a.png"]


@pytest.mark.parametrize(("given", "default"), [("", ""), ("a\r\n photo\n", "a photo"), ("\u200b", "")])
def test_a_default_caption_stands_in(folder, put, given, default) -> None:
    put("a.png", caption=None)
    put("b.png", caption=b"  ")
    put("c.png", caption="its own")
    found, errors, _ = look(folder, default_caption=given)
    assert [item.caption for item in found.items] == [default, default, "its own"]
    assert errors == []


@pytest.mark.parametrize("extension", ["caption", ".caption"])
def test_captions_may_have_another_extension(folder, put, extension) -> None:
    put("a.png", caption=None)
    (folder / "a.caption").write_text("from elsewhere")
    found, errors, _ = look(folder, caption_ext=extension)
    assert [item.caption for item in found.items] == ["from elsewhere"]
    assert errors == []


def test_whatever_is_not_used_is_named(folder, put, tmp_path) -> None:
    for name in ("a.png", "b.png", "c.png"):
        put(name, caption=None)
    put("a.png")
    (folder / "b.text").write_text("not the extension that is asked for")
    (folder / "c.txt").write_text(" \n")
    (folder / "orphan.txt").write_text("nobody's")
    (folder / "d.heic").write_bytes(b"of a phone")
    (folder / "gone.png").symlink_to(tmp_path / "nowhere")
    (tmp_path / "elsewhere").mkdir()
    (folder / "linked").symlink_to(tmp_path / "elsewhere")
    for system in ("Thumbs.db", "desktop.ini", "README.md"):
        (folder / system).write_bytes(b"")
    found, errors, warnings = look(folder, default_caption="a photo")
    assert [(item.name, item.caption) for item in found.items] == [
        ("a.png", "a caption"),
        ("b.png", "a photo"),
        ("c.png", "a photo"),
    ]
    assert [error.partition(":")[0] for error in errors] == ["unreadable pictures"] and "gone.png" in errors[0]
    assert warnings == [
        "2 of 3 pictures have no caption in a .txt file or in metadata.jsonl, so default_caption is taken: b.png, c.png; "
        "1 of them have a .text file of their name: set caption_ext to text",
        "captions of nothing that is there: orphan.txt",
        "not read, being no kind of file that is known here: b.text, d.heic",
        "not read: linked (a link that leads out of the folders that jobs may read)",
    ]


def test_further_frames_and_pages_are_counted_and_named(folder, put) -> None:
    for name in ("a.gif", "b.webp", "c.png", "d.tif", "e.avif"):
        put(name)
        first, *others = (Image.new("RGB", (8, 8), colour) for colour in ("red", "blue", "green"))
        first.save(folder / name, save_all=True, append_images=others)
    put("still.gif")
    found, errors, warnings = look(folder)
    assert (len(found.items), errors) == (6, [])
    sentence = "more than one frame or page, of which only the first is used"
    assert warnings == [f"5 files with {sentence}: a.gif, b.webp, c.png, d.tif, e.avif"]


def test_odd_names_keep_their_captions(folder, put) -> None:
    for name in ("aaa.bbb.jpg", "aaa.ccc.jpg", "mit leer zeichen.png", "größe 🍎.png", "a'b\"c.png", "--help.png", "100%.png"):
        put(name, caption=f"of {name}")
    found, errors, _ = look(folder)
    assert {item.path.name: item.caption for item in found.items} == {name: f"of {name}" for name in names(found)}
    assert len(found.items) == 7
    assert errors == []


def test_looking_changes_nothing_in_the_folder(folder, put) -> None:
    put("a.png")
    put("sub/b.jpg", caption=None)
    spoil(folder)

    def digest() -> str:
        parts = [
            (str(path), path.stat().st_mtime_ns, path.read_bytes() if path.is_file() else b"")
            for path in sorted(folder.rglob("*"))
        ]
        return hashlib.sha256(repr(parts).encode()).hexdigest()

    before = digest()
    look(folder)
    assert digest() == before


def test_the_plan_shows_buckets_batches_and_epochs(folder, put, tiny_job) -> None:
    for number in range(4):
        put(f"square{number}.png", size=(40, 40))
    for number in range(2):
        put(f"wide{number}.png", size=(64, 20))
    put("tall.png", size=(20, 64))
    job = parse_job(
        tiny_job(
            datasets=[{"folder_path": "x", "num_repeats": 2}],
            **{"train.batch_size": 3, "train.steps": 12, "train.gradient_accumulation": 2},
        )
    )
    summary = epoch_summary(job, [survey(job.datasets[0], folder)], 16)  # type: ignore[attr-defined]
    assert summary["datasets"][0]["images"] == 7
    buckets = {(b["width"], b["height"]): b["images"] for b in summary["datasets"][0]["buckets"]}
    assert buckets == {(32, 32): 8, (64, 16): 4, (16, 64): 2}
    assert (summary["steps_per_epoch"], summary["epochs"]) == (3.0, 4.0)
