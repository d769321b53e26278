"""What several routes share: the bells, the stream of wake-ups, bodies read strictly, and the problem+json form of errors."""

import asyncio
import json
import logging
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Annotated, Any

import redis.asyncio
from fastapi import Depends, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from sqlalchemy.exc import OperationalError
from starlette.exceptions import HTTPException

from models import words
from models.data.names import printable
from models.data.texts import BadText, parse_json, unusable_in
from models.errors import Problem, SpecError, UserError
from server.reaper import Reaper
from server.store import broker, workers
from server.store.jobs import Conflict, NotFound
from server.store.tables import Event

log = logging.getLogger(__name__)

RETRY_SECONDS = 1.0
POLL_SECONDS = 1.0  # how late a stream is when the broker is down
LARGEST = 2**63 - 1  # the database's largest integer
ALL = "*"
DEEPEST = 100  # levels of a body; a job has about ten


class Wakes:
    """Wakes whoever waits for a job's events (or, with ALL, for anyone's), as the broker says that there are some. Once it is `closed`,
    whoever waits is to answer with what there is, and end."""

    def __init__(self) -> None:
        self.closed = False
        self._waiting: dict[str, set[asyncio.Event]] = defaultdict(set)

    def close(self) -> None:
        """The server stops."""
        self.closed = True
        self._wake(list(self._waiting))

    async def run(self) -> None:
        """Listen until cancelled; without a broker, try again every second (waiters poll meanwhile)."""
        while True:
            try:
                async with redis.asyncio.Redis.from_url(broker.redis_url()) as client, client.pubsub() as channel:
                    await channel.subscribe(broker.EVENTS)
                    async for message in channel.listen():
                        if message["type"] == "message":
                            self._wake(json.loads(message["data"])["jobs"])
            except (redis.RedisError, OSError) as error:
                log.warning("no word from the broker (%s); streams poll meanwhile", error)
                await asyncio.sleep(RETRY_SECONDS)

    def _wake(self, job_ids: Sequence[str]) -> None:
        for key in (*job_ids, ALL):
            for waiter in self._waiting.get(key, ()):
                waiter.set()

    @contextmanager
    def listen(self, key: str) -> Iterator["Waiter"]:
        woken = asyncio.Event()
        self._waiting[key].add(woken)
        try:
            yield Waiter(woken)
        finally:
            self._waiting[key].discard(woken)
            if not self._waiting[key]:
                del self._waiting[key]


class Waiter:
    """`expect()` before looking at the database, `wait()` after finding nothing: no wake-up falls between the two."""

    def __init__(self, woken: asyncio.Event) -> None:
        self._woken = woken

    def expect(self) -> None:
        self._woken.clear()

    async def wait(self, seconds: float = POLL_SECONDS) -> None:
        try:
            await asyncio.wait_for(self._woken.wait(), min(seconds, POLL_SECONDS))
        except TimeoutError:
            pass


def _wakes(request: Request) -> Wakes:
    wakes: Wakes = request.app.state.wakes
    return wakes


def _reaper(request: Request) -> Reaper:
    reaper: Reaper = request.app.state.reaper
    return reaper


WakesDep = Annotated[Wakes, Depends(_wakes)]
ReaperDep = Annotated[Reaper, Depends(_reaper)]


def announce(told: Sequence[Event], ring: bool = False) -> None:
    """After a commit: wake the streams and, when a job may start now, the workers."""
    broker.publish(told)
    if ring:
        broker.ring(worker.id for worker, job_id in workers.listing() if job_id is None and not worker.stopped)


async def strict_json(request: Request) -> Any:
    """The body as JSON, as `strict_json_or_none` reads it; an empty one is a SpecError."""
    if not (await request.body()).strip():
        raise SpecError([Problem("", "the body is empty; it must be a JSON object")])
    return await strict_json_or_none(request)


async def strict_json_or_none(request: Request) -> Any:
    """The body as JSON; a doubled key, NaN, control characters, half a surrogate pair, endless nesting and anything that is
    not JSON is a SpecError. None for an empty body."""
    data = await request.body()
    if not data.strip():
        return None
    try:
        body = parse_json(data, _noting_doubles)
    except BadText as error:
        raise SpecError([Problem("", f"the body is {error}")]) from None
    if faults := list(_faults(body)):
        raise SpecError(faults)
    return body


