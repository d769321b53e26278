"""Names of files in datasets: however they are spelled, wherever they lead, and when they are no text."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from models.data.datasets import Folders, Survey, survey
from models.data.fileindex import FileIndex
from models.data.names import Names, beside, printable
from models.data.problems import dataset_problems
from models.spec import DatasetSpec

NFC, NFD = "caf\u00e9", "cafe\u0301"
LEADS_OUT = "a link that leads out of the folders that jobs may read"


@pytest.fixture
def put(tmp_path: Path) -> Callable[..., None]:
    """`put("data/a.png", "data/a.txt")`: small pictures, and captions that say their own name."""

    def make(*names: str) -> None:
        for name in names:
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            if name.lower().endswith("png"):
                Image.new("RGB", (20, 10)).save(tmp_path / name, format="PNG")
            else:
                (tmp_path / name).write_text(f"of {name}")

    return make


def look(tmp_path: Path, **changes: Any) -> tuple[Survey, list[str], list[str]]:
    spec = DatasetSpec(folder_path="x", **changes)
    masks = tmp_path / "masks" if spec.mask_path else None
    controls = (tmp_path / "controls",) if spec.control_path else ()
    found = survey(spec, Folders(tmp_path / "data", masks, controls, (tmp_path / "allowed",)))
    errors, warnings = dataset_problems(found, spec, "/datasets/0")
    return found, [fault.message for fault in errors], [fault.message for fault in warnings]


def captions(found: Survey) -> dict[str, str]:
    return {item.name: item.caption for item in found.items}


@pytest.mark.parametrize(
    ("names", "given", "found"),
    [
        ([NFC], NFD, [NFC]),
        ([NFC, NFD], NFD, [NFD]),
        (["B.PNG"], "b.png", ["B.PNG"]),
        (["B.png", "b.PNG"], "b.png", ["B.png", "b.PNG"]),
        ([NFC, NFC.upper()], NFD, [NFC]),
        (["a"], "b", []),
    ],
)
def test_a_name_is_found_in_its_own_spelling_first(names, given, found) -> None:
    assert Names(names).find(given) == found


def test_files_belong_to_the_medium_of_their_name() -> None:
    made = beside(
        ["a.txt", "b.TXT", "b.txt", "C.txt", "d.txt", f"{NFD}.txt"], ["a", "A", "b", "c", "C.x", "D", "d ", NFC], ".txt"
    )
    assert made.of == {"a": "a.txt", "b": "b.txt", "c": "C.txt", "D": "d.txt", NFC: f"{NFD}.txt"}
    assert made.spare == ["b.TXT (b.txt is read)"]
    unsure = beside(["x.txt", "e.txt"], ["X", "\uff58", "E", "e "], ".txt")
    assert unsure.of == {"X": "x.txt", "E": "e.txt"}
    unsure = beside(["ab.txt"], ["AB", "Ab"], ".txt")
    assert (unsure.of, unsure.unclear) == ({}, ["ab.txt (it fits AB and Ab)"])


def test_captions_masks_controls_and_metadata_are_found_in_other_spellings(tmp_path, put) -> None:
    put(f"data/{NFC}.png", f"data/{NFD}.txt", "data/B.PNG", "data/B.TXT", f"data/x{NFD}.png")
    put(*(f"{folder}/{name}.png" for folder in ("masks", "controls") for name in (NFD, "b", f"x{NFC}")))
    (tmp_path / "data" / "metadata.jsonl").write_text(json.dumps({"file_name": f"x{NFC}.png", "text": "of the list"}))
    found, errors, warnings = look(tmp_path, mask_path="m", control_path="c")
    assert (errors, warnings) == ([], [])
    assert captions(found) == {
        "B.PNG": "of data/B.TXT", f"{NFC}.png": f"of data/{NFD}.txt", f"x{NFD}.png": "of the list"
    }  # fmt: skip
    assert all(item.mask and len(item.controls) == 1 for item in found.items)


@pytest.mark.parametrize(
    "given", ["./a.png", ".\\a.png", "data/a.png", "data\\a.png", "A.PNG", "{folder}/a.png", "../data/a.png"]
)
def test_metadata_names_are_matched_as_people_write_them(tmp_path, put, given) -> None:
    put("data/a.png")
    line = {"file_name": given.format(folder=tmp_path / "data"), "text": "x"}
    (tmp_path / "data" / "metadata.jsonl").write_text(json.dumps(line))
    found, errors, warnings = look(tmp_path)
    assert (captions(found), errors, warnings) == ({"a.png": "x"}, [], [])


def test_an_exact_name_wins_and_an_ambiguous_one_is_named(tmp_path, put) -> None:
    put("data/a.png", "data/data/a.png", "data/B.png", "data/b.PNG")
    lines = [{"file_name": name, "text": name} for name in ("data/a.png", "./a.png", "b.png", "data/../a.png")]
    (tmp_path / "data" / "metadata.jsonl").write_text("\n".join(map(json.dumps, lines)))
    found, [error, *_], _ = look(tmp_path)
    assert captions(found) == {"a.png": "./a.png", "data/a.png": "data/a.png"}
    assert error == "metadata.jsonl is broken: line 3 (b.png may be B.png or b.PNG), line 4 (a.png is named a second time)"


def lay_metadata(folder: Path, name: str) -> None:
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_text('{"file_name": "a.png", "text": "x"}')


@pytest.mark.parametrize("default", [None, ""])
@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("sub/metadata.jsonl", "must lie in the dataset's own folder"),
        ("Metadata.jsonl", "its name must be metadata.jsonl"),
        ("metadata.json", "stand in metadata.jsonl, on each line an object with file_name and a caption"),
        ("metadata.jsonl.txt", "stand in metadata.jsonl"),
        ("captions.csv", "stand in metadata.jsonl"),
    ],
)
def test_a_metadata_file_that_is_not_read_gets_a_sentence(tmp_path, put, name, sentence, default) -> None:
    put("data/a.png")
    lay_metadata(tmp_path / "data", name)
    _, errors, warnings = look(tmp_path, default_caption=default)
    [said] = warnings if default == "" else errors
    assert "1 of 1 pictures have no caption in a .txt file or in metadata.jsonl" in said
    assert f"{name} is not read: " in said
    assert sentence in said


@pytest.mark.parametrize("default", [None, "a photo"])
def test_captions_that_are_not_found_are_counted_with_what_would_fit(tmp_path, put, default) -> None:
    put(*(f"data/{number}.png" for number in range(8)), *(f"data/{number}.caption" for number in range(3)), "data/7.png.txt")
    lines = [{"file_name": name, "text": "x"} for name in ("5.jpg", "elsewhere/6.png", "nine.png")]
    (tmp_path / "data" / "metadata.jsonl").write_text("\n".join(map(json.dumps, lines)))
    _, errors, warnings = look(tmp_path, default_caption=default)
    said = next(text for text in warnings if "default_caption" in text) if default else errors[0]
    for part in (
        "8 of 8 pictures have no caption in a .txt file or in metadata.jsonl",
        "0.png, 1.png, 2.png, 3.png, 4.png and 3 more",
        "3 of them have a .caption file of their name: set caption_ext to caption",
        "1 caption files keep the picture's extension in their name: 7.png.txt must be 7.txt",
        "metadata.jsonl: 0 of 3 lines match a file here",
        "5.jpg (5.png would fit), elsewhere/6.png (6.png would fit), nine.png",
    ):
        assert part in said


def test_names_that_are_no_text_are_named_and_break_nothing(tmp_path, put) -> None:
    put("data/a.png", "data/a.txt")
    (tmp_path / "data" / os.fsdecode(b"sub\xfe")).mkdir()
    for name in (b"bad\xff.png", b"lone\xff.txt", b"sub\xfe/c.png"):
        (tmp_path / "data" / os.fsdecode(name)).write_bytes((tmp_path / "data" / "a.png").read_bytes())
    found, [error], [warning] = look(tmp_path)
    assert captions(found) == {"a.png": "of data/a.txt"}
    assert "bad\\xff.png (its name is no UTF-8 text; rename it)" in error
    assert "sub\\xfe/c.png (" in error
    assert warning == "not read: lone\\xff.txt (its name is no UTF-8 text; rename it)"
    _, errors, warnings = look(tmp_path, on_bad_file="skip")
    assert errors == []
    json.dumps(warnings, ensure_ascii=False).encode()


def test_the_index_keeps_the_others_of_a_batch(tmp_path) -> None:
    index, stamp = FileIndex(tmp_path / "index.sqlite"), (1, 2, 3, 4)
    index.remember([(f"/x/{name}", stamp, {"width": 1}) for name in ("a.png", "b\udcff.png", "c.png")], own=True)
    assert sorted(index.known(Path("/x"))) == ["/x/a.png", "/x/c.png"]
    index.close()


def test_half_of_a_surrogate_pair_is_shown_as_what_it_is() -> None:
    assert [printable(name) for name in ("a", "b\udcff.png", "c\ud800.png")] == ["a", "b\\xff.png", "c\\ud800.png"]


@pytest.mark.parametrize("kind", ["picture", "caption", "metadata", "mask", "control"])
@pytest.mark.parametrize("target", ["secret", "allowed", "data"])
def test_a_link_is_followed_as_far_as_jobs_may_read_and_named_beyond(tmp_path, put, kind, target) -> None:
    put("data/a.png", "masks/a.png", "controls/a.png", f"{target}/other/real.png")
    text = {"caption": "hidden", "metadata": '{"file_name": "a.png", "text": "hidden"}'}.get(kind)
    if text:
        (tmp_path / target / "other" / "real.png").write_text(text)
    name = {"caption": "data/a.txt", "metadata": "data/metadata.jsonl", "mask": "masks/a.png", "control": "controls/a.png"}
    link = tmp_path / name.get(kind, "data/a.png")
    link.unlink(missing_ok=True)
    if target == "data":  # links within a folder, as hub caches have them; hidden, so that it is no picture of its own
        (tmp_path / "data" / "other").rename(tmp_path / link.parent / ".blobs")
        link.symlink_to(Path(".blobs") / "real.png")
    else:
        link.symlink_to(tmp_path / target / "other" / "real.png")
    if kind not in ("caption", "metadata"):
        (tmp_path / "data" / "a.txt").write_text("hidden")
    found, errors, _ = look(tmp_path, mask_path="m", control_path="c")
    if target != "secret":
        assert (captions(found), errors) == ({"a.png": "hidden"}, [])
    else:
        assert captions(found) == {}
        assert LEADS_OUT in " ".join(errors)
        assert "hidden" not in " ".join(errors)


def test_a_pipe_is_named_and_a_link_to_the_folder_itself_leads_nowhere_else(tmp_path, put) -> None:
    put("data/a.png")
    (tmp_path / "data" / "a.txt").write_text("a")
    os.mkfifo(tmp_path / "data" / "b.png")  # reading it would wait for ever
    (tmp_path / "data" / "again").symlink_to(tmp_path / "data")
    _, errors, warnings = look(tmp_path)
    assert errors == ["unreadable pictures: b.png (a pipe, socket or device, not a file)"]
    assert warnings == ["not read, being no kind of file that is known here: again/"]
