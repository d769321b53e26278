"""Entries: sizes, flips, crops, and what is held out."""

import hashlib
import string
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from models import catalog
from models.catalog import parse_job
from models.data.captions import CaptionRule
from models.data.datasets import Item, Survey, survey
from models.data.entries import Entry, dataset_hash, make_entries, parted
from models.data.epochs import Order, epoch_summary, validation_problems
from models.data.look import Media
from models.spec import TrainSpec


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "data"
    made.mkdir()
    for number, size in enumerate([(64, 32), (64, 32), (32, 32), (100, 60), (33, 47)]):
        Image.effect_noise(size, 50 + number).save(made / f"{number}.png")
        (made / f"{number}.txt").write_text(f"number {number}")
    return made


@pytest.fixture
def spec(tiny_job: Any) -> Any:
    def make(*datasets: dict[str, Any], **changes: Any) -> TrainSpec:
        parsed = parse_job(tiny_job(datasets=[{"folder_path": "x", **each} for each in datasets], **changes))
        assert isinstance(parsed, TrainSpec)
        return parsed

    return make


def entries_of(spec: TrainSpec, *folders: Path) -> list[Entry]:
    return make_entries(spec, [survey(each, folder) for each, folder in zip(spec.datasets, folders, strict=True)], 16)


def test_flips_repeats_and_resolutions_multiply(spec, folder) -> None:
    assert len(entries_of(spec({}), folder)) == 5
    assert len(entries_of(spec({"flip_x": True}), folder)) == 10
    assert (
        len(entries_of(spec({"flip_x": True, "flip_y": True, "num_repeats": 3, "resolution": [64, 32]}), folder)) == 5 * 4 * 3 * 2
    )
    views = {(e.view.flip_x, e.view.flip_y) for e in entries_of(spec({"flip_x": True, "flip_y": True}), folder)}
    assert views == {(False, False), (True, False), (False, True), (True, True)}


def test_a_view_covers_its_box_and_stays_inside_the_picture(spec, folder) -> None:
    for entry in entries_of(spec({"random_crop": True, "num_repeats": 20, "resolution": [16, 48]}), folder):
        view = entry.view
        assert view.scaled_width == view.width or view.scaled_height == view.height
        assert 0 <= view.left <= view.scaled_width - view.width
        assert 0 <= view.top <= view.scaled_height - view.height


def test_random_crops_are_chosen_once_by_seed_item_and_repeat(spec, folder) -> None:
    dataset = {"random_crop": True, "num_repeats": 8, "resolution": [48]}
    one, again, other = (entries_of(spec(dataset, **{"train.seed": seed}), folder) for seed in (1, 1, 2))
    assert one == again
    assert one != other
    assert len({(entry.view.left, entry.view.top) for entry in one if entry.item.name == "3.png"}) > 3
    centred = entries_of(spec({"resolution": [48]}), folder)
    assert all(abs(2 * entry.view.top + entry.view.height - entry.view.scaled_height) <= 1 for entry in centred)


def rank(digest: str) -> float:
    """Where on [0, 1) the documented rule puts it."""
    return int(hashlib.sha256(f"held out/{digest}".encode()).hexdigest(), 16) / 2**256


def found(names: str, digests: str | None = None, folder: str = "x") -> Survey:
    pairs = zip(names, digests or names, strict=True)
    media = [Media(f"{folder}/{name}", "picture", (0, 0, 0, 0), digest, 32, 32) for name, digest in pairs]
    return Survey(Path(folder), items=[Item(each, f"of {each.file}", each.path.name) for each in media])


def sides(job: TrainSpec, *surveys: Survey) -> tuple[list[Entry], list[Entry]]:
    return parted(job, surveys, 16)


PARTED = {"flip_x": True, "num_repeats": 2, "caption_dropout_rate": 0.5}


