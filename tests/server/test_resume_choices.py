"""A resume whose patch changes a choice, and one whose newest checkpoint is damaged."""

import json
from typing import Any

import pytest

LORA = {"type": "lora", "linear": 4, "linear_alpha": 4.0}


@pytest.fixture(autouse=True)
def dataset(pictures) -> None:
    pictures()


def dry(client: Any, job_id: str, patch: Any = None) -> Any:
    return client.post(f"/v1/jobs/{job_id}/resume?dry_run=true", json=patch)


def changes(plan: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    return {change["pointer"]: (change["before"], change["after"]) for change in plan["changes"]}


CHOICES: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, tuple[Any, Any]]]] = {
    "train.lr_scheduler constant": (
        {"train.lr_scheduler": "cosine", "train.lr_scheduler_params": {"min_lr_ratio": 0.1}},
        {"train": {"lr_scheduler": "constant"}},
        {"/train/lr_scheduler_params/min_lr_ratio": (0.1, 0.0)},
    ),
    "train.loss_type mse": (
        {"train.loss_type": "huber", "train.huber_c": 0.5}, {"train": {"loss_type": "mse"}}, {"/train/huber_c": (0.5, 0.01)}
    ),
    "train.ema_config.use_ema false": (
        {"train.ema_config": {"use_ema": True, "ema_decay": 0.5}},
        {"train": {"ema_config": {"use_ema": False}}},
        {"/train/ema_config/ema_decay": (0.5, 0.99)},
    ),
    "train.timestep_type one_step": (
        {"train.content_or_style": "style"}, {"train": {"timestep_type": "one_step"}}, {"/train/content_or_style": ("style", "balanced")}
    ),
    "model.layer_offloading false": (
        {"network": LORA, "model.layer_offloading": True, "model.layer_offloading_transformer_percent": 0.5},
        {"model": {"layer_offloading": False}},
        {"/model/layer_offloading_transformer_percent": (0.5, 1.0)},
    ),
}  # fmt: skip


@pytest.mark.parametrize("choice", CHOICES)
def test_a_choice_that_changes_takes_along_what_belonged_to_it_and_the_plan_says_so(client, rests, choice) -> None:
    given, patch, gone = CHOICES[choice]
    job_id = rests(**given)
    plan = dry(client, job_id, patch).json()
    assert (plan["ok"], plan["problems"]) == (True, [])
    found = changes(plan)
    assert {pointer: found[pointer] for pointer in gone} == gone
    assert len(found) == len(gone) + 1
    effects = {change["pointer"]: change["effect"] for change in plan["changes"]}
    said = f"back to its default, since it means nothing with {choice}"
    assert [effects[pointer] for pointer in gone] == [said] * len(gone)
    resumed = client.post(f"/v1/jobs/{job_id}/resume", json=patch)
    assert resumed.status_code == 202, resumed.text
    log = client.get(f"/v1/jobs/{job_id}/log").text
    for pointer, (old, _) in gone.items():
        assert f"{pointer[1:].replace('/', '.')} was {json.dumps(old)}: {said}" in log


def test_what_the_patch_itself_sets_beside_a_choice_is_refused_and_not_dropped(client, rests) -> None:
    job_id = rests(**{"train.lr_scheduler": "cosine", "train.lr_scheduler_params": {"min_lr_ratio": 0.1}})
    answer = dry(client, job_id, {"train": {"lr_scheduler": "constant", "lr_scheduler_params": {"min_lr_ratio": 0.2}}})
    assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (422, "/train/lr_scheduler_params/min_lr_ratio")


def test_an_option_of_both_choices_stays(client, rests) -> None:
    job_id = rests(**{"train.lr_scheduler": "cosine", "train.lr_scheduler_params": {"min_lr_ratio": 0.1}})
    assert set(changes(dry(client, job_id, {"train": {"lr_scheduler": "linear"}}).json())) == {"/train/lr_scheduler"}


@pytest.mark.parametrize("harm", ["changed", "gone"])
def test_a_dry_run_passes_over_the_damaged_checkpoint_that_a_run_would_pass_over(client, rests, home, harm) -> None:
    job_id = rests()
    [state] = home.glob(f"jobs/{job_id}/attempts/1/step_000000003/state.safetensors")
    assert dry(client, job_id).json()["goes_on_from"] == 3
    state.write_bytes(b"other") if harm == "changed" else state.unlink()
    plan = dry(client, job_id, {"train": {"steps": 2}}).json()
    assert (plan["ok"], plan["goes_on_from"]) == (True, 0)
    assert "step_000000003 is damaged and is passed over" in [warning["message"] for warning in plan["warnings"]]


def test_a_checkpoint_too_large_to_read_while_people_wait_is_named_as_not_checked(client, rests, monkeypatch) -> None:
    job_id = rests()
    monkeypatch.setattr("server.api.saved.READ_AT_ONCE_BYTES", 3)
    plan = dry(client, job_id).json()
    assert plan["goes_on_from"] == 3
    assert plan["not_checked"][0].startswith("checkpoint step_000000003: its 0 GB are read when the run begins")
