"""Asking for a job: what is accepted, and what is refused with nothing left behind."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from server.store import files

PROBLEM = "application/problem+json"


@pytest.fixture
def post(client) -> Callable[[Any], Any]:
    """`post(job)`, or with a text as it is."""

    def send(body: Any, path: str = "/v1/jobs", **headers: str) -> Any:
        text = body if isinstance(body, str | bytes) else json.dumps(body)
        return client.post(path, content=text, headers={"Content-Type": "application/json", **headers})

    return send


def check_problem(answer: Any, status: int) -> dict[str, Any]:
    """The body of a refusal, whose form every error shares."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == PROBLEM
    body: dict[str, Any] = answer.json()
    assert set(body) == {"type", "title", "status", "detail", "errors"}
    assert body["status"] == status
    assert body["title"]
    assert body["detail"]
    assert all(set(error) == {"pointer", "message", "suggestion", "misspelt"} for error in body["errors"])
    return body


def check_nothing_stored(client: Any, home: Path) -> None:
    assert client.get("/v1/jobs").json() == {"jobs": [], "next_cursor": None}
    assert list((home / "jobs").glob("*")) == []


def test_a_job_is_queued_and_found_where_its_location_says(client, post, pictures, tiny_job) -> None:
    pictures()
    answer = post(tiny_job())
    assert answer.status_code == 202
    job = answer.json()
    assert answer.headers["location"] == f"/v1/jobs/{job['id']}" == job["links"]["self"]
    assert [warning["message"] for warning in job.pop("warnings")] == [
        "no worker is connected that can run this; the job waits until one is"
    ]
    assert client.get(answer.headers["location"]).json() == job
    shown = ("name", "kind", "arch", "status", "step", "total_steps", "progress", "attempt", "queue_position", "error", "loss")
    assert [job[key] for key in shown] == ["tiny", "train", "pocket", "queued", 0, 6, 0.0, 0, 1, None, None]
    assert job["spec"]["datasets"][0]["resolution"] == [32]  # written out in full
    for link in ("events", "metrics", "samples", "files", "log", "latest_sample"):
        assert client.get(job["links"][link]).status_code in (200, 204), link


def test_a_sampling_job_is_a_job_too(client, post) -> None:
    model = {"arch": "pocket", "name_or_path": "random"}
    job = post({"kind": "sample", "name": "three", "model": model, "samples": [{"prompt": word} for word in "abc"]}).json()
    assert (job["kind"], job["total_steps"]) == ("sample", 3)


BAD_JOBS: dict[str, tuple[dict[str, Any], str]] = {
    "unknown kind": ({"kind": "trian"}, "/kind"),
    "kind of another type": ({"kind": []}, "/kind"),
    "unknown arch": ({"model.arch": "pockte"}, "/model/arch"),
    "no model": ({"model": None}, "/model"),
    "unknown key": ({"surprise": 1}, "/surprise"),
    "misspelt key": ({"train.learing_rate": 1e-3}, "/train/learing_rate"),
    "text for a number": ({"train.steps": "16"}, "/train/steps"),
    "text for a switch": ({"train.gradient_checkpointing": "False"}, "/train/gradient_checkpointing"),
    "no steps": ({"train.steps": 0}, "/train/steps"),
    "huge number": ({"train.steps": 10**30}, "/train/steps"),
    "odd size": ({"sample.width": 1000}, "/sample/width"),
    "long warm-up": ({"train.lr_warmup_steps": 7}, "/train/lr_warmup_steps"),
    "half precision": ({"model.dtype": "bf16"}, "/model/dtype"),
    "missing weights": ({"model.name_or_path": "nowhere.safetensors"}, "/model/name_or_path"),
    "weights outside": ({"model.name_or_path": "/etc/passwd"}, "/model/name_or_path"),
    "weights of no job": ({"model.name_or_path": "job:j_1/a.safetensors"}, "/model/name_or_path"),
    "missing folder": ({"datasets": [{"folder_path": "nowhere"}]}, "/datasets/0/folder_path"),
    "folder outside": ({"datasets": [{"folder_path": "/etc"}]}, "/datasets/0/folder_path"),
    "folder above": ({"datasets": [{"folder_path": "../../../.."}]}, "/datasets/0/folder_path"),
    "link to outside": ({"datasets": [{"folder_path": "way_out"}]}, "/datasets/0/folder_path"),
    "empty folder": ({"datasets": [{"folder_path": "empty"}]}, "/datasets/0/folder_path"),
    "file for a folder": ({"datasets": [{"folder_path": "colours/000.png"}]}, "/datasets/0/folder_path"),
    "NUL in a path": ({"datasets": [{"folder_path": "a\0b"}]}, "/datasets/0/folder_path"),
    "long path": ({"datasets": [{"folder_path": "a" * 900}]}, "/datasets/0/folder_path"),
    "nobody's home": ({"datasets": [{"folder_path": "~nobody-here/x"}]}, "/datasets/0/folder_path"),
    "second dataset": ({"datasets": [{"folder_path": "colours"}, {"folder_path": "empty"}]}, "/datasets/1/folder_path"),
    "empty name": ({"name": ""}, "/name"),
    "huge name": ({"name": "x" * 100_000}, "/name"),
    "slash in the name": ({"name": "../../x"}, "/name"),
    "line break in the name": ({"name": "a\nb"}, "/name"),
    "blank name": ({"name": " "}, "/name"),
    "name of no width": ({"name": "\u200b\ufeff"}, "/name"),
}


