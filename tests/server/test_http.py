"""What HTTP asks of every route: HEAD beside GET, and bodies of a bounded size."""

import json

import pytest

from server.api.http import LARGEST_BODY_BYTES


@pytest.mark.parametrize(
    "path", ["/v1/jobs", "/v1/archs", "/v1/workers", "/healthz", "/readyz", "/v1/schema/job", "/openapi.json"]
)
def test_head_answers_as_get_does_without_a_body(client, path) -> None:
    head, get = client.head(path), client.get(path)
    assert (head.status_code, head.headers["content-type"], head.content) == (get.status_code, get.headers["content-type"], b"")
    assert head.headers["content-length"] == str(len(get.content))


def test_head_of_files_and_of_what_is_missing(client, claimed, save) -> None:
    job = claimed()
    save(job, "weights", "a.bin", b"0123456789")
    head = client.head(f"/v1/jobs/{job.id}/files/a.bin")
    assert (head.status_code, head.headers["content-length"], head.content) == (200, "10", b"")
    assert client.head(f"/v1/jobs/{job.id}/files/b.bin").status_code == 404
    assert client.head(f"/v1/jobs/{job.id}/cancel").status_code in (404, 405)
    assert client.head("/v1/nothing").status_code == 404


@pytest.mark.parametrize("path", ["/v1/events", "/v1/jobs/{id}/events"])
def test_head_of_a_stream_ends(client, add, path) -> None:
    head = client.head(path.format(id=add()), headers={"Accept": "text/event-stream"})
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["content-type"].startswith("text/event-stream")


def test_the_description_lists_no_head(client) -> None:
    assert all("head" not in verbs for verbs in client.get("/openapi.json").json()["paths"].values())


@pytest.mark.parametrize("path", ["/v1/jobs", "/v1/jobs/validate", "/v1/session"])
@pytest.mark.parametrize("announced", [True, False], ids=["announced", "chunked"])
def test_a_body_above_the_limit_is_refused(client, path, announced) -> None:
    body = json.dumps({"kind": "x" * LARGEST_BODY_BYTES}).encode()
    parts = body if announced else iter([body[: len(body) // 2], body[len(body) // 2 :]])
    answer = client.post(path, content=parts, headers={"Content-Type": "application/json"})
    assert (answer.status_code, answer.headers["content-type"]) == (413, "application/problem+json")
    assert answer.json()["detail"] == "a body may have at most 8 MiB"


def test_a_body_at_the_limit_is_read(client) -> None:
    wrap = len(json.dumps({"kind": ""}))
    answer = client.post("/v1/jobs/validate", json={"kind": "x" * (LARGEST_BODY_BYTES - wrap - 2)})
    assert answer.status_code == 200
    assert answer.json()["ok"] is False
