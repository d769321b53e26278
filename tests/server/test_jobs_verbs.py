"""Looking at jobs and steering them: lists, changes, and the table of verbs by state."""

from typing import Any

import pytest

from server.store import jobs
from server.store.files import job_folder

PROBLEM = "application/problem+json"
ENDED = ("succeeded", "failed", "canceled")
ACTIVE = ("preparing", "running", "pausing", "canceling")


@pytest.fixture(autouse=True)
def dataset(pictures) -> None:
    pictures()


def refused(answer: Any, status: int = 409) -> str:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == PROBLEM
    return str(answer.json()["detail"])


def test_pages_of_the_list_join_without_gap_or_double(client, add) -> None:
    made = [add(name=f"job {number}") for number in range(7)]
    seen, cursor, sizes = [], "", []
    while cursor is not None:
        page = client.get(f"/v1/jobs?limit=3{cursor and '&cursor=' + cursor}").json()
        seen += [job["id"] for job in page["jobs"]]
        sizes.append(len(page["jobs"]))
        cursor = page["next_cursor"]
    assert seen == made[::-1]
    assert sizes == [3, 3, 1]


def test_a_page_that_is_exactly_full_is_the_last(client, add) -> None:
    for _ in range(3):
        add()
    assert client.get("/v1/jobs?limit=3").json()["next_cursor"] is None


def test_a_job_that_comes_while_one_pages_moves_nothing(client, add) -> None:
    made = [add() for _ in range(4)]
    first = client.get("/v1/jobs?limit=2").json()
    add()
    second = client.get(f"/v1/jobs?limit=2&cursor={first['next_cursor']}").json()
    assert [job["id"] for job in first["jobs"] + second["jobs"]] == made[::-1]


def test_the_list_is_filtered_by_status_kind_and_words(client, add, job_in) -> None:
    failed = job_in("failed")
    running = job_in("running")
    queued = add(name="Red_Apples 100%")

    def found(query: str) -> list[str]:
        return [job["id"] for job in client.get(f"/v1/jobs?{query}").json()["jobs"]]

    assert found("status=failed") == [failed]
    assert found("status=failed&status=running") == [running, failed]
    assert found("kind=train") == [queued, running, failed]
    assert found("kind=sample") == []
    assert found("q=apple") == [queued]
    assert found(f"q={running[-6:].lower()}") == [running]
    assert found("q=pocket&status=queued") == [queued]
    assert found("q=100%25") == [queued]
    assert found("q=d_A") == [queued]
    assert found("q=y_i") == []  # neither % nor _ is a wildcard
    assert found("q=nothing-like-it") == []


@pytest.mark.parametrize("query", ["status=zz", "limit=0", "limit=201", "limit=x", "cursor=-1", "cursor=x"])
def test_a_bad_query_is_refused(client, query) -> None:
    said = refused(client.get(f"/v1/jobs?{query}"), 422)
    assert said.startswith(f"/{query.split('=')[0]}")
    assert ": must be " in said


def test_queue_places_follow_priority_then_submission(client, add) -> None:
    first, second, third = add(), add(), add()
    assert client.patch(f"/v1/jobs/{third}", json={"priority": 5}).json()["queue_position"] == 1
    places = {job["id"]: job["queue_position"] for job in client.get("/v1/jobs").json()["jobs"]}
    assert places == {third: 1, first: 2, second: 3}
    client.post(f"/v1/jobs/{third}/cancel")
    places = {job["id"]: job["queue_position"] for job in client.get("/v1/jobs").json()["jobs"]}
    assert places == {third: None, first: 1, second: 2}


def test_name_priority_and_labels_change_one_by_one(client, add) -> None:
    path = f"/v1/jobs/{add()}"
    assert client.patch(path, json={"name": "größe"}).json()["name"] == "größe"
    assert client.patch(path, json={"labels": {"team": "a", "x": ""}}).json()["labels"] == {"team": "a", "x": ""}
    job = client.patch(path, json={"priority": -3}).json()
    assert (job["name"], job["labels"], job["priority"]) == ("größe", {"team": "a", "x": ""}, -3)
    assert client.patch(path, json={"labels": {}}).json()["labels"] == {}
    assert client.patch(path, json={}).json()["name"] == "größe"


