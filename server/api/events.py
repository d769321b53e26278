"""Streams and long polls: events of one job or of all, metrics and the log. All read the database; a wake-up makes them look."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Request, Response
from fastapi.responses import PlainTextResponse
from sse_starlette import EventSourceResponse, ServerSentEvent

from server.api.deps import ALL, LARGEST, WakesDep
from server.api.http import Route
from server.api.shapes import EventPage, Metrics, event_view
from server.store import events, jobs
from server.store.engine import reading
from server.store.jobs import NotFound
from server.store.tables import ENDED, Event

router = APIRouter(prefix="/v1", tags=["events"], route_class=Route)

PING_SECONDS = 15
PAGE = 500
RETRY_MILLISECONDS = 1000
GRACE_SECONDS = 1.5  # in which a stream ends of itself when the server stops; less than uvicorn waits
SSE: dict[int | str, dict[str, Any]] = {
    200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}, "description": "Events as they happen."}
}


@router.get("/events", responses=SSE, response_class=EventSourceResponse)
async def all_events(
    request: Request,
    wakes: WakesDep,
    last_event_id: Annotated[int | None, Header(ge=0, le=LARGEST)] = None,
    after: Annotated[int | None, Query(ge=0, le=LARGEST)] = None,
) -> Response:
    """Status, phase, progress and previews of every job, for lists. `id` is a server-wide number; starts at now unless
    Last-Event-ID (or `after`) says where to go on."""
    if request.method == "HEAD":
        return Response(media_type="text/event-stream")
    place = last_event_id if last_event_id is not None else after
    start = place if place is not None else await asyncio.to_thread(_newest)

    async def stream() -> AsyncIterator[ServerSentEvent]:
        seen = start
        with wakes.listen(ALL) as waiter:
            yield ServerSentEvent(event="open", data=json.dumps({"id": seen}), id=str(seen), retry=RETRY_MILLISECONDS)
            while not wakes.closed:
                waiter.expect()
                rows = await asyncio.to_thread(_listed_after, seen)
                for row in rows:
                    seen = row.id or seen
                    yield _message(row, seen, {"id": seen})
                if not rows:
                    await waiter.wait()

    return _streaming(stream())


@router.get("/jobs/{job_id}/events", response_model=EventPage, responses=SSE)
async def job_events(
    request: Request,
    job_id: str,
    wakes: WakesDep,
    after: Annotated[int, Query(ge=0, le=LARGEST)] = 0,
    wait: Annotated[float, Query(ge=0, le=60)] = 0,
    limit: Annotated[int, Query(ge=1, le=5000)] = PAGE,
    last_event_id: Annotated[int | None, Header(ge=0, le=LARGEST)] = None,
) -> Response | EventPage:
    """One job's events after `after`. With `Accept: text/event-stream` a stream that ends after the terminal status; else a page,
    for which the call waits up to `wait` seconds while there is none and the job goes on."""
    await asyncio.to_thread(jobs.get, job_id)
    start = last_event_id if last_event_id is not None else after
    if "text/event-stream" in request.headers.get("accept", ""):
        if request.method == "HEAD":
            return Response(media_type="text/event-stream")
        return _streaming(_job_stream(job_id, wakes, start))
    deadline = time.monotonic() + wait
    with wakes.listen(job_id) as waiter:
        while True:
            waiter.expect()
            rows, ended = await asyncio.to_thread(_after, job_id, start, limit)
            left = deadline - time.monotonic()
            if rows or ended or left <= 0 or wakes.closed:
                return EventPage(events=[event_view(row) for row in rows], next_after=rows[-1].seq if rows else start)
            await waiter.wait(left)


async def _job_stream(job_id: str, wakes: WakesDep, seen: int) -> AsyncIterator[ServerSentEvent]:
    with wakes.listen(job_id) as waiter:
        yield ServerSentEvent(comment="open", retry=RETRY_MILLISECONDS)
        while not wakes.closed:
            waiter.expect()
            try:
                rows, ended = await asyncio.to_thread(_after, job_id, seen, PAGE)
            except NotFound:  # deleted meanwhile
                rows, ended = [], True
            for row in rows:
                seen = row.seq
                yield _message(row, seen)
            if ended:
                yield ServerSentEvent(event="end", data=json.dumps({"last_seq": seen}))
                return
            if not rows:
                await waiter.wait()


@router.get("/jobs/{job_id}/metrics", response_model=Metrics)
def metrics(
    job_id: str,
    name: Annotated[str, Query(pattern=r"^[\w/.-]{1,64}$")] = "loss",
    after: Annotated[int, Query(ge=-1, le=LARGEST)] = -1,
    points: Annotated[int, Query(ge=2, le=20000)] = 2000,
) -> Metrics:
    """A series by step, thinned to at most `points`, its extremes kept."""
    job = jobs.get(job_id)
    with reading() as session:
        series = events.series(session, job_id, name, after)
    return Metrics(name=name, points=thin(series, points), last_seq=job.last_seq)


@router.get("/jobs/{job_id}/log", response_class=PlainTextResponse)
def log(job_id: str, after: Annotated[int, Query(ge=0, le=LARGEST)] = 0) -> PlainTextResponse:
    """The job's log as text. `Safelight-Log-Next` is the `after` with which to ask for what comes next."""
    job = jobs.get(job_id)
    with reading() as session:
        rows = events.after(session, job_id, after, limit=job.last_seq + 1, types=("log", "error"))
    lines = (f"{row.time} {row.data.get('level', 'ERROR'):<7} {row.data['message']}" for row in rows)
    traces = {row.seq: row.data["traceback"] for row in rows if row.data.get("traceback")}
    text = "".join(line + "\n" + traces.get(row.seq, "") for line, row in zip(lines, rows, strict=True))
    return PlainTextResponse(text, headers={"Safelight-Log-Next": str(rows[-1].seq if rows else after)})


def thin(series: list[tuple[int, float | None]], points: int) -> list[tuple[int, float | None]]:
    """At most `points` of the series: of each stretch of steps, its lowest and its highest value, in order."""
    if len(series) <= points:
        return series
    stretches = max(1, points // 2)
    kept = []
    for number in range(stretches):
        part = series[number * len(series) // stretches : (number + 1) * len(series) // stretches]
        known = [point for point in part if point[1] is not None] or part[:1]
        extremes = {min(known, key=_value), max(known, key=_value)}
        kept += sorted(extremes)
    return kept


def _value(point: tuple[int, float | None]) -> float:
    return point[1] if point[1] is not None else 0.0


def _streaming(messages: AsyncIterator[ServerSentEvent]) -> Response:
    return EventSourceResponse(messages, ping=PING_SECONDS, shutdown_grace_period=GRACE_SECONDS)


def _message(row: Event, number: int, extra: dict[str, int] | None = None) -> ServerSentEvent:
    data = {**(extra or {}), **event_view(row).model_dump()}
    return ServerSentEvent(event=row.type, id=str(number), data=json.dumps(data))


def _after(job_id: str, seq: int, limit: int) -> tuple[list[Event], bool]:
    """A page of events, and whether the job has ended with nothing after that page."""
    with reading() as session:
        rows = events.after(session, job_id, seq, limit)
    job = jobs.get(job_id)
    return rows, job.status in ENDED and job.last_seq <= (rows[-1].seq if rows else seq)


def _listed_after(event_id: int) -> list[Event]:
    with reading() as session:
        return events.listed_after(session, event_id)


def _newest() -> int:
    with reading() as session:
        return events.newest_id(session)
