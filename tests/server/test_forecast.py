"""A job's memory in its plan: asked for once, remembered, and judged against the devices. Workers are rows here."""

from pathlib import Path
from typing import Any

import pytest

from models import budget
from server.store import plans, workers
from server.store.tables import Worker

GIB = 2**30
PARTS = {
    "weights": 20 * GIB,
    "adapters": GIB,
    "gradients": GIB,
    "optimizer": 2 * GIB,
    "ema": 0,
    "activations": 6 * GIB,
    "caches": 0,
}
KNOWN = {
    "peak": 30 * GIB,
    "phase": "training",
    "parts": PARTS,
    "phases": {"caching": 5 * GIB, "training": 30 * GIB},
    "trained_parameters": 12,
    "disk": {"checkpoint": 1, "checkpoints": 5, "caches": 2},
    "notes": [],
    "device": "cuda",
    "total": 24 * GIB,
    "fits_with": [
        {"change": {"model.quantize": True}, "peak": 20 * GIB},
        {"change": {"train.gradient_checkpointing": True}, "peak": 23 * GIB},
    ],
}


def connect(name: str, total: int) -> None:
    workers.register(
        Worker(id=name, host="h", device="cuda:0", pid=1, archs=["pocket"], memory_total=total, seen_at="2026-01-01T00:00:00Z")
    )


@pytest.fixture
def asked(client: Any, pictures: Any, tiny_job: Any) -> Any:
    """`asked(path="/v1/jobs/validate", **changes)`: the answer to a job."""
    pictures()

    def ask(path: str = "/v1/jobs/validate", **changes: Any) -> Any:
        return client.post(path, json=tiny_job(**changes))

    return ask


@pytest.fixture
def asked_for_pictures(client: Any) -> Any:
    """The same for a sampling job of these prompts."""

    def ask(*prompts: str, path: str = "/v1/jobs/validate", **more: Any) -> Any:
        model = {"arch": "pocket", "name_or_path": "random"}
        samples = [{"prompt": prompt, "seed": len(prompts)} for prompt in prompts]
        return client.post(path, json={"kind": "sample", "name": "a", "model": model, "samples": samples, **more})

    return ask


def memory_line(plan: dict[str, Any]) -> str:
    (line,) = [line for line in plan["not_checked"] if line.startswith("memory")]
    return line


def test_without_a_worker_nothing_is_known(asked: Any) -> None:
    plan = asked().json()
    assert plan["memory"] is None and memory_line(plan) == "memory: no worker"


def test_a_plan_asks_once_and_then_remembers(asked: Any) -> None:
    connect("w", 80 * GIB)
    for _ in range(2):
        plan = asked().json()
        assert plan["ok"] and plan["memory"] is None and memory_line(plan) == "memory: being worked out; ask again"
    question = plans.take("w")
    assert question is not None and question["spec"]["kind"] == "train"
    assert plans.take("w") is None
    plans.remember(question["digest"], {"plan": KNOWN})
    plan = asked(name="another name").json()  # which changes nothing about memory
    assert plan["ok"] and plan["memory"]["peak"] == sum(plan["memory"]["parts"].values()) == 30 * GIB
    assert plan["memory"]["trained_parameters"] == 12
    assert not any(line.startswith("memory") for line in plan["not_checked"])
    assert memory_line(asked(**{"train.batch_size": 3}).json()).endswith("ask again")


def test_a_job_that_fits_no_device_is_refused_with_what_to_change(asked: Any) -> None:
    connect("small", 8 * GIB)
    connect("larger", 24 * GIB)
    asked()
    question = plans.take("small") or plans.take("larger")
    assert question is not None
    plans.remember(question["digest"], {"plan": KNOWN})
    (problem,) = asked().json()["problems"]
    assert problem == {
        "pointer": "/model",
        "message": "the job needs 30.0 GiB of memory while training (weights 20.0 GiB, adapters 1.0 GiB, gradients 1.0 GiB, optimizer "
        "2.0 GiB, activations 6.0 GiB); the device has 24.0 GiB",
        "suggestion": "it would fit with model.quantize: true (20.0 GiB), or with train.gradient_checkpointing: true (23.0 GiB)",
        "misspelt": False,
    }
    refused = asked("/v1/jobs")
    assert refused.status_code == 422 and refused.json()["errors"] == [problem]
    connect("large", 40 * GIB)
    assert asked().json()["ok"]