BAD_CHANGES = [
    {"priority": 10**30}, {"priority": 1.5}, {"priority": "1"}, {"priority": True}, {"name": ""}, {"name": "x" * 121}, {"name": "a/b"},
    {"name": 3}, {"labels": {"a": 1}}, {"labels": []}, {"labels": {"a": None}}, {"labels": {"": "x"}}, {"labels": {"a": "x" * 1001}},
    {"labels": {str(n): "" for n in range(65)}}, {"status": "succeeded"}, {"spec": {}}, [], 3, None,
]  # fmt: skip


def test_a_bad_change_is_refused_and_changes_nothing(client, add) -> None:
    path = f"/v1/jobs/{add()}"
    before = client.get(path).json()
    for change in BAD_CHANGES:
        refused(client.patch(path, json=change), 422)
    for text in ('{"priority": NaN}', '{"name": "\\ud800"}', '{"labels": {"\\ud800": ""}}', "{", "priority=1"):
        refused(client.patch(path, content=text, headers={"Content-Type": "application/json"}), 422)
    assert client.get(path).json() == before


@pytest.mark.parametrize("status", ["queued", "paused", *ENDED])
def test_a_job_at_rest_is_deleted_and_its_files_only_on_demand(client, job_in, status) -> None:
    for query, kept in (("", True), ("?files=true", False)):
        job_id = job_in(status)
        job_folder(job_id).mkdir(parents=True, exist_ok=True)
        assert client.delete(f"/v1/jobs/{job_id}{query}").status_code == 204
        assert client.get(f"/v1/jobs/{job_id}").status_code == 404
        assert client.get(f"/v1/jobs/{job_id}/events").status_code == 404
        assert job_folder(job_id).exists() is kept


@pytest.mark.parametrize("status", ACTIVE)
def test_an_active_job_is_not_deleted(client, job_in, status) -> None:
    job_id = job_in(status)
    assert status in refused(client.delete(f"/v1/jobs/{job_id}?files=true"))
    assert client.get(f"/v1/jobs/{job_id}").json()["status"] == status


@pytest.mark.parametrize(
    ("status", "then"),
    [
        ("queued", "canceled"),
        ("paused", "canceled"),
        ("preparing", "canceling"),
        ("running", "canceling"),
        ("pausing", "canceling"),
        ("canceling", "canceling"),
    ],
)
def test_cancel_takes_what_has_not_ended(client, job_in, status, then) -> None:
    job_id = job_in(status)
    answer = client.post(f"/v1/jobs/{job_id}/cancel")
    assert (answer.status_code, answer.json()["status"]) == (202, then)
    assert (answer.json()["finished_at"] is not None) is (then == "canceled")


@pytest.mark.parametrize("status", ENDED)
def test_cancel_refuses_what_has_ended(client, job_in, status) -> None:
    job_id = job_in(status)
    before = client.get(f"/v1/jobs/{job_id}").json()
    assert (
        refused(client.post(f"/v1/jobs/{job_id}/cancel"))
        == f"job {job_id} is {status}; only a queued, paused or running job can be canceled"
    )
    assert client.get(f"/v1/jobs/{job_id}").json() == before


def test_clearing_the_queue_touches_no_running_job(client, add, job_in) -> None:
    running, done = job_in("running"), job_in("succeeded")
    waiting = [add(), add()]
    answer = client.post("/v1/jobs/cancel", json={"status": "queued"})
    assert answer.status_code == 200
    assert [(job["id"], job["status"]) for job in answer.json()["jobs"]] == [(job_id, "canceled") for job_id in waiting]
    assert (jobs.get(running).status, jobs.get(done).status) == ("running", "succeeded")
    assert client.post("/v1/jobs/cancel", json={"status": "queued"}).json()["jobs"] == []
    for body in ({"status": "running"}, {"status": ""}, {}, {"status": 1}, []):
        refused(client.post("/v1/jobs/cancel", json=body), 422)


@pytest.mark.parametrize("status", ["queued", *ACTIVE])
def test_resume_refuses_what_has_not_ended(client, job_in, status) -> None:
    job_id = job_in(status)
    assert (
        refused(client.post(f"/v1/jobs/{job_id}/resume"))
        == f"job {job_id} is {status}; only a paused or ended job can be resumed"
    )
    assert refused(client.post(f"/v1/jobs/{job_id}/resume", json={"train": {"steps": 9}})).startswith(f"job {job_id} is {status}")
    assert jobs.get(job_id).status == status


@pytest.mark.parametrize("status", ["paused", "failed", "canceled"])
def test_resume_queues_a_broken_off_job_again(client, job_in, status) -> None:
    job_id = job_in(status)
    answer = client.post(f"/v1/jobs/{job_id}/resume")
    job = answer.json()
    assert (answer.status_code, job["status"], job["error"], job["finished_at"], job["step"]) == (202, "queued", None, None, 3)
    again = jobs.claim_next("w", ["pocket"])
    assert again is not None
    assert (again.id, again.attempt) == (job_id, 2)


