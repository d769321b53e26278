"""Streams over a real server: live, resumable, and complete over a restart."""

import json
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from server.store import broker, events, jobs, verbs
from server.store.engine import reading
from server.store.tables import Status

NUM_EVENTS = 10_000


def stream(server: Any, path: str, last: str | None = None) -> Iterator[dict[str, str]]:
    """The messages of one connection, as {"id", "event", "data"}, until it ends."""
    headers = {"Accept": "text/event-stream", **({"Last-Event-ID": last} if last is not None else {})}
    message: dict[str, str] = {}
    with (
        httpx.Client(base_url=server.http.base_url, timeout=60, trust_env=False) as http,
        http.stream("GET", path, headers=headers) as answer,
    ):
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        for line in answer.iter_lines():
            field, _, value = line.partition(": ")
            if field in ("id", "event", "data"):
                message[field] = value
            elif not line and message:
                yield message
                message = {}


class Follower(threading.Thread):
    """A browser: reads until the end, and goes on from the last id when the connection breaks."""

    def __init__(self, server: Any, path: str) -> None:
        super().__init__(daemon=True)
        self.server, self.path = server, path
        self.seen: list[dict[str, str]] = []
        self.num_breaks = self.num_cut_off = 0
        self.closed = threading.Event()
        self.start()

    def run(self) -> None:
        last = None
        while not self.closed.wait(0.02):
            try:
                for message in stream(self.server, self.path, last):
                    self.seen.append(message)
                    if message["event"] == "end":
                        return
                    last = message["id"]
            except httpx.HTTPError:
                self.num_cut_off += 1
            self.num_breaks += 1

    def ids(self) -> list[int]:
        return [int(message["id"]) for message in self.seen if "id" in message]


@pytest.fixture
def follow(server) -> Iterator[Callable[[str], Follower]]:
    """`follow(path)` opens a stream that is read in the background."""
    started: list[Follower] = []

    def start(path: str) -> Follower:
        started.append(Follower(server, path))
        return started[-1]

    yield start
    for each in started:
        each.closed.set()
    server.stop()
    for each in started:
        each.join(60)


@pytest.fixture
def server(home, stack) -> Any:
    """`safelight serve`; this process stands for its worker."""
    return stack("serve", SAFELIGHT_LEASE_SECONDS="600")


def test_a_stream_goes_on_from_last_event_id_and_ends_after_the_job(server, claimed) -> None:
    job = claimed()
    jobs.tell(job.id, 1, [("log", {"level": "INFO", "message": f"größe {number}"}) for number in range(700)])
    jobs.finish(job.id, 1, Status.SUCCEEDED)
    path = f"/v1/jobs/{job.id}/events"
    whole = list(stream(server, path))
    assert [message.get("id") for message in whole] == [*(str(number) for number in range(1, 705)), None]
    assert [message["event"] for message in whole[:4]] == ["status", "worker", "status", "log"]
    assert json.loads(whole[3]["data"])["data"]["message"] == "größe 0"
    assert (whole[-1]["event"], whole[-2]["event"], json.loads(whole[-1]["data"])) == ("end", "status", {"last_seq": 704})
    assert list(stream(server, path, "700")) == whole[700:]
    assert list(stream(server, f"{path}?after=700")) == whole[700:]
    assert [message["event"] for message in stream(server, path, "704")] == ["end"]


def test_a_stream_is_live(server, claimed, preview, follow, until) -> None:
    job = claimed()
    follower = follow(f"/v1/jobs/{job.id}/events")
    until(lambda: follower.ids() == [1, 2, 3], "the stream does not begin")
    preview(job, 2)
    until(lambda: follower.ids() == [1, 2, 3, 4], "a preview is not seen although no bell rang")
    sample = json.loads(follower.seen[-1]["data"])
    assert (sample["type"], sample["data"]["url"]) == ("sample", f"/v1/jobs/{job.id}/samples/1")
    assert server.http.get(sample["data"]["thumbnail_url"]).status_code == 200
    broker.publish(jobs.finish(job.id, 1, Status.SUCCEEDED))
    follower.join(60)
    assert [message["event"] for message in follower.seen[-2:]] == ["status", "end"]


