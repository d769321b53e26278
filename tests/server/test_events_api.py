"""What happened to a job, as pages and long polls: complete, in order, and always valid JSON."""

import json
import math
import threading
from typing import Any

import pytest

from server.api.events import thin
from server.store import broker, jobs
from server.store.tables import Job, Status


def tell_steps(job: Job, *told: dict[str, Any]) -> None:
    jobs.tell(job.id, job.attempt, [("metrics", data) for data in told])


def points(client: Any, job: Job, query: str = "") -> list[list[Any]]:
    answer = client.get(f"/v1/jobs/{job.id}/metrics{query}")
    assert answer.status_code == 200, answer.text
    shown: list[list[Any]] = answer.json()["points"]
    return shown


def test_events_are_numbered_from_one_and_paged(client, claimed) -> None:
    job = claimed()
    jobs.tell(job.id, 1, [("log", {"level": "INFO", "message": str(number)}) for number in range(10)])
    page = client.get(f"/v1/jobs/{job.id}/events?limit=5").json()
    assert [event["seq"] for event in page["events"]] == [1, 2, 3, 4, 5]
    assert page["next_after"] == 5
    rest = client.get(f"/v1/jobs/{job.id}/events?after=5").json()
    assert [event["seq"] for event in rest["events"]] == list(range(6, 14))
    assert client.get(f"/v1/jobs/{job.id}/events?after=13").json() == {"events": [], "next_after": 13}
    first = page["events"][0]
    assert set(first) == {"seq", "job_id", "attempt", "time", "type", "data"}
    assert (first["job_id"], first["type"], first["data"]["status"]) == (job.id, "status", "queued")
    assert [event["attempt"] for event in page["events"]] == [0, 1, 1, 1, 1]


def test_last_event_id_goes_on_where_it_stopped(client, claimed) -> None:
    job = claimed()
    events = client.get(f"/v1/jobs/{job.id}/events?after=0", headers={"Last-Event-ID": "2"}).json()["events"]
    assert [event["seq"] for event in events] == [3]


@pytest.mark.parametrize("query", ["after=-1", "after=x", "wait=61", "wait=-1", "wait=nan", "limit=0", "limit=5001"])
def test_a_bad_query_is_refused(client, claimed, query) -> None:
    answer = client.get(f"/v1/jobs/{claimed().id}/events?{query}")
    assert (answer.status_code, answer.headers["content-type"]) == (422, "application/problem+json")


def test_a_long_poll_wakes_when_something_happens(client, claimed) -> None:
    job = claimed()
    threading.Timer(0.2, lambda: broker.publish(jobs.tell(job.id, 1, [("log", {"level": "INFO", "message": "now"})]))).start()
    page = client.get(f"/v1/jobs/{job.id}/events?after=3&wait=60").json()
    assert [(event["seq"], event["data"]["message"]) for event in page["events"]] == [(4, "now")]


def test_a_long_poll_wakes_also_when_no_bell_rang(client, claimed) -> None:
    job = claimed()
    threading.Timer(0.2, lambda: jobs.tell(job.id, 1, [("log", {"level": "INFO", "message": "now"})])).start()
    assert client.get(f"/v1/jobs/{job.id}/events?after=3&wait=60").json()["next_after"] == 4


def test_a_long_poll_of_an_ended_job_does_not_wait(client, job_in) -> None:
    job_id = job_in("succeeded")
    last = client.get(f"/v1/jobs/{job_id}").json()["last_seq"]
    assert client.get(f"/v1/jobs/{job_id}/events?after={last}&wait=60").json() == {"events": [], "next_after": last}


def test_previews_and_checkpoints_carry_their_addresses(client, claimed, preview, save) -> None:
    job = claimed()
    data = preview(job, 3)
    save(job, "weights", "größe 1.safetensors", b"weights")
    jobs.tell(job.id, 1, [("checkpoint", {"step": 3, "path": "größe 1.safetensors", "size": 7})])
    told = {event["type"]: event["data"] for event in client.get(f"/v1/jobs/{job.id}/events").json()["events"]}
    assert told["sample"]["index"] == 1
    assert client.get(told["sample"]["url"]).content == data
    assert client.get(told["sample"]["thumbnail_url"]).content == b"RIFF small " + data
    assert client.get(told["checkpoint"]["url"]).content == b"weights"


def test_what_is_not_finite_is_null_and_replies_stay_json(client, claimed) -> None:
    job = claimed()
    tell_steps(
        job,
        {"step": 1, "loss": math.nan, "lr": 1e-3, "nested": [{"x": math.inf}]},
        {"step": 2, "loss": -math.inf},
        {"step": 3, "loss": 0.5},
    )
    text = client.get(f"/v1/jobs/{job.id}/events?after=3").text

    def refuse(word: str) -> None:
        raise AssertionError(word)

    events = json.loads(text, parse_constant=refuse)["events"]
    assert events[0]["data"] == {"step": 1, "loss": None, "lr": 1e-3, "nested": [{"x": None}]}
    answer = client.get(f"/v1/jobs/{job.id}/metrics")
    assert json.loads(answer.text, parse_constant=refuse)["points"] == [[1, None], [2, None], [3, 0.5]]