@pytest.mark.parametrize("fraction", [1e-9, 0.2, 0.5, 1 - 1e-9])
def test_a_share_of_the_pictures_is_held_out_with_all_their_copies(spec, fraction) -> None:
    kept, held = sides(spec(PARTED, validation={"fraction": fraction}), found("abcdefghij"))
    ranked = sorted("abcdefghij", key=rank)
    below = [digest for digest in ranked if rank(digest) < fraction]
    wanted = (below or ranked[:1])[:9]
    assert {entry.item.name for entry in held} == set(wanted)
    assert len(held) == len(wanted)
    assert len(kept) == 4 * (10 - len(wanted))
    assert {entry.item.name for entry in kept}.isdisjoint(wanted)
    assert all(not entry.view.flip_x and entry.rule == CaptionRule() for entry in held)


def test_what_is_held_out_hangs_on_content_alone(spec) -> None:
    job = spec(PARTED, validation={"fraction": 0.3})
    _, held = sides(job, found("abcdefghij"))
    _, moved = sides(
        spec(PARTED, validation={"fraction": 0.3, "seed": 7}, **{"train.seed": 3}), found("0123456789", "jihgfedcba")
    )
    assert {entry.item.media.digest for entry in held} == {entry.item.media.digest for entry in moved}


def test_data_that_grows_holds_out_nothing_that_was_trained(spec) -> None:
    job, names = spec({}, validation={"fraction": 0.3}), string.ascii_letters + string.digits
    for count in range(5, len(names)):
        trained = {entry.item.name for entry in sides(job, found(names[:count]))[0]}
        assert trained.isdisjoint(entry.item.name for entry in sides(job, found(names[: count + 1]))[1])


def test_equal_pictures_are_on_the_same_side(spec) -> None:
    for digests in ("aabbccddee", "abcdeabcde"):
        kept, held = sides(spec({}, validation={"fraction": 0.4}), found("0123456789", digests))
        assert {entry.item.media.digest for entry in kept}.isdisjoint(entry.item.media.digest for entry in held)
        assert len({entry.item.name for entry in held}) % 2 == 0


def test_a_single_picture_cannot_be_parted(spec) -> None:
    with pytest.raises(ValueError, match="1 different items"):
        sides(spec({}, validation={"fraction": 0.5}), found("ab", "xx"))


def test_regularisation_sets_lose_what_is_held_out_and_are_not_held_out_themselves(spec) -> None:
    job = spec({}, {"is_reg": True}, validation={"fraction": 1e-9})
    first = min("abc", key=rank)
    kept, held = sides(job, found("abc"), found("123" + "4567", "abc" + "4567", "reg"))
    assert [entry.item.media.digest for entry in held] == [first]
    assert first not in {entry.item.media.digest for entry in kept}
    assert sum(entry.rule.is_reg for entry in kept) == 6
    [fault] = validation_problems(job, [found("abc"), found("1", first, "reg")])
    assert fault.pointer == "/validation/fraction" and "all of /datasets/1" in fault.message


@pytest.mark.parametrize("digests", ["ab", None])
def test_a_held_out_dataset_is_trained_nowhere(spec, digests) -> None:
    """Within the training folder, by path where the digests are not known; and as copies of other names, by digest."""
    job = spec({}, {"is_reg": True}, validation={"dataset": {"folder_path": "x/v"}})
    own = found("ab", digests or "ab", "x/v")
    taught = Survey(Path("x"), items=[*found("cd").items, *own.items])
    if digests is None:
        taught = Survey(Path("x"), items=[replace(item, media=replace(item.media, digest="")) for item in taught.items])
    kept, held = sides(job, taught, found("12", "ae", "reg"), own)
    assert {entry.item.path for entry in kept} == {Path("x/c"), Path("x/d"), Path("reg/2")}
    assert {entry.item.path for entry in held} == {Path("x/v/a"), Path("x/v/b")}
    assert not validation_problems(job, [taught, found("12", "ae", "reg"), own])
    [fault] = validation_problems(job, [own, found("12", "ae", "reg"), own])
    assert fault.pointer == "/validation/dataset/folder_path" and "all of /datasets/0" in fault.message