def test_every_bad_job_is_refused_with_its_place_and_leaves_nothing(client, post, pictures, tiny_job, home) -> None:
    pictures()
    (home / "datasets" / "empty").mkdir()
    (home / "datasets" / "way_out").symlink_to("/etc")
    for name, (changes, pointer) in BAD_JOBS.items():
        body = check_problem(post(tiny_job(**changes)), 422)
        assert [error["pointer"] for error in body["errors"]] == [pointer], name
        assert body["detail"].startswith(f"{pointer}: "), name
    check_nothing_stored(client, home)


@pytest.mark.parametrize("text", ["[]", '"train"', "null", "7", ""])
def test_a_body_that_is_no_object_is_refused(client, post, home, text) -> None:
    body = check_problem(post(text), 422)
    assert body["errors"][0]["pointer"] == ""
    check_nothing_stored(client, home)


PATHS: list[tuple[Callable[[str], Any], str, str]] = [
    (files.dataset_folder, "a/" * 3000, "is no usable path: File name too long"),
    (files.dataset_folder, "nowhere ", "is missing; a blank stands at an end of 'nowhere '"),
    (files.data_file, "\nnowhere.png", r"is missing; a blank stands at an end of '\nnowhere.png'"),
    (files.weights_path, "a.safetensors\n", r"is missing; a blank stands at an end of 'a.safetensors\n'"),
    (files.weights_path, "https://huggingface.co/org/name", "is a web address; give org/name"),
    (files.weights_path, "https://huggingface.co/org/name/tree/main?x=1", "is a web address; give org/name"),
    (files.weights_path, "http://example.org/a", "is a web address; give a path, or org/name on the Hugging Face hub"),
]


@pytest.mark.parametrize(("find", "given", "said"), PATHS)
def test_a_path_of_no_file_is_refused_with_what_is_wrong_in_it(home, find, given, said) -> None:
    with pytest.raises(files.PathRefused) as refused:
        find(given)
    assert said in str(refused.value)
    assert "Errno" not in str(refused.value)


NOT_JSON = {
    "not JSON": "{kind: train}",
    "cut short": '{"kind": "train"',
    "NaN": '{"kind": "train", "train": {"lr": NaN}}',
    "Infinity": '{"kind": "train", "train": {"lr": -Infinity}}',
    "not UTF-8": b'{"kind": "\xff\xfe"}',
    "endless depth": "[" * 100_000,
    "a number of 5000 digits": '{"kind": ' + "9" * 5000 + "}",
    "deep enough for Python": "[" * 500 + "]" * 500,
    "form": "kind=train&name=x",
    "empty": " \n",
}
NOT_JSON_SAID = {
    "NaN": "the body is not valid JSON: NaN is not a JSON number",
    "not UTF-8": "the body is not UTF-8 text",
    "endless depth": "the body is JSON that is nested too deeply",
    "a number of 5000 digits": "the body is JSON with a number of too many digits",
    "deep enough for Python": "the body is JSON that is nested too deeply",
    "empty": "the body is empty; it must be a JSON object",
}


def test_a_body_that_is_not_json_is_refused(client, post, home) -> None:
    for name, text in NOT_JSON.items():
        body = check_problem(post(text), 422)
        assert body["errors"][0]["message"].startswith(NOT_JSON_SAID.get(name, "the body is not valid JSON: ")), name
    check_nothing_stored(client, home)


def test_a_doubled_key_is_refused_at_any_depth(client, post, home, tiny_job, pictures) -> None:
    pictures()
    text = json.dumps(tiny_job()).replace('"steps": 6', '"steps": 6, "steps": 7')
    body = check_problem(post(text), 422)
    [fault] = body["errors"]
    assert (fault["pointer"], fault["message"]) == ("/train/steps", "key 'steps' stands twice in one object")
    check_problem(post('{"\\ud800": 1, "\\ud800": 2}'), 422)
    check_nothing_stored(client, home)


def test_a_number_too_large_to_be_finite_is_refused(client, post, home, tiny_job, pictures) -> None:
    pictures()
    body = check_problem(post(json.dumps(tiny_job()).replace("0.001", "1e999")), 422)
    assert body["errors"][0] == {
        "pointer": "/train/lr",
        "message": "must be a finite number, not inf",
        "suggestion": None,
        "misspelt": False,
    }
    check_nothing_stored(client, home)


