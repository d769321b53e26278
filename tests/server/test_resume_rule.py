"""The rule for going on with an edited job, as its dry run shows it and as the resume keeps it."""

import shutil
from typing import Any

import pytest

from server.store import jobs, plans, workers
from server.store.tables import Status, Worker

LORA = {"type": "lora", "linear": 4, "linear_alpha": 4.0}


@pytest.fixture(autouse=True)
def dataset(pictures) -> None:
    pictures()


def dry(client: Any, job_id: str, patch: Any = None) -> Any:
    return client.post(f"/v1/jobs/{job_id}/resume?dry_run=true", json=patch)


def changes(plan: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    return {change["pointer"]: (change["before"], change["after"]) for change in plan["changes"]}


def test_a_dry_run_says_what_changes_and_from_where_and_stores_nothing(client, rests) -> None:
    job_id = rests("canceled")
    before = client.get(f"/v1/jobs/{job_id}").json()
    answer = dry(client, job_id, {"name": "longer", "train": {"steps": 12, "lr": 0.5}, "sample": {"sample_every": 3}})
    assert answer.status_code == 200
    plan = answer.json()
    assert (plan["ok"], plan["goes_on_from"], plan["problems"]) == (True, 3, [])
    assert changes(plan) == {"/name": ("tiny", "longer"), "/train/steps": (6, 12), "/train/lr": (0.001, 0.5)}
    assert plan["spec"]["train"]["steps"] == 12
    effects = {change["pointer"]: change["effect"] for change in plan["changes"]}
    assert "there is no second warm-up" in effects["/train/steps"]
    assert effects["/train/lr"].startswith("from step 4 on the rate is what the schedule gives")
    assert client.get(f"/v1/jobs/{job_id}").json() == before


def test_without_a_patch_nothing_changes(client, rests) -> None:
    plan = dry(client, rests("failed", bundle=0)).json()
    assert (plan["ok"], plan["changes"], plan["goes_on_from"]) == (True, [], 0)


def test_data_may_change_and_the_plan_says_how_order_follows(client, rests, pictures) -> None:
    pictures("more", 3)
    both = [{"folder_path": "colours", "num_repeats": 2}, {"folder_path": "more"}]
    plan = dry(client, rests(), {"datasets": both}).json()
    found = changes(plan)
    assert found["/datasets/0/num_repeats"] == (1, 2)
    assert found["/datasets/1"][0] is None
    assert found["/datasets/1"][1]["folder_path"] == "more"
    assert {change["effect"] for change in plan["changes"]} == {
        "from step 4 on pictures come in the new list's order, whichever were seen before"
    }


FIXED = [
    ({"model": {"name_or_path": "a/b"}}, "/model/name_or_path", "this model"),
    ({"model": {"model_kwargs": {"channels": [32, 32]}}}, "/model/model_kwargs/channels", "this model"),
    ({"network": {**LORA, "linear": 8}}, "/network/linear", "this adapter"),
    ({"network": {**LORA, "dropout": 0.5}}, "/network/dropout", "this adapter"),
    ({"train": {"optimizer": "sgd"}}, "/train/optimizer", "this optimizer"),
    ({"network": {"type": "lokr"}}, "/network/type", "this adapter"),
    ({"train": {"ema_config": {"use_ema": True}}}, "/train/ema_config/use_ema", "begin with the run"),
    ({"train": {"seed": 7}}, "/train/seed", "the frozen weights under the adapter"),
]


@pytest.mark.parametrize(("patch", "pointer", "reason"), FIXED, ids=[pointer for _, pointer, _ in FIXED])
def test_what_the_saved_state_depends_on_cannot_change(client, rests, patch, pointer, reason) -> None:
    job_id = rests(network={**LORA, "dropout": 0.1}, **{"train.optimizer_params": {"beta1": 0.8}})
    plan = dry(client, job_id, patch).json()
    assert plan["ok"] is False
    assert (plan["problems"][0]["pointer"], reason in plan["problems"][0]["message"]) == (pointer, True)
    refused = client.post(f"/v1/jobs/{job_id}/resume", json=patch)
    assert refused.status_code == 409
    assert refused.json()["detail"].startswith(f"'{pointer}' cannot change at resume: ")
    assert jobs.get(job_id).status == "canceled"


def test_a_full_fine_tune_may_change_its_seed_and_an_adapter_cannot_be_added(client, rests) -> None:
    job_id = rests()
    assert dry(client, job_id, {"train": {"seed": 7}}).json()["ok"] is True
    assert client.post(f"/v1/jobs/{job_id}/resume", json={"network": LORA}).status_code == 409


def test_memory_options_may_change_since_they_leave_the_numbers_alone(client, rests) -> None:
    patch = {"model": {"low_vram": True}, "train": {"gradient_checkpointing": True}}
    plan = dry(client, rests("failed"), patch).json()
    assert (plan["ok"], set(changes(plan))) == (True, {"/model/low_vram", "/train/gradient_checkpointing"})
    effects = {change["pointer"]: change["effect"] for change in plan["changes"]}
    assert effects["/train/gradient_checkpointing"] == "memory and speed from now on; the numbers stay the same"


def test_fewer_steps_than_are_done_are_refused(client, rests) -> None:
    job_id = rests()
    for answer in (
        dry(client, job_id, {"train": {"steps": 2}}),
        client.post(f"/v1/jobs/{job_id}/resume", json={"train": {"steps": 2}}),
    ):
        body = answer.json()
        problem = body["problems"][0] if answer.status_code == 200 else body["errors"][0]
        assert (problem["pointer"], problem["message"]) == ("/train/steps", "2 steps are fewer than the 3 that are done")
    assert answer.status_code == 422
    assert client.post(f"/v1/jobs/{job_id}/resume", json={"train": {"steps": 3}}).status_code == 202


def test_a_dry_run_needs_a_job_that_could_be_resumed(client, job_in) -> None:
    job_id = job_in("running")
    assert dry(client, job_id).status_code == 409
    assert dry(client, job_id, {"train": {"steps": 0}}).json()["detail"].startswith(f"job {job_id} is running")
    assert dry(client, job_in("failed"), {"train": {"steps": 0}}).status_code == 422
    assert dry(client, job_in("succeeded", step=6), {"name": "same"}).status_code == 409
    assert dry(client, "j_none").status_code == 404


def test_totals_after_each_extension_agree(client, claimed) -> None:
    job = claimed(**{"train.steps": 6})
    for total in (6, 12, 18):
        jobs.tell(job.id, job.attempt, [], step=total)
        jobs.finish(job.id, job.attempt, Status.SUCCEEDED)
        shown = client.get(f"/v1/jobs/{job.id}").json()
        assert (shown["step"], shown["total_steps"], shown["progress"]) == (total, total, 1.0)
        shown = client.post(f"/v1/jobs/{job.id}/resume", json={"train": {"steps": total + 6}}).json()
        assert (shown["step"], shown["total_steps"]) == (total, total + 6)
        job = jobs.claim_next("w", ["pocket"])


@pytest.mark.parametrize(
    ("before", "after", "pointer"),
    [
        (None, {"fraction": 0.25}, "/validation"),
        ({"fraction": 0.25}, {"fraction": 0.5}, "/validation/fraction"),
    ],
)
def test_pictures_that_were_trained_are_not_held_out_later(client, rests, before, after, pointer) -> None:
    more = {} if before is None else {"validation": before}
    job_id = rests(**more)
    plan = dry(client, job_id, {"validation": after}).json()
    assert [problem["pointer"] for problem in plan["problems"]] == [pointer]
    refused = client.post(f"/v1/jobs/{job_id}/resume", json={"validation": after})
    assert (refused.status_code, "would be held out" in refused.json()["detail"]) == (409, True)


VALIDATION = {"validation": {"dataset": {"folder_path": "two"}}, "train": {"steps": 12}}


def test_a_validation_set_of_files_that_were_trained_is_refused(client, rests, home) -> None:
    shutil.copytree(home / "datasets" / "colours", home / "datasets" / "two")
    job_id = rests("succeeded", step=6, bundle=6)
    plan = dry(client, job_id, VALIDATION).json()
    assert plan["problems"][0]["pointer"] == "/validation"
    refused = client.post(f"/v1/jobs/{job_id}/resume", json=VALIDATION)
    assert (refused.status_code, "would be held out" in refused.json()["detail"]) == (409, True)
    assert dry(client, rests(bundle=0), VALIDATION).json()["changes"]  # nothing is trained yet


def test_a_validation_set_is_compared_with_what_the_job_trained_until_now(client, rests, pictures, home) -> None:
    pictures("two", 3)
    job_id = rests(datasets=[{"folder_path": "colours"}, {"folder_path": "two"}])
    moved = {**VALIDATION, "datasets": [{"folder_path": "colours"}]}
    assert client.post(f"/v1/jobs/{job_id}/resume", json=moved).status_code == 409


def test_a_validation_set_of_new_files_may_come_later(client, rests, pictures, home, monkeypatch) -> None:
    pictures("two", 4, size=48)  # other bytes
    plan = dry(client, rests(), VALIDATION).json()
    assert (plan["ok"], [each["pointer"] for each in plan["warnings"]]) == (True, [""])  # no worker
    pictures("three", 4, size=40)
    monkeypatch.setattr("server.api.heldout.DECODED_AT_SUBMIT", 0)
    unknown = {"validation": {"dataset": {"folder_path": "three"}}}
    plan = dry(client, rests(), unknown).json()
    assert plan["ok"] is True
    assert "pictures that were trained may be among these" in plan["warnings"][1]["message"]


def test_a_dry_run_asks_a_worker_for_the_memory(client, rests, monkeypatch) -> None:
    monkeypatch.setattr(plans, "answer", lambda _: None)
    asked: list[dict[str, Any]] = []
    monkeypatch.setattr(plans, "ask", lambda *of: asked.append(of[2]) or True)
    worker = Worker(id="w", host="h", device="cuda:0", pid=1, archs=["pocket"], memory_total=1, seen_at="2026-01-01T00:00:00Z")
    workers.register(worker)
    plan = dry(client, rests("failed"), {"train": {"batch_size": 1}}).json()
    assert "memory: being worked out; ask again" in plan["not_checked"]
    assert [spec["train"]["batch_size"] for spec in asked] == [1]


def test_a_job_says_what_is_saved(client, rests) -> None:
    saved, lost = rests("paused", bundle=3, step=4), rests("paused", bundle=0, step=4)
    for job_id, step in ((saved, 3), (lost, 0)):
        shown = client.get(f"/v1/jobs/{job_id}").json()
        assert (shown["step"], shown["saved_step"]) == (4, step)
    listed = {job["id"]: job["saved_step"] for job in client.get("/v1/jobs").json()["jobs"]}
    assert listed == {saved: 3, lost: 0}


def test_before_a_step_is_done_or_without_a_share_validation_may_change(client, rests) -> None:
    assert dry(client, rests(bundle=0), {"validation": {"fraction": 0.25}}).json()["ok"]
    job_id = rests(validation={"fraction": 0.25})
    assert dry(client, job_id, {"validation": {"every": 7}}).json()["ok"]
    assert dry(client, job_id, {"validation": None}).json()["ok"]


def test_low_vram_says_that_previews_may_differ(client, rests) -> None:
    (change,) = dry(client, rests(), {"model": {"low_vram": True}}).json()["changes"]
    assert "previews' pixels may differ" in change["effect"]


def test_the_weights_an_adapter_began_with_are_needed_only_by_a_run_that_begins(client, rests) -> None:
    network = {**LORA, "pretrained_lora_path": "gone.safetensors"}
    assert dry(client, rests(network=network), {"train": {"steps": 12}}).json()["ok"] is True
    plan = dry(client, rests(network=network, bundle=0), {"train": {"steps": 12}}).json()
    assert [problem["pointer"] for problem in plan["problems"]] == ["/network/pretrained_lora_path"]