def test_the_data_s_hash_sees_contents_and_captions_but_no_names(spec, folder) -> None:
    def digest() -> str:
        return dataset_hash([survey(spec({}).datasets[0], folder)])

    before = digest()
    (folder / "0.png").rename(folder / "zero.png")
    (folder / "0.txt").rename(folder / "zero.txt")
    assert digest() == before
    (folder / "zero.txt").write_text("another caption")
    changed = digest()
    assert changed != before
    Image.new("RGB", (64, 32)).save(folder / "1.png")
    assert digest() not in (before, changed)


def test_every_second_step_is_one_of_regularisation_sets(spec, folder) -> None:
    job = spec({}, {"is_reg": True}, **{"train.batch_size": 2, "train.gradient_accumulation": 3})
    entries = entries_of(job, folder, folder)
    order = Order(entries, job)
    for step in range(40):
        members = [order.members(step * 3 + micro) for micro in range(3)]
        assert {entries[index].rule.is_reg for batch in members for index in batch} == {order.is_reg(step)}
        assert order.is_reg(step) == (step % 2 == 1)
    for stream in (0, 1):
        numbers = [step * 3 + micro for step in range(40) if step % 2 == stream for micro in range(3)]
        epoch = [order.members(number) for number in numbers[: order.num_batches]]
        assert sorted(index for batch in epoch for index in batch) == [5 * stream + number for number in range(5)]


def test_no_batch_mixes_datasets_and_an_epoch_shows_every_entry_once(spec, folder) -> None:
    job = spec({"num_repeats": 2}, {"flip_x": True}, **{"train.batch_size": 4})
    entries = entries_of(job, folder, folder)
    order = Order(entries, job)
    for epoch in range(3):
        batches = [order.members(epoch * order.num_batches + number) for number in range(order.num_batches)]
        assert sorted(index for batch in batches for index in batch) == list(range(20))
        assert all(len({entries[index].bucket for index in batch}) == 1 for batch in batches)


def test_the_plan_shows_the_steps_that_the_loop_makes(spec, folder) -> None:
    job = spec({}, {"is_reg": True}, **{"train.batch_size": 2, "train.steps": 16})
    surveys = [survey(each, folder) for each in job.datasets]
    summary = epoch_summary(job, surveys, 16)
    order = Order(make_entries(job, surveys, 16), job)
    assert summary["steps_per_epoch"] == order.num_batches * 2 == 6
    assert summary["epochs"] == pytest.approx(16 / 6, abs=0.01)
    assert [dataset["is_reg"] for dataset in summary["datasets"]] == [False, True]
    for shown in summary["datasets"][0]["samples"]:
        assert shown["caption"] == f"number {shown['file'][0]}"
        assert shown["scaled_width"] >= shown["left"] + shown["width"]


def test_the_plan_counts_what_is_held_out(spec, folder) -> None:
    job = spec({}, {"is_reg": True}, validation={"fraction": 0.4})
    surveys = [survey(each, folder) for each in job.datasets]
    count = len({entry.item.name for entry in parted(job, surveys, 16)[1]})
    shown = epoch_summary(job, surveys, 16)["datasets"]
    assert 0 < count < 5 and [each["held_out"] for each in shown] == [count, count]
    assert [sum(bucket["images"] for bucket in each["buckets"]) for each in shown] == [5 - count] * 2


def test_a_network_of_one_size_sees_every_picture_at_that_size(spec, folder, monkeypatch) -> None:
    job, card = spec({"resolution": [64]}), catalog.arch("pocket").model_copy(update={"fixed_size": (64, 32)})
    monkeypatch.setattr(catalog, "archs", lambda: {"pocket": card})
    assert {(e.view.width, e.view.height) for e in entries_of(job, folder)} == {(64, 32)}
