"""One Idempotency-Key makes one job, whoever asks how often at once, and over restarts."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

KEY = {"Idempotency-Key": "one-form"}


@pytest.fixture(autouse=True)
def dataset(pictures) -> None:
    pictures()


def stored(client: Any) -> list[str]:
    return [job["id"] for job in client.get("/v1/jobs?limit=200").json()["jobs"]]


def test_fifty_at_once_with_one_key_make_one_job(client, tiny_job) -> None:
    with ThreadPoolExecutor(50) as pool:
        answers = list(pool.map(lambda _: client.post("/v1/jobs", json=tiny_job(), headers=KEY), range(50)))
    assert {answer.status_code for answer in answers} == {202}
    [job_id] = {answer.json()["id"] for answer in answers}
    assert {answer.headers["location"] for answer in answers} == {f"/v1/jobs/{job_id}"}
    assert stored(client) == [job_id]
    assert [event["seq"] for event in client.get(f"/v1/jobs/{job_id}/events").json()["events"]] == [1]


def test_the_same_body_in_another_order_of_keys_is_the_same(client, tiny_job) -> None:
    job = tiny_job()
    first = client.post("/v1/jobs", json=job, headers=KEY).json()["id"]
    assert client.post("/v1/jobs", json=dict(reversed(job.items())), headers=KEY).json()["id"] == first


def test_another_body_under_the_key_is_a_conflict(client, tiny_job) -> None:
    first = client.post("/v1/jobs", json=tiny_job(), headers=KEY).json()["id"]
    answer = client.post("/v1/jobs", json=tiny_job(name="other"), headers=KEY)
    assert answer.status_code == 409
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["detail"] == f"Idempotency-Key 'one-form' was used for another body, which made job {first}"
    assert stored(client) == [first]


def test_key_and_conflict_hold_after_a_restart(app_again, tiny_job) -> None:
    with app_again() as client:
        first = client.post("/v1/jobs", json=tiny_job(), headers=KEY).json()["id"]
    with app_again() as client:
        assert client.post("/v1/jobs", json=tiny_job(), headers=KEY).json()["id"] == first
        assert client.post("/v1/jobs", json=tiny_job(name="other"), headers=KEY).status_code == 409
        assert stored(client) == [first]


def test_without_a_key_each_post_is_a_job(client, tiny_job) -> None:
    ids = [client.post("/v1/jobs", json=tiny_job()).json()["id"] for _ in range(2)]
    assert len(set(ids)) == 2
    assert stored(client) == ids[::-1]


def test_another_key_makes_another_job(client, tiny_job) -> None:
    ids = {
        client.post("/v1/jobs", json=tiny_job(), headers={"Idempotency-Key": key}).json()["id"]
        for key in ("a", "A", "ä".encode(), "a b")
    }
    assert len(ids) == 4


def test_a_refused_body_does_not_use_the_key_up(client, tiny_job) -> None:
    assert client.post("/v1/jobs", json=tiny_job(**{"train.steps": 0}), headers=KEY).status_code == 422
    assert client.post("/v1/jobs", json=tiny_job(), headers=KEY).status_code == 202


def test_a_repeated_post_is_answered_although_its_pictures_are_gone(client, tiny_job, home) -> None:
    first = client.post("/v1/jobs", json=tiny_job(), headers=KEY).json()["id"]
    (home / "datasets" / "colours").rename(home / "datasets" / "moved")
    again = client.post("/v1/jobs", json=tiny_job(), headers=KEY)
    assert (again.status_code, again.json()["id"]) == (202, first)


def test_a_deleted_job_gives_its_key_back(client, tiny_job) -> None:
    first = client.post("/v1/jobs", json=tiny_job(), headers=KEY).json()["id"]
    assert client.delete(f"/v1/jobs/{first}").status_code == 204
    second = client.post("/v1/jobs", json=tiny_job(), headers=KEY)
    assert second.status_code == 202
    assert second.json()["id"] != first


@pytest.mark.parametrize("key", ["", "x" * 256])
def test_a_key_without_sense_is_refused(client, tiny_job, key) -> None:
    assert client.post("/v1/jobs", json=tiny_job(), headers={"Idempotency-Key": key}).status_code == 422
    assert stored(client) == []