def lengths_line(plan: dict[str, Any]) -> list[str]:
    return [line for line in plan["not_checked"] if line.startswith("texts longer")]


def test_texts_that_are_cut_are_counted_by_a_worker_and_warned_of(asked: Any, home: Path) -> None:
    said = "texts longer than the text encoder reads"
    assert lengths_line(asked().json()) == [f"{said}: no worker"]
    connect("w", 80 * GIB)
    assert lengths_line(asked().json()) == [f"{said}: being worked out; ask again"]
    question = plans.take("w")
    assert question is not None
    plans.remember(question["digest"], {"plan": KNOWN})
    note = {"pointer": "/datasets/0/folder_path", "message": "captions of more tokens than ..."}
    said_of = (note["pointer"], note["message"])
    plans.remember(question["texts"], {"cut": [note]})
    plan = asked().json()
    assert lengths_line(plan) == []
    for answer in (plan, asked("/v1/jobs").json()):
        assert said_of in [(each["pointer"], each["message"]) for each in answer["warnings"]]
    (home / "datasets" / "colours" / "000.txt").write_text("another caption")  # another question, and not about memory
    assert lengths_line(asked().json()) == [f"{said}: being worked out; ask again"]
    question = plans.take("w")
    assert question is not None
    assert (question["digest"], bool(question["texts"])) == ("", True)
    plans.remember(question["texts"], {"cut": None})
    assert lengths_line(asked().json()) == [f"{said}: arch 'pocket' shows no limit"]


SAMPLING = {
    **KNOWN,
    "phase": "sampling",
    "parts": {"weights": 20 * GIB, "adapters": GIB, "activations": 9 * GIB, "caches": 0},
    "phases": {"encoding": 5 * GIB, "sampling": 30 * GIB},
    "trained_parameters": 0,
    "disk": {},
}


def test_a_sampling_job_is_judged_alike(asked_for_pictures: Any) -> None:
    connect("w", 24 * GIB)
    assert memory_line(asked_for_pictures("red").json()) == "memory: being worked out; ask again"
    question = plans.take("w")
    assert question is not None and question["spec"]["samples"][0]["prompt"] == "red"
    plans.remember(question["digest"], {"plan": {**SAMPLING, "fits_with": [{"change": {"model.low_vram": True}, "peak": GIB}]}})
    for path in ("/v1/jobs/validate", "/v1/jobs"):
        told = asked_for_pictures("blue", path=path).json()  # another word of the same length is no other question
        (problem,) = told["problems"] if path.endswith("validate") else told["errors"]
        assert problem["message"].startswith(
            "the job needs 30.0 GiB of memory while sampling (weights 20.0 GiB, adapters 1.0 GiB,"
        )
        assert problem["suggestion"] == "it would fit with model.low_vram: true (1.0 GiB)"
    for other in (("a" * 300,), ("red", "blue")):
        assert memory_line(asked_for_pictures(*other).json()).endswith("ask again")


def test_too_many_pictures_at_once_are_a_warning(asked_for_pictures: Any) -> None:
    connect("w", 24 * GIB)
    asked_for_pictures("red")
    question = plans.take("w")
    assert question is not None
    ways = [{"change": {"sample.batch_size": 2}, "peak": 20 * GIB}, {"change": {"model.quantize": True}, "peak": GIB}]
    plans.remember(question["digest"], {"plan": {**SAMPLING, "fits_with": ways}})
    plan = asked_for_pictures("red").json()
    assert plan["ok"] and plan["memory"]["parts"] == SAMPLING["parts"]
    (warning,) = plan["warnings"]
    assert warning["pointer"] == "/sample/batch_size" and warning["message"].endswith("24.0 GiB; it is run with 2 at once")
    assert "sample.batch_size: 2 (20.0 GiB)" in warning["suggestion"]


