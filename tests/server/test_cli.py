"""The command line: a client whose every error is one readable line."""

import json
import os
import subprocess
import sys
from collections.abc import Callable

import pytest

from models import catalog
from server import client
from server.store import jobs
from server.store.settings import settings
from server.store.tables import Status

Run = Callable[..., tuple[int, str, str]]


def one_line(text: str) -> str:
    """The text of an error: one line without a traceback."""
    assert text.startswith("safelight: "), text
    assert text.count("\n") == 1, text
    assert "Traceback" not in text
    return text.removeprefix("safelight: ").strip()


def test_commands_without_a_server_say_so_in_one_line(safelight, tmp_path, tiny_job) -> None:
    (tmp_path / "job.json").write_text(json.dumps(tiny_job()))
    for command in (
        ["jobs"],
        ["show", "j_1"],
        ["cancel", "j_1"],
        ["resume", "j_1"],
        ["follow", "j_1"],
        ["follow", "j_1", "--json"],
        ["submit", str(tmp_path / "job.json")],
    ):
        code, out, err = safelight(*command)
        assert (code, out) == (1, "")
        assert one_line(err) == f"no server at {settings().url}; start one with 'safelight up'"


def test_a_real_process_shows_no_traceback(home, tmp_path) -> None:
    environment = {**os.environ, "SAFELIGHT_PORT": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "server.cli", "jobs"], env=environment, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert one_line(done.stderr).startswith("no server at http://127.0.0.1:1;")
    done = subprocess.run(
        [sys.executable, "-m", "server.cli", "--debug", "jobs"], env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1
    assert "Traceback" in done.stderr


@pytest.mark.parametrize(
    "setting",
    [
        ("SAFELIGHT_PORT", "abc", "must be a whole number"),
        ("SAFELIGHT_PORT", "99999", "must be at most 65535"),
        ("SAFELIGHT_LEASE_SECONDS", "-1", "must be more than 0"),
        ("SAFELIGHT_OFFLINE", "perhaps", "must be true or false"),
    ],
)
def test_a_setting_without_sense_is_named_in_one_line(safelight, monkeypatch, setting) -> None:
    monkeypatch.setenv(*setting[:2])
    code, _, err = safelight("jobs")
    assert code == 1
    assert one_line(err) == f"{setting[0]}={setting[1]}: {setting[2]}"


def test_archs_needs_no_server(safelight) -> None:
    code, out, _ = safelight("archs", "--json")
    assert code == 0
    [card] = [card for card in json.loads(out) if card["arch"] == "pocket"]
    assert (card["kind"], card["modality"]) == ("t2i", "image")
    assert "pocket" in safelight("archs")[1]
    code, _, err = safelight("tiny", "pockte", "somewhere")
    assert (code, one_line(err)) == (1, f"arch 'pockte' is unknown; known: {', '.join(catalog.archs())}")


YAML_JOB = """
kind: train
name: from yaml   # a comment
model: {arch: pocket, name_or_path: random, model_kwargs: {channels: [16, 32]}}
network: null
datasets:
  - folder_path: colours
train: {steps: 6, lr: 1e-4, batch_size: 2}
"""


def test_a_job_file_may_be_json_or_yaml_and_be_changed(safelight, server, tmp_path, tiny_job) -> None:
    (tmp_path / "job.json").write_text(json.dumps(tiny_job()))
    (tmp_path / "job.yaml").write_text("\ufeff" + YAML_JOB, encoding="utf-8")
    code, out, _ = safelight("submit", str(tmp_path / "job.json"), "--json")
    first = json.loads(out)
    assert (code, first["name"], first["status"]) == (0, "tiny", "queued")
    code, out, _ = safelight(
        "submit",
        str(tmp_path / "job.yaml"),
        "--json",
        "--set",
        "train.steps=50",
        "--set",
        "name=changed",
        "--set",
        "train.ema_config.use_ema=true",
    )
    job = json.loads(out)
    assert (job["name"], job["total_steps"]) == ("changed", 50)
    train = job["spec"]["train"]
    assert (train["lr"], train["batch_size"], train["ema_config"]["use_ema"]) == (1e-4, 2, True)
    assert [job["id"] for job in json.loads(safelight("jobs", "--json")[1])["jobs"]] == [job["id"], first["id"]]


def test_a_dry_run_stores_nothing(safelight, server, tmp_path) -> None:
    (tmp_path / "job.yaml").write_text(YAML_JOB)
    code, out, _ = safelight("submit", str(tmp_path / "job.yaml"), "--dry-run")
    assert (code, json.loads(out)["ok"]) == (0, True)
    code, out, _ = safelight("submit", str(tmp_path / "job.yaml"), "--dry-run", "--set", "train.steps=0")
    assert (code, json.loads(out)["problems"][0]["pointer"]) == (1, "/train/steps")
    assert json.loads(safelight("jobs", "--json")[1])["jobs"] == []


AI_TOOLKIT = "job: extension\nconfig: {name: mine, process: [{type: sd_trainer, train: {steps: 5}}]}\n"


def test_a_config_of_ai_toolkit_is_recognised_as_that(safelight, server, tmp_path) -> None:
    (tmp_path / "job.yaml").write_text(AI_TOOLKIT)
    for command in (["submit"], ["submit", "--dry-run"]):
        code, _, err = safelight(*command, str(tmp_path / "job.yaml"))
        assert code == 1
        assert one_line(err).startswith(
            "/: this is a config of ai-toolkit (job, config.process), which cannot be read yet; begin with"
        )


def test_a_missing_file_and_a_bad_change_are_named(safelight, tmp_path) -> None:
    assert one_line(safelight("submit", str(tmp_path / "no.json"))[2]) == f"{tmp_path / 'no.json'} is missing"
    (tmp_path / "job.json").write_text("{}")
    for change in ("train.steps", "=5", ""):
        assert one_line(safelight("submit", str(tmp_path / "job.json"), "--set", change)[2]).startswith(
            f"--set {change!r} is not KEY=VALUE"
        )


def test_changes_are_json_where_they_can_be() -> None:
    read = client.read_changes(
        ["train.steps=5", "train.lr=1e-4", "network=null", "name=a=b", 'labels={"a": 1}', "train.seed=x", "model.low=true"]
    )
    assert read == {
        "train": {"steps": 5, "lr": 1e-4, "seed": "x"},
        "network": None,
        "name": "a=b",
        "labels": {"a": 1},
        "model": {"low": True},
    }
    assert client.patched({"train": {"steps": 1, "lr": 2}}, {"train": {"steps": 5}}) == {"train": {"steps": 5, "lr": 2}}


def test_a_refusal_is_repeated_with_its_suggestion(safelight, server, tmp_path) -> None:
    (tmp_path / "job.yaml").write_text(YAML_JOB)
    code, _, err = safelight("submit", str(tmp_path / "job.yaml"), "--set", "train.learing_rate=1")
    assert code == 1
    assert one_line(err).startswith("/train/learing_rate: unknown key 'learing_rate'")
    assert one_line(err).endswith("(did you mean 'lr'?)")


def test_pause_ask_and_a_dry_run_of_a_resume(safelight, server, add) -> None:
    job_id = add()
    assert json.loads(safelight("pause", job_id, "--json")[1])["status"] == "paused"
    code, out, _ = safelight("resume", job_id, "--set", "train.steps=9", "--dry-run")
    plan = json.loads(out)
    assert (code, plan["goes_on_from"]) == (0, 0)
    assert [(change["pointer"], change["before"], change["after"]) for change in plan["changes"]] == [("/train/steps", 6, 9)]
    assert safelight("resume", job_id, "--set", "train.optimizer=sgd", "--dry-run")[0] == 1
    assert jobs.get(job_id).status == "paused"
    assert json.loads(safelight("resume", job_id, "--set", "train.steps=9", "--json")[1])["total_steps"] == 9
    for verb in ("sample", "checkpoint"):
        code, _, err = safelight(verb, job_id)
        assert (code, "is queued; only a running job can be asked for" in one_line(err)) == (1, True)
    assert jobs.claim_next("w", ["pocket"]) is not None
    for verb in ("sample", "checkpoint"):
        assert verb in json.loads(safelight(verb, job_id, "--json")[1])["asked"]


def test_show_cancel_and_resume(safelight, server, add) -> None:
    job_id = add()
    assert json.loads(safelight("show", job_id, "--json")[1])["id"] == job_id
    assert json.loads(safelight("cancel", job_id, "--json")[1])["status"] == "canceled"
    code, _, err = safelight("cancel", job_id)
    assert (code, one_line(err)) == (1, f"job {job_id} is canceled; only a queued, paused or running job can be canceled")
    resumed = json.loads(safelight("resume", job_id, "--set", "train.steps=9", "--json")[1])
    assert (resumed["status"], resumed["total_steps"]) == ("queued", 9)
    code, _, err = safelight("show", "j_none")
    assert (code, one_line(err)) == (1, "there is no job 'j_none'")


def test_words_of_users_are_shown_as_they_are(safelight, server, claimed, preview) -> None:
    job = claimed(name="[red]not [bold]markup")
    assert "[red]not [bold]markup" in safelight("show", job.id)[1]
    assert "[red]not" in safelight("jobs")[1]
    info = {"step": 1, "prompt": "a [/red] apple", "prompt_index": 0}
    jobs.tell(job.id, 1, [("sample", {"index": 1, **info})])
    jobs.finish(job.id, 1, Status.SUCCEEDED)
    code, out, _ = safelight("follow", job.id)
    assert code == 0
    assert "a [/red] apple" in out
    assert "succeeded after" in out


@pytest.mark.parametrize(("status", "code"), [("succeeded", 0), ("failed", 1), ("canceled", 1)])
def test_following_an_ended_job_tells_all_and_how_it_went(safelight, server, job_in, status, code) -> None:
    job_id = job_in(status)
    left, out, _ = safelight("follow", job_id, "--json")
    events = [json.loads(line) for line in out.splitlines()]
    assert left == code
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    assert events[-1]["data"]["status"] == status
    assert safelight("follow", job_id)[0] == code


def run_serve(**environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "server.cli", "serve"],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_a_bind_that_others_can_reach_needs_a_token(home) -> None:
    for host in ("0.0.0.0", "::", "192.0.2.1"):
        done = run_serve(SAFELIGHT_HOST=host)
        assert (done.returncode, done.stdout) == (1, "")
        assert one_line(done.stderr) == f"SAFELIGHT_HOST is {host}, which others can reach: set SAFELIGHT_TOKEN first"
    assert not (home / "safelight.db").exists()


def test_a_second_server_on_one_data_folder_is_refused(server, home) -> None:
    done = run_serve(SAFELIGHT_PORT="1")
    assert (done.returncode, done.stdout) == (1, "")
    assert one_line(done.stderr) == f"another server already uses {home}; stop it, or set SAFELIGHT_HOME to another folder"
    assert server.http.get("/readyz").status_code == 200