NO_TEXTS: dict[str, dict[str, Any]] = {
    "/name": {"name": "a\ud800"},
    "/network/only_if_contains/0": {"network": {"only_if_contains": ["\ud800"]}},
    "/sample/samples/1/prompt": {"sample": {"samples": [{"prompt": "a"}, {"prompt": "b\udcff"}]}},
    "/datasets/0/default_caption": {"datasets": [{"folder_path": "colours", "default_caption": "\ud800"}]},
    "/train": {"train": {"\ud800": 1}},
    "/trigger_word": {"trigger_word": "a\0b"},
    "/sample/neg": {"sample": {"neg": "a\x1b[2J"}},
}


@pytest.mark.parametrize("pointer", NO_TEXTS)
def test_half_a_surrogate_pair_or_a_control_character_is_refused_by_its_place(
    client, post, home, tiny_job, pictures, pointer
) -> None:
    pictures()
    for path in ("/v1/jobs", "/v1/jobs/validate"):
        answer = client.post(path, content=json.dumps({**tiny_job(), **NO_TEXTS[pointer]}))
        [fault] = check_problem(answer, 422)["errors"]
        assert fault["pointer"] == pointer
        assert ("holds U+00" if pointer in ("/trigger_word", "/sample/neg") else "holds half of a surrogate pair") in fault[
            "message"
        ]
    check_nothing_stored(client, home)


@pytest.mark.parametrize("name", ["größe 🍎", 'say "hi"', "--help", "a.b", "%s %2e", "<script>", "x" * 120])
def test_an_odd_name_is_kept_as_it_is(client, post, pictures, tiny_job, name) -> None:
    pictures()
    job = post(tiny_job(name=name)).json()
    assert client.get(f"/v1/jobs/{job['id']}").json()["name"] == name


def test_a_truncated_picture_among_good_ones_is_named_or_skipped(client, post, pictures, tiny_job, home) -> None:
    folder = pictures()
    path = folder / "002.png"
    path.write_bytes(path.read_bytes()[:60])
    body = check_problem(post(tiny_job()), 422)
    [error] = body["errors"]
    assert error["message"].startswith("unreadable pictures: 002.png (")
    assert error["suggestion"] == "repair or remove them, or set on_bad_file to skip"
    check_nothing_stored(client, home)
    assert post(tiny_job(datasets=[{"folder_path": "colours", "on_bad_file": "skip"}])).status_code == 202


def test_validate_tells_the_plan_and_stores_nothing(client, post, pictures, tiny_job, home) -> None:
    pictures()
    answer = post(tiny_job(), "/v1/jobs/validate")
    assert answer.status_code == 200
    plan = answer.json()
    assert (plan["ok"], plan["problems"]) == (True, [])
    [dataset] = plan["datasets"]
    assert (dataset["images"], dataset["captions_missing"], dataset["refused"]) == (4, 0, [])
    assert dataset["buckets"] == [{"width": 32, "height": 32, "images": 4, "frames": 1, "milliseconds": 0}]
    assert (plan["steps_per_epoch"], plan["epochs"]) == (2.0, 3.0)
    assert plan["workers"] == []
    assert plan["warnings"][0]["message"] == "no worker is connected that can run this; the job waits until one is"
    assert plan["spec"]["train"]["steps"] == 6
    check_nothing_stored(client, home)


def test_validate_answers_200_also_when_the_job_would_be_refused(post, tiny_job) -> None:
    for changes, pointer in (
        ({"train.steps": 0}, "/train/steps"),
        ({"model.arch": "x"}, "/model/arch"),
        ({}, "/datasets/0/folder_path"),
    ):
        answer = post(tiny_job(**changes), "/v1/jobs/validate")
        assert answer.status_code == 200
        assert answer.json()["ok"] is False
        assert [problem["pointer"] for problem in answer.json()["problems"]] == [pointer]


@pytest.mark.parametrize("text", ["[]", "{}", "{", "", '{"kind": 3}', "null"])
def test_validate_refuses_what_is_no_job_at_all(post, text) -> None:
    check_problem(post(text, "/v1/jobs/validate"), 422)


def test_unknown_places_answer_as_problems(client) -> None:
    for path in (
        "/v1/jobs/j_1",
        "/v1/jobs/j_1/events",
        "/v1/jobs/j_1/log",
        "/v1/jobs/j_1/samples/latest",
        "/v1/archs/x",
        "/v1/x",
    ):
        check_problem(client.get(path), 404)
    check_problem(client.put("/v1/jobs", json={}), 405)
    check_problem(client.post("/v1/jobs/j_1/cancel"), 404)
    check_problem(client.post("/v1/jobs/j_1/resume"), 404)
    check_problem(client.delete("/v1/jobs/j_1"), 404)


def test_numbers_beyond_the_database_are_refused(client, post, pictures, tiny_job) -> None:
    pictures()
    job = post(tiny_job()).json()["links"]
    for path in (
        "/v1/jobs?cursor=",
        "/v1/events?after=",
        *(f"{job[name]}?after=" for name in ("events", "samples", "metrics", "log")),
    ):
        check_problem(client.get(f"{path}{10**30}"), 422)
    check_problem(client.get(job["events"], headers={"Last-Event-ID": str(10**30)}), 422)
