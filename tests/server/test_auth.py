"""Who may talk to the server: the right Host, no foreign page, and the token where one is set."""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from sqlmodel import select

from server.auth import COOKIE
from server.store import jobs
from server.store.engine import reading, writing
from server.store.tables import Session

TOKEN = "correct horse battery staple 🐎"
BEARER = {"Authorization": f"Bearer {TOKEN}".encode()}
OPEN = {("get", "/healthz"), ("get", "/readyz"), ("post", "/v1/session"), ("delete", "/v1/session")}
PROBLEM = "application/problem+json"


@pytest.fixture
def guarded(home, monkeypatch, app_again) -> Iterator[Any]:
    """A server that wants the token."""
    monkeypatch.setenv("SAFELIGHT_TOKEN", TOKEN)
    with app_again() as client:
        yield client


def routes(client: Any) -> list[tuple[str, str]]:
    """(verb, path with its parameters filled) of every route that the API describes."""
    described = client.app.openapi()["paths"]
    return [(verb, re.sub(r"\{[^}]*\}", "x", path)) for path, verbs in described.items() for verb in verbs]


def test_every_route_but_a_few_wants_the_token(guarded) -> None:
    found = routes(guarded)
    assert set(found) >= OPEN
    assert len(found) > 20
    for verb, path in found:
        answer = guarded.request(verb, path)
        if (verb, path) in OPEN:
            assert answer.status_code != 401 or path == "/v1/session", path
        else:
            assert (answer.status_code, answer.headers["content-type"]) == (401, PROBLEM), path


def test_the_description_of_the_api_wants_the_token_and_the_page_does_not(guarded) -> None:
    assert guarded.get("/openapi.json").status_code == 401
    assert guarded.get("/openapi.json", headers=BEARER).status_code == 200
    assert guarded.get("/").status_code in (200, 404)  # 404 where no page was built


@pytest.mark.parametrize("path", ["/v1/jobs", "/v1//jobs", "/v1/jobs/", "/v1", "/v1/nothing", "/%76%31/jobs", "/v1/%6Aobs"])
def test_no_spelling_of_a_path_gets_around_the_token(guarded, path) -> None:
    assert guarded.get(path).status_code == 401


@pytest.mark.parametrize("host", ["127.0.0.1/healthz?", "127.0.0.1/v1/session#", "127.0.0.1:8765/x?", "127.0.0.1/healthz#"])
def test_no_path_in_the_host_gets_around_the_token(guarded, host) -> None:
    answer = guarded.get("/v1/jobs", headers={"Host": host})
    assert (answer.status_code, answer.json()["title"]) == (403, "Host not allowed")


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER"])
def test_the_token_opens_the_api(guarded, scheme) -> None:
    assert guarded.get("/v1/jobs", headers={"Authorization": f"{scheme} {TOKEN}".encode()}).status_code == 200


@pytest.mark.parametrize(
    "given",
    [
        b"",
        b"Bearer",
        b"Bearer ",
        b"Bearer wrong",
        b"Basic " + TOKEN.encode(),
        TOKEN.encode(),
        b"Bearer " + TOKEN.encode()[:-1],
        b"Bearer \xff",
    ],
)
def test_anything_else_does_not(guarded, given) -> None:
    assert guarded.get("/v1/jobs", headers={"Authorization": given}).status_code == 401


def test_signing_in_gives_a_cookie_that_is_not_the_token_and_signing_out_ends_it(guarded) -> None:
    answer = guarded.post("/v1/session", json={"token": TOKEN})
    assert (answer.status_code, answer.content) == (204, b"")
    cookie = answer.headers["set-cookie"]
    parts = {part.strip().lower() for part in cookie.split(";")}
    assert {"httponly", "samesite=strict", "path=/"} <= parts
    value = guarded.cookies[COOKIE]
    assert len(value) >= 32
    assert TOKEN not in cookie
    with reading() as session:
        assert session.get(Session, value) is None  # only its digest is kept
    assert guarded.get("/v1/jobs").status_code == 200
    assert guarded.delete("/v1/session").status_code == 204
    assert COOKIE not in guarded.cookies
    guarded.cookies.set(COOKIE, value)
    assert guarded.get("/v1/jobs").status_code == 401


def test_two_sessions_end_apart(guarded) -> None:
    values = []
    for _ in range(2):
        guarded.cookies.clear()
        guarded.post("/v1/session", json={"token": TOKEN})
        values.append(guarded.cookies[COOKIE])
    assert values[0] != values[1]
    guarded.delete("/v1/session")
    guarded.cookies.set(COOKIE, values[0])
    assert guarded.get("/v1/jobs").status_code == 200


@pytest.mark.parametrize(
    "body",
    [{"token": "wrong"}, {"token": ""}, {}, {"token": 1}, {"token": None}, [], {"token": "\ud800"}, {"token": "x" * 10001}],
)
def test_a_wrong_token_gives_no_session(guarded, body) -> None:
    answer = guarded.post("/v1/session", content=json.dumps(body), headers={"Content-Type": "application/json"})
    assert answer.status_code in (401, 422)
    assert answer.headers["content-type"] == PROBLEM
    assert "set-cookie" not in answer.headers


