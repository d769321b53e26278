"""What lies beside the files: captions in other forms, masks, control pictures; and media that a dataset does not take."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from models.data.datasets import Folders, Survey, survey
from models.data.problems import dataset_problems
from models.spec import DatasetSpec
from tests.media_files import shades, write_clip, write_sound


@pytest.fixture
def put(tmp_path: Path) -> Callable[..., None]:
    """`put("data/a.png", "sub/b.jpg")`: small pictures."""

    def make(*names: str) -> None:
        for name in names:
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (20, 10)).save(tmp_path / name)

    return make


def look(tmp_path: Path, masks: str | None = None, sounds: bool = False, **changes: Any) -> tuple[Survey, list[str], list[str]]:
    spec = DatasetSpec(folder_path="x", mask_path=masks, **{"default_caption": "", **changes})
    controls = tuple(tmp_path / getattr(spec, key) for key in ("control_path", "control_path_2") if getattr(spec, key))
    folders = Folders(tmp_path / "data", tmp_path / masks if masks else None, controls)
    found = survey(spec, folders, sounds=sounds)
    errors, warnings = dataset_problems(found, spec, "/datasets/0")
    told = [fault.message for fault in warnings if fault.pointer != "/datasets/0/default_caption"]
    return found, [f"{fault.pointer[12:]}: {fault.message}" for fault in errors], told


def test_json_captions_that_cannot_be_used_are_named(tmp_path, put) -> None:
    put("data/a.png", "data/b.png", "data/c.png")
    for name, text in {"a": '{"caption": "a red, shiny car"}', "b": "{", "c": '{"label": 1}'}.items():
        (tmp_path / "data" / f"{name}.json").write_text(text)
    found, [error], _ = look(tmp_path, caption_ext="json")
    assert [item.caption for item in found.items] == ["a red, shiny car"]
    assert error.startswith("caption_ext: caption files that cannot be used: b.json (not valid JSON: ")
    assert "c.json (none of the keys caption, text, prompt is there)" in error


def test_metadata_fills_the_gaps_that_caption_files_leave(tmp_path, put) -> None:
    put("data/a.png", "data/b.png", "data/sub/c.png", "data/d.png")
    (tmp_path / "data" / "a.txt").write_text("its own")
    (tmp_path / "data" / "b.txt").write_text(" \n")
    lines = [{"file_name": name, "text": f"of {name}"} for name in ("a.png", "b.png", "sub/c.png", "gone.png")]
    (tmp_path / "data" / "metadata.jsonl").write_text("\n".join(map(json.dumps, lines)))
    found, errors, warnings = look(tmp_path, default_caption="default")
    assert {item.name: item.caption for item in found.items} == {
        "a.png": "its own", "b.png": "of b.png", "sub/c.png": "of sub/c.png", "d.png": "default"
    }  # fmt: skip
    assert errors == []
    assert warnings == []  # what is not used stands beside the default caption


def test_a_broken_line_of_the_metadata_refuses_the_job_by_its_number(tmp_path, put) -> None:
    put("data/a.png")
    (tmp_path / "data" / "metadata.jsonl").write_text('{"file_name": "a.png", "text": "x"}\n{"file_name": \n')
    _, [error], _ = look(tmp_path)
    assert error.startswith("folder_path: metadata.jsonl is broken: line 2 (not valid JSON")


def test_control_pictures_belong_by_path_without_extension(tmp_path, put) -> None:
    put(
        "data/a.png", "data/sub/b.jpg", "data/x.y.png", "one/a.webp", "one/sub/b.png", "one/x.y.jpg", "one/b.png", "one/other.png"
    )
    found, errors, _ = look(tmp_path, control_path="one")
    assert [item.controls[0].path.relative_to(tmp_path / "one").as_posix() for item in found.items] == [
        "a.webp",
        "sub/b.png",
        "x.y.jpg",
    ]
    assert errors == []


def test_missing_control_pictures_refuse_the_job_by_name_and_folder(tmp_path, put) -> None:
    put("data/a.png", "data/b.png", "data/c.png", "one/a.png", "one/b.png", "two/a.png")
    found, errors, _ = look(tmp_path, control_path="one", control_path_2="two")
    assert [item.name for item in found.items] == ["a.png"]
    assert errors == [
        "control_path: no control picture of the same name in one for: c.png",
        "control_path_2: no control picture of the same name in two for: b.png, c.png",
    ]


def test_an_unreadable_control_picture_or_mask_is_named(tmp_path, put) -> None:
    put("data/a.png", "data/b.png", "one/b.png")
    (tmp_path / "one" / "a.png").write_bytes(b"text")
    _, [error], _ = look(tmp_path, control_path="one")
    assert error.startswith("folder_path: unreadable pictures: its picture in control_path (a.png) (not a picture")
    found, [error], _ = look(tmp_path, masks="one")
    assert "its mask (a.png)" in error
    assert [item.name for item in found.items] == ["b.png"]


def test_pictures_without_a_mask_refuse_the_job_unless_they_are_to_be_trained_whole(tmp_path, put) -> None:
    put("data/a.png", "data/b.png", "masks/b.jpg")
    _, errors, warnings = look(tmp_path, masks="masks")
    assert (errors, warnings) == (["mask_path: no mask of the same name in masks for: a.png"], [])
    found, errors, [warning] = look(tmp_path, masks="masks", on_missing_mask="whole")
    assert [item.mask and item.mask.path.name for item in found.items] == [None, "b.jpg"]
    assert errors == []
    assert warning == "no mask of the same name, so all of it is trained: a.png"


def test_mask_and_control_folders_within_the_dataset_are_no_part_of_it(tmp_path, put) -> None:
    put("data/a.png", "data/masks/a.png", "data/one/a.png")
    found, errors, _ = look(tmp_path, masks="data/masks", control_path="data/one")
    assert ([item.name for item in found.items], errors) == (["a.png"], [])


def test_clips_are_passed_over_unless_frames_are_wanted(tmp_path, put) -> None:
    put("data/a.png")
    write_clip(tmp_path / "data" / "b.mkv", shades(9))
    write_sound(tmp_path / "data" / "c.wav")
    found, _, warnings = look(tmp_path)
    assert [item.name for item in found.items] == ["a.png"]
    assert warnings[0] == "clips that are passed over: 1; set num_frames or auto_frame_count to train on them"
    found, _, warnings = look(tmp_path, num_frames=5)
    assert [(item.name, item.num_frames, item.media.kind) for item in found.items] == [
        ("a.png", 1, "picture"),
        ("b.mkv", 5, "clip"),
    ]
    assert warnings == ["sounds that are passed over: 1"]


def test_sounds_are_all_that_an_architecture_of_sounds_takes(tmp_path, put) -> None:
    put("data/a.png")
    for name in ("a.wav", "b.flac", "c.mp3"):
        write_sound(tmp_path / "data" / name, 16000)
    (tmp_path / "data" / "bad.wav").write_bytes(b"RIFF")
    found, [error], warnings = look(tmp_path, sounds=True)
    assert [item.name for item in found.items] == ["a.wav", "b.flac", "c.mp3"]
    assert error.startswith("folder_path: unreadable sounds: bad.wav (not a readable sound")
    assert warnings == ["pictures that are passed over: 1"]


def test_clips_that_do_not_fit_are_refused_by_name(tmp_path) -> None:
    write_clip(tmp_path / "data" / "short.mkv", shades(4), fps=10)
    write_clip(tmp_path / "data" / "silent.mkv", shades(9), fps=10)
    write_clip(tmp_path / "data" / "whole.mkv", shades(9), fps=10, tone=(8000, 1.0))
    (tmp_path / "data" / "text.mp4").write_text("I am text")
    given = {"num_frames": 5, "fps": 10, "shrink_video_to_frames": False, "do_audio": True}
    found, [error], _ = look(tmp_path, **given)
    assert [item.name for item in found.items] == ["whole.mkv"]
    assert "short.mkv (no sound in it), silent.mkv (no sound in it), text.mp4 (not a readable clip" in error
    _, [error], _ = look(tmp_path, **{**given, "do_audio": False})
    assert "short.mkv (4 frames at 10 fps, 5 are wanted)" in error


def test_frames_out_of_time_do_not_go_with_sound(tmp_path) -> None:
    write_clip(tmp_path / "data" / "a.mkv", shades(9), tone=(8000, 1.0))
    _, [error], _ = look(tmp_path, num_frames=5, do_audio=True)
    assert error.startswith("do_audio: frames spread over the clip do not keep time with its sound")


@pytest.mark.parametrize(("word", "is_reg", "key"), [("ohm", False, None), (None, False, "trigger_word"), (None, True, "is_reg")])
def test_a_placeholder_that_nothing_fills_refuses_the_job_and_names_the_files(tmp_path, put, word, is_reg, key) -> None:
    put("data/a.png", "data/b.png")
    (tmp_path / "data" / "b.txt").write_text("a [Trigger] dog")
    spec = DatasetSpec(folder_path="x", default_caption="", is_reg=is_reg)
    errors, _ = dataset_problems(survey(spec, tmp_path / "data"), spec, "/datasets/0", word)
    assert [fault.pointer for fault in errors] == ([f"/datasets/0/{key}"] if key else [])
    assert all("a [trigger] or [name] that nothing fills: b.png" in fault.message for fault in errors)