def test_resume_extends_a_succeeded_job_by_more_steps_only(client, job_in) -> None:
    job_id = job_in("succeeded", step=6)
    said = refused(client.post(f"/v1/jobs/{job_id}/resume"))
    assert said.startswith(f"job {job_id} has succeeded with all 6 steps; resume it with more")
    refused(client.post(f"/v1/jobs/{job_id}/resume", json={"train": {"steps": 6}}))
    job = client.post(f"/v1/jobs/{job_id}/resume", json={"train": {"steps": 9}, "name": "longer"}).json()
    assert (job["status"], job["step"], job["total_steps"], job["name"]) == ("queued", 6, 9, "longer")
    assert (job["spec"]["train"]["steps"], job["spec"]["train"]["lr"]) == (9, 1e-3)


@pytest.mark.parametrize(
    "patch", [{"model": {"dtype": "bf16"}, "network": {}}, {"network": {"linear": 4}}, {"model": {"name_or_path": "a/b"}}]
)
def test_resume_refuses_what_the_saved_weights_depend_on(client, job_in, patch) -> None:
    job_id = job_in("failed")
    assert "cannot change at resume" in refused(client.post(f"/v1/jobs/{job_id}/resume", json=patch))
    assert jobs.get(job_id).status == "failed"


def test_resume_refuses_a_patch_that_is_no_valid_job(client, job_in) -> None:
    job_id = job_in("failed")
    for patch, place in (
        ({"train": {"steps": 0}}, "/train/steps"),
        ({"train": {"stepz": 9}}, "/train/stepz"),
        ({"datasets": [{"folder_path": "nowhere"}]}, "/datasets/0/folder_path"),
        ([1], "/"),
        ([], "/"),
        (0, "/"),
    ):
        assert refused(client.post(f"/v1/jobs/{job_id}/resume", json=patch), 422).startswith(place)
    refused(client.post(f"/v1/jobs/{job_id}/resume", content="{", headers={"Content-Type": "application/json"}), 422)
    assert jobs.get(job_id).status == "failed"


def test_a_resumed_job_stands_at_the_end_of_the_queue(client, job_in, add) -> None:
    old = job_in("canceled")
    new = add()
    assert client.post(f"/v1/jobs/{old}/resume").json()["queue_position"] == 2
    assert client.get(f"/v1/jobs/{new}").json()["queue_position"] == 1
    assert [job["id"] for job in client.get("/v1/jobs").json()["jobs"]][-1] in (old, new)


def test_a_resume_with_a_patch_keeps_a_new_name(client, job_in) -> None:
    job_id = job_in("failed")
    assert client.patch(f"/v1/jobs/{job_id}", json={"name": "renamed"}).json()["spec"]["name"] == "renamed"
    job = client.post(f"/v1/jobs/{job_id}/resume", json={"train": {"steps": 9}}).json()
    assert (job["name"], job["spec"]["name"]) == ("renamed", "renamed")


def test_a_finished_matrix_goes_on_with_other_cells_and_not_with_the_same(client, home, an_adapter) -> None:
    spec = {
        "kind": "sample",
        "name": "m",
        "model": {"arch": "pocket", "name_or_path": "random"},
        "matrix": {"checkpoints": ["a.safetensors", "b.safetensors"], "weights": [1.0]},
        "samples": [{"prompt": "x"}],
    }
    (home / "models").mkdir(parents=True, exist_ok=True)
    for name in "abc":
        (home / "models" / f"{name}.safetensors").write_bytes(an_adapter)
    job_id = client.post("/v1/jobs", json=spec).json()["id"]
    job = jobs.claim_next("w", ["pocket"])
    jobs.tell(job_id, job.attempt, [], status="running", step=2)
    jobs.finish(job_id, job.attempt, "succeeded")
    path = f"/v1/jobs/{job_id}/resume"
    refused(client.post(path, json={"matrix": {"checkpoints": ["b.safetensors", "a.safetensors"]}}))
    patch = {"matrix": {"checkpoints": ["a.safetensors", "c.safetensors"]}}
    [change] = client.post(f"{path}?dry_run=true", json=patch).json()["changes"]
    assert change["effect"] == "new cells are made; those made stay"
    assert client.post(path, json=patch).json()["status"] == "queued"