def test_of_a_step_told_twice_the_newest_telling_counts(client, claimed) -> None:
    job = claimed()
    tell_steps(job, *({"step": step, "loss": 1.0} for step in range(1, 6)))
    jobs.give_back(job.id, 1, "gone")
    again = jobs.claim_next("w", ["pocket"])
    assert again is not None
    tell_steps(again, {"step": 4, "loss": 2.0}, {"step": 5, "loss": 2.0}, {"step": 6, "loss": 2.0})
    assert points(client, job) == [[1, 1.0], [2, 1.0], [3, 1.0], [4, 2.0], [5, 2.0], [6, 2.0]]
    tellings = [
        event["data"]["step"] for event in client.get(f"/v1/jobs/{job.id}/events").json()["events"] if event["type"] == "metrics"
    ]
    assert tellings == [1, 2, 3, 4, 5, 4, 5, 6]  # both stay


def test_a_series_is_named_and_cut(client, claimed) -> None:
    job = claimed()
    tell_steps(job, *({"step": step, "loss": float(step), "lr": 0.1, "odd/name.x-1": step} for step in range(5)))
    assert points(client, job, "?name=lr") == [[step, 0.1] for step in range(5)]
    assert points(client, job, "?after=2") == [[3, 3.0], [4, 4.0]]
    assert points(client, job, "?name=odd/name.x-1&after=3") == [[4, 4]]
    assert points(client, job, "?name=unknown") == []
    for query in ('?name=a"b', "?name=", "?name=a b", "?points=1", "?points=20001", "?after=-2"):
        assert client.get(f"/v1/jobs/{job.id}/metrics{query}").status_code == 422, query


def test_a_long_series_is_thinned_and_keeps_its_extremes(client, claimed) -> None:
    job = claimed()
    values = {step: math.sin(step / 50) for step in range(3000)} | {777: 99.0, 1234: -99.0}
    tell_steps(job, *({"step": step, "loss": value} for step, value in values.items()))
    shown = points(client, job, "?points=100")
    assert 50 <= len(shown) <= 100
    assert [777, 99.0] in shown
    assert [1234, -99.0] in shown
    assert shown == sorted(shown)
    assert all(values[step] == value for step, value in shown)


@pytest.mark.parametrize("wanted", [2, 3, 7, 100, 999])
def test_thinning_keeps_lowest_and_highest_and_no_more_than_asked(wanted) -> None:
    series = [(step, float((step * 7919) % 1000)) for step in range(1000)]
    kept = thin(series, wanted)
    assert len(kept) <= wanted
    assert {min(series, key=lambda p: p[1]), max(series, key=lambda p: p[1])} <= set(kept)
    assert kept == sorted(set(kept))


def test_thinning_passes_over_gaps_and_leaves_short_series_alone() -> None:
    series: list[tuple[int, float | None]] = [(0, None), (1, 5.0), (2, None), (3, -1.0)]
    assert thin(series, 4) == series
    assert thin(series, 2) == [(1, 5.0), (3, -1.0)]
    assert thin([(step, None) for step in range(10)], 2) == [(0, None)]


def test_the_log_is_text_that_goes_on_where_it_stopped(client, claimed) -> None:
    job = claimed()
    jobs.tell(job.id, 1, [("log", {"level": "INFO", "message": "größe 🍎"}), ("metrics", {"step": 1, "loss": 1.0})])
    answer = client.get(f"/v1/jobs/{job.id}/log")
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"
    [line] = answer.text.splitlines()
    assert line.endswith("Z INFO    größe 🍎")
    after = answer.headers["safelight-log-next"]
    assert client.get(f"/v1/jobs/{job.id}/log?after={after}").text == ""
    error = {"code": "x", "message": "it broke", "hint": None, "traceback": "Traceback\n  here\n"}
    jobs.finish(job.id, 1, Status.FAILED, error)
    more = client.get(f"/v1/jobs/{job.id}/log?after={after}")
    assert more.text.splitlines()[0].endswith("Z ERROR   it broke")
    assert more.text.splitlines()[1:] == ["Traceback", "  here"]
    assert client.get(f"/v1/jobs/{job.id}/log").text == answer.text + more.text
    assert client.get(f"/v1/jobs/{job.id}/log?after={more.headers['safelight-log-next']}").headers["safelight-log-next"] == "6"