def test_a_server_that_stops_ends_its_streams_and_answers_who_waits(server, claimed, follow, until) -> None:
    job = claimed()
    host = httpx.URL(server.http.base_url)
    with socket.create_connection((host.host, host.port), timeout=60) as waiting:
        waiting.sendall(f"GET /v1/jobs/{job.id}/events?after=3&wait=60 HTTP/1.1\r\nHost: {host.host}\r\n\r\n".encode())
        followers = [follow("/v1/events"), follow(f"/v1/jobs/{job.id}/events")]
        until(lambda: all(follower.seen for follower in followers), "the streams do not begin")
        for follower in followers:
            follower.closed.set()  # reads to the end of this connection, and opens no other
        server.stop()
        answer = b"".join(iter(lambda: waiting.recv(4096), b"")).decode()
    assert answer.startswith("HTTP/1.1 200")
    assert json.loads(answer.partition("\r\n\r\n")[2]) == {"events": [], "next_after": 3}
    for follower in followers:
        follower.join(60)
        assert follower.num_cut_off == 0
    assert "ERROR" not in server.log.read_text()
    assert "Traceback" not in server.log.read_text()


def test_a_stream_ends_when_its_job_is_deleted(server, add, follow, until) -> None:
    job_id = add()
    follower = follow(f"/v1/jobs/{job_id}/events")
    until(lambda: follower.ids() == [1], "the stream does not begin")
    assert server.http.delete(f"/v1/jobs/{job_id}").status_code == 204
    follower.join(60)
    assert [message["event"] for message in follower.seen] == ["status", "end"]
    assert follower.num_breaks == 0
    assert "Traceback" not in server.log.read_text()


def test_the_stream_for_lists_carries_every_job_and_goes_on_by_its_own_numbers(server, add, preview, follow, until) -> None:
    first = add()
    follower = follow("/v1/events")
    until(lambda: len(follower.seen) == 1, "the stream does not open")
    assert follower.seen[0]["event"] == "open"
    opened = json.loads(follower.seen[0]["data"])["id"]
    second = add()
    verbs.cancel(first)
    job = jobs.claim_next("w", ["pocket"])
    assert job is not None
    jobs.tell(
        second,
        1,
        [("log", {"level": "INFO", "message": "not for lists"}), ("metrics", {"step": 1}), ("phase", {"phase": "loading"})],
    )
    preview(job, 1)
    until(lambda: len(follower.seen) == 6, "the stream for lists misses something")
    told = [json.loads(message["data"]) for message in follower.seen[1:]]
    assert [(data["job_id"], data["type"]) for data in told] == [
        (second, "status"), (first, "status"), (second, "status"), (second, "phase"), (second, "sample"),
    ]  # fmt: skip
    assert [data["data"].get("status") for data in told[:3]] == ["queued", "canceled", "preparing"]
    ids = [int(message["id"]) for message in follower.seen]
    assert ids == sorted(set(ids))
    assert [data["id"] for data in told] == ids[1:]
    assert ids[0] == opened
    for query, last in (("", str(ids[2])), (f"?after={ids[2]}", None)):
        missed = stream(server, f"/v1/events{query}", last)
        assert [next(missed)["id"] for _ in range(4)] == [str(ids[2]), *(str(number) for number in ids[3:])]
        missed.close()  # type: ignore[attr-defined]


WRITER = """
    import sys
    from server.store import broker, jobs
    from server.store.tables import Status

    job_id, total = sys.argv[1], int(sys.argv[2])
    have = jobs.get(job_id).last_seq
    while have < total - 1:
        if have in (4003, 9003):
            print(have, flush=True)
            sys.stdin.readline()
        count = min(20, total - 1 - have)
        told = [("log", {"level": "INFO", "message": f"event {have + number}"}) for number in range(count)]
        broker.publish(jobs.tell(job_id, 1, told))
        have += count
    broker.publish(jobs.finish(job_id, 1, Status.SUCCEEDED))
"""


def test_ten_thousand_events_reach_two_clients_over_a_restart_of_the_server(server, claimed, elsewhere, follow, until) -> None:
    job = claimed()
    followers = [follow(f"/v1/jobs/{job.id}/events") for _ in range(2)]
    writer = elsewhere(WRITER, job.id, str(NUM_EVENTS))
    assert writer.stdout.readline() == "4003\n"
    until(lambda: all(len(follower.seen) > 500 for follower in followers), "the streams do not begin")
    writer.stdin.write("go\n")
    writer.stdin.flush()
    server.stop()
    server.start()
    assert writer.stdout.readline() == "9003\n"
    writer.communicate("go\n")
    assert writer.returncode == 0
    for follower in followers:
        follower.join(60)
    with reading() as session:
        stored = [(row.seq, row.type, row.data) for row in events.after(session, job.id, 0, NUM_EVENTS + 1)]
    assert [seq for seq, _, _ in stored] == list(range(1, NUM_EVENTS + 1))
    for follower in followers:
        *seen, end = follower.seen
        assert follower.num_breaks >= 1
        assert [(int(m["id"]), m["event"], json.loads(m["data"])["data"]) for m in seen] == stored
        assert (end["event"], json.loads(end["data"])) == ("end", {"last_seq": NUM_EVENTS})