StrictJson = Annotated[Any, Depends(strict_json)]
StrictJsonOrNone = Annotated[Any, Depends(strict_json_or_none)]


class _Doubled(dict[str, Any]):
    """An object of which some keys stood twice."""

    keys_twice: Sequence[str] = ()


def _noting_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) == len(pairs):
        return made
    marked = _Doubled(made)
    marked.keys_twice = [key for key, count in Counter(key for key, _ in pairs).items() if count > 1]
    return marked


def _faults(value: Any, pointer: str = "", depth: int = 0) -> Iterator[Problem]:
    """What no request may hold: keys that stand twice, and texts that `unusable_in` refuses. Raises SpecError for endless nesting."""
    if depth > DEEPEST:
        raise SpecError([Problem("", "the body is JSON that is nested too deeply")])
    if isinstance(value, str) and (unusable := unusable_in(value)):
        yield Problem(printable(pointer), f"holds {unusable}: {printable(value)!r:.80}")
    if isinstance(value, _Doubled):
        yield from (
            Problem(printable(f"{pointer}/{key}"), f"key {printable(key)!r} stands twice in one object")
            for key in value.keys_twice
        )
    for key, inner in _parts(value):
        if isinstance(key, str) and (unusable := unusable_in(key)):
            yield Problem(printable(pointer), f"the key {printable(key)!r:.80} holds {unusable}")
        yield from _faults(inner, f"{pointer}/{key}", depth + 1)


def _parts(value: Any) -> Iterable[tuple[str | int, Any]]:
    return value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()


class ProblemResponse(JSONResponse):
    media_type = "application/problem+json"

    def render(self, content: Any) -> bytes:
        return json.dumps(content).encode()  # in ASCII: a refused text may hold what UTF-8 cannot


def problem(
    status: int, title: str, detail: str, errors: Sequence[Problem] = (), headers: Mapping[str, str] | None = None
) -> JSONResponse:
    body = {"type": "about:blank", "title": title, "status": status, "detail": detail, "errors": [e.as_dict() for e in errors]}
    return ProblemResponse(body, status, headers)


def add_problem_handlers(app: FastAPI) -> None:
    """Every error leaves as problem+json; nobody sees a traceback."""

    @app.exception_handler(SpecError)
    async def _spec(_: Request, error: SpecError) -> JSONResponse:
        return problem(422, "This is not a valid job", error.message, error.problems)

    @app.exception_handler(UserError)
    async def _user(_: Request, error: UserError) -> JSONResponse:
        return problem(404 if error.code.startswith("unknown") else 422, "That does not work", error.message)

    @app.exception_handler(NotFound)
    async def _missing(_: Request, error: NotFound) -> JSONResponse:
        return problem(404, "Not found", str(error))

    @app.exception_handler(Conflict)
    async def _conflict(_: Request, error: Conflict) -> JSONResponse:
        return problem(409, "Not in this state", str(error))

    @app.exception_handler(RequestValidationError)
    async def _request(_: Request, error: RequestValidationError) -> JSONResponse:
        faults = []
        for each in error.errors():
            source, *place = each["loc"]
            faults += words.problems([{**each, "loc": place}], error.body if source == "body" else None)
        return problem(422, "This is not a valid request", f"{faults[0].pointer or '/'}: {faults[0].message}", faults)

    @app.exception_handler(HTTPException)
    async def _http(_: Request, error: HTTPException) -> JSONResponse:
        return problem(error.status_code, str(error.detail), str(error.detail), headers=error.headers)

    @app.exception_handler(OperationalError)
    async def _busy(_: Request, error: OperationalError) -> JSONResponse:
        log.error("the database did not answer: %s", error)
        return problem(
            503,
            "The database is busy",
            "The database did not answer in time; try again in a moment.",
            headers={"Retry-After": "2"},
        )

    @app.exception_handler(Exception)
    async def _bug(_: Request, error: Exception) -> JSONResponse:
        log.error("unexpected error", exc_info=error)
        guard = {"X-Content-Type-Options": "nosniff"}  # this reply leaves outside of the Gate, which sets it elsewhere
        return problem(500, "Something is wrong on our side", "An unexpected error; the server's log says more.", headers=guard)