def test_where_no_change_is_known_to_help_general_advice_is_given(asked_for_pictures: Any) -> None:
    connect("w", 24 * GIB)
    asked_for_pictures("red")
    question = plans.take("w")
    assert question is not None
    plans.remember(question["digest"], {"plan": {**SAMPLING, "fits_with": []}})
    (problem,) = asked_for_pictures("red").json()["problems"]
    assert problem["suggestion"] == budget.NOTHING_HELPS  # all was tried for a device of this size
    plans.remember(question["digest"], {"plan": {**SAMPLING, "total": 8 * GIB, "fits_with": []}})
    (problem,) = asked_for_pictures("red").json()["problems"]
    assert "model.low_vram: true" in problem["suggestion"] and "train." not in problem["suggestion"]


def test_a_prediction_that_failed_refuses_nothing(asked: Any) -> None:
    connect("w", 8 * GIB)
    asked()
    question = plans.take("w")
    assert question is not None
    plans.remember(question["digest"], {"error": "ValueError: no"})
    plan = asked().json()
    assert plan["ok"] and memory_line(plan) == "memory: it could not be predicted: ValueError: no"


def test_what_the_job_s_own_run_would_meet_refuses_it(asked: Any) -> None:
    connect("w", 8 * GIB)
    asked()
    question = plans.take("w")
    assert question is not None
    plans.remember(question["digest"], {"error": "no layer's name contains 'x'", "hint": "name one", "refuses": True})
    plan = asked().json()
    assert not plan["ok"]
    assert plan["problems"] == [
        {"pointer": "", "message": "no layer's name contains 'x'", "suggestion": "name one", "misspelt": False}
    ]
    assert asked("/v1/jobs").status_code == 422


def test_a_post_uses_what_is_known_and_asks_nobody(asked: Any) -> None:
    connect("w", 80 * GIB)
    assert asked("/v1/jobs").status_code == 202
    assert plans.take("w") is None


def test_the_newest_question_comes_first_and_old_ones_are_forgotten(asked: Any) -> None:
    connect("w", 80 * GIB)
    for steps in range(1, 13):
        asked(**{"train.steps": steps})
    taken = [question["spec"]["train"]["steps"] for question in iter(lambda: plans.take("w"), None)]
    assert taken == [*range(12, 2, -1)]


def test_a_broker_that_is_down_is_no_fault_of_the_job(asked: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    connect("w", 80 * GIB)
    with monkeypatch.context() as patch:
        patch.setattr(plans.broker, "redis_url", lambda: "redis://127.0.0.1:1")
        patch.setattr(plans.broker, "client", plans.broker.client.__wrapped__)
        plan = asked().json()
    assert plan["ok"] and memory_line(plan) == "memory: the broker does not answer"


def test_other_weights_or_another_version_are_another_question(asked: Any, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = home / "models" / "w.safetensors"
    weights.parent.mkdir(parents=True, exist_ok=True)
    spec = {"model": {"name_or_path": weights.name}}
    seen = [plans.digest_of(spec, [])]
    for data in (b"one", b"others"):
        weights.write_bytes(data)
        seen.append(plans.digest_of(spec, []))
        assert plans.digest_of(spec, []) == seen[-1]
    matrix = {"checkpoints": [weights.name]}
    for more in ({"adapters": [{"path": weights.name, "weight": 1.0}]}, {"matrix": matrix}):
        named = {"model": {}, **more}
        before = plans.digest_of(named, [])
        weights.write_bytes(weights.read_bytes() + b"more")
        assert plans.digest_of(named, []) != before
    seen[-1] = plans.digest_of(spec, [])
    monkeypatch.setattr(plans, "version", lambda _: "another")
    seen.append(plans.digest_of(spec, []))
    assert len(set(seen)) == 4


def test_an_error_is_kept_for_two_minutes_and_a_silent_worker_waited_for_one(asked: Any) -> None:
    client = plans.broker.client()
    assert plans.ask("w", "d", {})
    assert 0 < client.ttl(plans.ASKED + "d") <= 60
    client.expire(plans.ASKED + "d", 5)
    plans.still_asked("d")
    assert 5 < client.ttl(plans.ASKED + "d") <= 60
    plans.remember("d", {"error": "no"})
    assert 0 < client.ttl(plans.ANSWERS + "d") <= 120
    plans.remember("d", {"plan": KNOWN})
    assert client.ttl(plans.ANSWERS + "d") > 86400
