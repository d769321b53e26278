"""The worker's parent answers a server's question with a short child, and survives a child that dies."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from models import catalog
from server.store import broker, plans
from worker.planning.planner import Planner


@pytest.fixture
def planner(migrated: Path) -> Iterator[Planner]:
    (migrated / "workers").mkdir(exist_ok=True)
    share = broker.hold()
    made = Planner("w", "cpu")
    yield made
    made.end()
    if share:
        share.close()


def answer(planner: Planner, until: Callable[..., None], spec: dict[str, Any]) -> dict[str, Any]:
    assert plans.ask("w", "digest", spec, "texts")
    assert plans.ask("w", "digest", spec, "texts")  # again, which changes nothing

    def told() -> bool:
        planner.tick()
        return None not in (plans.answer("digest"), plans.answer("texts"))

    until(told, "no prediction")
    assert plans.take("w") is None
    found = plans.answer("digest")
    assert found is not None
    return found


def test_a_question_is_answered(
    planner: Planner, until: Callable[..., None], pictures: Callable[..., Path], tiny_job: Callable[..., Any]
) -> None:
    folder = pictures()
    (folder / "002.txt").write_text("sea " * 300)
    samples = [{"prompt": "a sea"}, {"prompt": "[trigger] sea " * 150}]
    job = tiny_job(trigger_word="ohm", **{"sample.samples": samples})
    made = answer(planner, until, catalog.parse_job(job).model_dump(mode="json"))["plan"]
    assert made["peak"] == sum(made["parts"].values()) > 0
    assert made["device"] == "cpu" and made["fits_with"] == [] and made["notes"] == []
    cut = plans.answer("texts")
    assert cut is not None
    captions, prompt = cut["cut"]
    assert (captions["pointer"], prompt["pointer"]) == ("/datasets/0/folder_path", "/sample/samples/1/prompt")
    assert captions["message"] == (
        "captions of more tokens than the 256 that the text encoder reads, which cuts them there: 002.png (304)"
    )
    assert prompt["message"].startswith(
        "a prompt of 452 tokens, of which the text encoder reads the first 256: 'ohm sea ohm sea "
    )


def test_a_sampling_jobs_question_is_answered(planner: Planner, until: Callable[..., None]) -> None:
    model = {"arch": "pocket", "name_or_path": "random", "model_kwargs": {"channels": [16, 32]}}
    spec = catalog.parse_job({"kind": "sample", "name": "a", "model": model, "samples": [{"prompt": "red"}]})
    made = answer(planner, until, spec.model_dump(mode="json"))["plan"]
    assert made["peak"] == sum(made["parts"].values()) > made["parts"]["weights"] > 0
    assert set(made["phases"]) == {"encoding", "sampling"} and made["trained_parameters"] == 0 and made["notes"] == []


def test_what_cannot_be_planned_is_said(planner: Planner, until: Callable[..., None], tiny_job: Callable[..., Any]) -> None:
    spec = catalog.parse_job(tiny_job()).model_dump(mode="json")
    found = answer(planner, until, spec)
    assert "colours is missing" in found["error"] and not found["refuses"]


def test_what_the_run_would_meet_too_refuses_the_job(
    migrated: Path, pictures: Callable[..., Path], tiny_job: Callable[..., Any], capsys: Any, tmp_path: Path
) -> None:
    from worker.planning import plan

    pictures()
    file = tmp_path / "job.json"
    file.write_text(json.dumps(tiny_job(network={"linear": 2, "only_if_contains": ["nowhere"]})))
    assert plan.main([str(file)]) == 1
    told = json.loads(capsys.readouterr().out)
    assert told["refuses"] and "no layer's name contains 'nowhere'" in told["error"]


def test_a_batch_is_as_large_as_its_bucket(migrated: Path, pictures: Callable[..., Path], tiny_job: Callable[..., Any]) -> None:
    from worker.places import find_places
    from worker.planning import plan

    pictures(count=4)
    specs = [catalog.parse_job(tiny_job(**{"train.batch_size": size})) for size in (2, 64)]
    assert [plan.look(spec, plan.glance(spec, find_places(spec))).batch for spec in specs] == [(32, 32, 1, 2), (32, 32, 1, 4)]


def test_a_child_that_dies_is_an_answer(planner: Planner, until: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    start = subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: start([sys.executable, "-c", "raise SystemExit(3)"]))
    assert answer(planner, until, {"kind": "train"}) == {"error": "its process ended with code 3"} == plans.answer("texts")


def test_one_that_takes_too_long_is_ended(planner: Planner, until: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    start = subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: start([sys.executable, "-c", "import time; time.sleep(1000)"]))
    monkeypatch.setattr("worker.planning.planner.LONGEST_SECONDS", 0)
    assert "took longer than 0 s" in answer(planner, until, {"kind": "train"})["error"]


def test_the_command_prints_a_plan(
    migrated: Path,
    pictures: Callable[..., Path],
    tiny_job: Callable[..., Any],
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    from worker.planning import plan

    pictures()
    file = tmp_path / "job.json"
    file.write_text(json.dumps(tiny_job()))
    assert plan.main([str(file)]) == 0
    assert json.loads(capsys.readouterr().out)["trained_parameters"] > 0
    file.write_text(json.dumps({"kind": "train"}))
    assert plan.main([str(file)]) == 1
    assert "model.arch is missing" in json.loads(capsys.readouterr().out)["error"]
