"""Warnings about pictures that are cut or enlarged much, and about masks and control pictures of another shape."""

from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from models.catalog import parse_job
from models.data.crops import crop_warnings
from models.data.datasets import Folders, survey
from models.data.problems import dataset_problems
from models.spec import DatasetSpec, TrainSpec


@pytest.fixture
def warned(tmp_path: Path, tiny_job: Any) -> Any:
    """`warned({"data/a.png": (64, 64)}, mask_path="masks")`: the warnings' pointers within the dataset, and their messages."""

    def look(files: dict[str, tuple[int, int]], divisibility: int = 16, **dataset: Any) -> dict[str, str]:
        for name, size in files.items():
            (tmp_path / name).parent.mkdir(exist_ok=True)
            Image.new("RGB", size).save(tmp_path / name)
        spec = parse_job(tiny_job())
        assert isinstance(spec, TrainSpec)
        given = DatasetSpec(**{"folder_path": "x", "default_caption": "", "resolution": [64], **dataset})
        spec = spec.model_copy(update={"datasets": [given], "validation": None})
        controls = tuple(tmp_path / getattr(given, key) for key in ("control_path", "control_path_2") if getattr(given, key))
        folders = Folders(tmp_path / "data", tmp_path / given.mask_path if given.mask_path else None, controls)
        return {each.pointer[12:]: each.message for each in crop_warnings(spec, [survey(given, folders)], divisibility)}

    return look


def test_pictures_of_ordinary_shapes_are_not_spoken_of(warned) -> None:
    assert warned({"data/a.png": (192, 108), "data/b.png": (64, 300), "data/c.png": (10, 10), "data/d.jpg": (400, 400)}) == {}


def test_what_is_cut_away_and_enlarged_is_named(warned) -> None:
    files = {"data/a.png": (4, 100), "data/b.png": (64, 64), "data/c.png": (7, 7), "data/d.png": (40, 1000)}
    assert warned(files) == {
        "resolution": "much of these is cut away or enlarged to fit a bucket: a.png (4 x 100 as 16 x 96: 76% cut away, enlarged 4 times), "
        "c.png (7 x 7 as 16 x 16: enlarged 2.29 times)"
    }


def test_masks_and_control_pictures_of_another_shape_are_named(warned) -> None:
    files = {
        "data/a.png": (64, 32), "data/b.png": (64, 32), "data/c.png": (63, 32),
        "masks/a.png": (64, 64), "masks/b.png": (128, 64), "masks/c.png": (31, 16),
        "control/a.png": (32, 16), "control/b.png": (32, 32), "control/c.png": (126, 64),
    }  # fmt: skip
    assert warned(files, mask_path="masks", control_path="control") == {
        "mask_path": "masks of another shape than their picture, cut to it at the centre: a.png",
        "control_path": "control pictures of another shape than their picture, cut to it at the centre: b.png",
    }


def test_control_pictures_that_keep_their_size_are_not_spoken_of(warned) -> None:
    files = {"data/a.png": (64, 64), "control/a.png": (64, 32), "more/a.png": (32, 64)}
    assert warned(files, control_path="control", control_path_2="more") == {}


@pytest.mark.parametrize("on_bad_file", ["stop", "skip"])
def test_a_strip_is_refused_or_skipped_by_name(tmp_path, on_bad_file) -> None:
    for name, size in (("strip.png", (1, 4096)), ("wide.png", (640, 20)), ("good.png", (32, 32))):
        Image.new("L", size).save(tmp_path / name)
    spec = DatasetSpec(folder_path="x", default_caption="", on_bad_file=on_bad_file)
    found = survey(spec, tmp_path)
    errors, warnings = dataset_problems(found, spec, "/datasets/0")
    assert [item.name for item in found.items] == ["good.png", "wide.png"]
    assert "strip.png (1 x 4096: one side is more than 32 times the other)" in (errors if errors else warnings)[0].message
    assert bool(errors) == (on_bad_file == "stop")


def test_what_of_pictures_is_passed_over_is_counted_with_the_first_names(tmp_path) -> None:
    for number in range(7):
        Image.new("RGB", (8, 8)).save(tmp_path / f"{number}.png", icc_profile=b"no profile")
    Image.new("RGB", (8, 8)).save(tmp_path / "turned.jpg", exif=b"Exif\0\0no such thing")
    spec = DatasetSpec(folder_path="x", default_caption="")
    _, warnings = dataset_problems(survey(spec, tmp_path), spec, "/datasets/0")
    messages = [warning.message for warning in warnings]
    names = "0.png, 1.png, 2.png, 3.png, 4.png and 2 more"
    assert f"7 files with a broken colour profile, which counts as none: {names}" in messages
    assert "1 file with broken EXIF data, which may have held a turn: turned.jpg" in messages
