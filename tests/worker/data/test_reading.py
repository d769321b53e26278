"""While a run looks at its data it says so, and how far it is."""

import os
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from models.catalog import parse_job
from models.errors import SpecError
from server.store import jobs
from worker.data import survey
from worker.places import find_places
from worker.report import Reporter
from worker.report_store import DEAF_SECONDS, StoreReporter

Told = list[tuple[Any, ...]]


@pytest.fixture
def read(tmp_path: Path) -> Any:
    """`read(job)` looks at the job's data; the answer is what was told of it."""

    def start(job: dict[str, Any]) -> Told:
        reporter = Reporter(tmp_path, 1)
        told: Told = []
        reporter.phase = lambda *what: told.append(what)  # type: ignore[assignment]
        spec: Any = parse_job(job)
        places = find_places(spec)
        survey.survey(spec, places.datasets, places.cache, reporter)
        return told

    return start


def test_a_run_says_of_its_pictures_what_its_plan_says(pictures, tiny_job, client, tmp_path) -> None:
    folder = pictures(count=4)
    Image.new("RGB", (4, 100)).save(folder / "strip.png", icc_profile=b"none")
    (folder / "strip.txt").write_text("a strip")
    said: list[str] = []
    reporter = Reporter(tmp_path, 1)
    reporter.log = lambda message, *_: said.append(message)  # type: ignore[method-assign]
    spec: Any = parse_job(tiny_job())
    places = find_places(spec)
    survey.survey(spec, places.datasets, places.cache, reporter)
    plan = client.post("/v1/jobs/validate", json=tiny_job()).json()
    planned = [each["message"] for each in plan["warnings"] if each["pointer"].startswith("/datasets/0/")]
    assert planned == said
    assert len(said) == 2


@pytest.fixture
def job(pictures: Any, tiny_job: Any, home: Path) -> dict[str, Any]:
    pictures(count=4)
    pictures("more", count=2)
    masks = home / "datasets/masks"
    masks.mkdir()
    for number in range(3):
        Image.new("L", (32, 32), 255).save(masks / f"{number:03d}.png")
    made: dict[str, Any] = tiny_job(
        datasets=[{"folder_path": "colours", "mask_path": "masks", "on_missing_mask": "whole"}, {"folder_path": "more"}]
    )
    return made


def test_each_file_counts_of_all_that_are_known_of(job, read, monkeypatch) -> None:
    monkeypatch.setattr(survey, "TOLD_SECONDS", 0)
    first, *told = read(job)
    assert first == ("reading",)
    counts = [(done, total) for _, done, total in told]
    pictures, masks, more = (
        [(done, 4) for done in range(5)],
        [(done, 7) for done in range(4, 8)],
        [(done, 9) for done in range(7, 10)],
    )
    assert counts == [*pictures, *masks, *more]


def test_it_is_told_now_and_then_only(job, read, monkeypatch) -> None:
    monkeypatch.setattr(survey, "TOLD_SECONDS", 3600)
    assert read(job) == [("reading",)]


def test_a_run_refuses_links_and_names_in_the_words_of_the_plan(read, pictures, tiny_job, tmp_path_factory) -> None:
    folder, secret = pictures(), tmp_path_factory.mktemp("outside") / "secret"
    secret.write_text("hidden")
    (folder / os.fsdecode(b"bad\xff.png")).write_bytes((folder / "000.png").read_bytes())
    (folder / "000.txt").unlink()
    (folder / "000.txt").symlink_to(secret)
    with pytest.raises(SpecError) as refused:
        read(tiny_job())
    assert [fault.message for fault in refused.value.problems] == [
        "unreadable pictures: bad\\xff.png (its name is no UTF-8 text; rename it)",
        "caption files that cannot be used: 000.txt (a link that leads out of the folders that jobs may read)",
    ]


def test_the_jobs_row_says_it_and_a_run_that_does_not_listen_there_is_ended(job, migrated) -> None:
    jobs.add(parse_job(job).model_dump(mode="json"))
    claimed = jobs.claim_next("w", ["pocket"])
    assert claimed is not None
    ended: list[str] = []
    reporter = StoreReporter(claimed, lambda _, what: ended.append(what))
    reporter.phase("reading", 3, 9)
    assert (jobs.get(claimed.id).phase, jobs.get(claimed.id).status) == ("reading", "preparing")
    reporter._insist("pause", DEAF_SECONDS)
    assert ended == ["pause"]