@pytest.mark.parametrize("value", ["", "wrong", TOKEN.encode().hex()])
def test_a_made_up_cookie_opens_nothing(guarded, value) -> None:
    guarded.cookies.set(COOKIE, value)
    assert guarded.get("/v1/jobs").status_code == 401


def test_a_session_ends_by_itself(guarded) -> None:
    guarded.post("/v1/session", json={"token": TOKEN})
    assert guarded.get("/v1/jobs").status_code == 200
    with writing() as session:
        for row in session.exec(select(Session)):
            row.expires_at = "2020-01-01T00:00:00.000Z"
    assert guarded.get("/v1/jobs").status_code == 401


def test_a_session_lives_over_a_restart(home, monkeypatch, app_again) -> None:
    monkeypatch.setenv("SAFELIGHT_TOKEN", TOKEN)
    with app_again() as client:
        client.post("/v1/session", json={"token": TOKEN})
        value = client.cookies[COOKIE]
    with app_again() as client:
        client.cookies.set(COOKIE, value)
        assert client.get("/v1/jobs").status_code == 200


def test_without_a_token_nobody_signs_in(client) -> None:
    answer = client.post("/v1/session", json={"token": "anything"})
    assert (answer.status_code, answer.headers.get("set-cookie")) == (204, None)
    assert client.get("/v1/jobs").status_code == 200


@pytest.mark.parametrize(
    "host", ["127.0.0.1:8765", "localhost", "LOCALHOST:1", "[::1]", "[::1]:8765", "mine.example", "mine.example:443"]
)
def test_a_host_of_ours_is_served(home, monkeypatch, app_again, host) -> None:
    monkeypatch.setenv("SAFELIGHT_ALLOWED_HOSTS", "mine.example, other.example")
    with app_again() as client:
        assert client.get("/v1/jobs", headers={"Host": host}).status_code == 200


BAD_HOSTS = [
    "evil.example", "evil.example:8765", "127.0.0.1.evil.example", "127.0.0.1@evil.example", "evil.example@127.0.0.1", "", "localhost.",
    "[::1", "::1", "[::2]", "127.0.0.1:x", "127.0.0.1:8765:1", "127.0.0.1 ", "0.0.0.0", "169.254.169.254", "127.0.0.1,evil.example",
]  # fmt: skip


def test_any_other_host_is_refused(client) -> None:
    for host in BAD_HOSTS:
        for path in ("/v1/jobs", "/healthz", "/"):
            answer = client.get(path, headers={"Host": host})
            assert (answer.status_code, answer.headers["content-type"]) == (403, PROBLEM), host


@pytest.mark.parametrize(
    ("host", "origin"),
    [
        ("127.0.0.1:8765", "http://127.0.0.1:8765"),
        ("localhost", "http://localhost"),
        ("localhost", "http://localhost:80"),
        ("localhost:443", "https://localhost"),
        ("[::1]:8765", "http://[::1]:8765"),
        ("127.0.0.1:8765", None),
    ],
)
def test_our_own_page_may_call(client, host, origin) -> None:
    headers = {"Host": host, **({"Origin": origin} if origin else {})}
    assert client.post("/v1/jobs/cancel", json={"status": "queued"}, headers=headers).status_code == 200


BAD_ORIGINS = [
    "null", "", "https://evil.example", "http://127.0.0.1", "http://127.0.0.1:8766", "http://localhost:8765", "http://127.0.0.1:8765.evil.example",
    "http://evil.example#127.0.0.1:8765", "http://x@127.0.0.1:8765", "http://127.0.0.1:x", "http://[::1", "file://", "127.0.0.1:8765",
    "ftp://127.0.0.1:8765", "chrome-extension://abc", "http://127.0.0.1:8765/", "http://",
]  # fmt: skip


def test_a_foreign_page_may_not_even_look(client, add) -> None:
    job_id = add()
    for origin in BAD_ORIGINS:
        for verb, path in (
            ("GET", "/v1/jobs"),
            ("POST", f"/v1/jobs/{job_id}/cancel"),
            ("POST", "/v1/session"),
            ("DELETE", f"/v1/jobs/{job_id}"),
        ):
            answer = client.request(verb, path, headers={"Origin": origin})
            assert (answer.status_code, answer.json()["title"]) == (403, "Origin not allowed"), origin
    assert jobs.get(job_id).status == "queued"


def test_no_reply_may_be_sniffed(guarded, monkeypatch) -> None:
    def broken(*_: Any) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr("server.store.verbs.saved_steps", broken)
    asked = {
        200: ("/healthz", BEARER), 401: ("/v1/jobs", {}), 403: ("/v1/jobs", {"Host": "evil.example"}),
        404: ("/v1/nothing", BEARER), 422: ("/v1/jobs?limit=0", BEARER), 500: ("/v1/jobs", BEARER),
    }  # fmt: skip
    for status, (path, headers) in asked.items():
        answer = guarded.get(path, headers=headers)
        assert answer.status_code == status
        assert answer.headers.get_list("x-content-type-options") == ["nosniff"], status
        assert "a bug" not in answer.text
