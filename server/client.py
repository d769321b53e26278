"""A client for the REST API, as the command line needs it: calls, changes, and following a job in the terminal."""

import json
import time
from collections.abc import Iterator
from typing import Any

import httpx
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from models.catalog import merge
from models.data.texts import BadText, parse_json
from server.store.settings import settings
from server.store.tables import ENDED, Status

RETRY_SECONDS = 1.0
POLL_SECONDS = 20
TIMEOUT_SECONDS = 60


class ApiError(Exception):
    """The server's refusal, as one readable text."""


class NoAnswer(ApiError):
    """No server answered, or it could not just now: to try again makes sense."""


def call(verb: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> Any:
    """One request; the parsed answer. Raises ApiError with the server's words."""
    try:
        text = (
            None if body is None else json.dumps(body)
        )  # in ASCII, so that half a character reaches the server, which names its place
        answer = _http().request(verb, path, content=text, headers={"Content-Type": "application/json", **(headers or {})})
    except httpx.ConnectError:
        raise NoAnswer(f"no server at {settings().url}; start one with 'safelight up'") from None
    except httpx.HTTPError as error:
        raise NoAnswer(f"{settings().url} did not answer: {error}") from None
    if answer.status_code >= 400:
        raise (NoAnswer if answer.status_code >= 500 else ApiError)(_explain(answer))
    return answer.json() if answer.content else None


def read_changes(pairs: list[str]) -> dict[str, Any]:
    """`["train.steps=50"]` as `{"train": {"steps": 50}}`; values are JSON where they can be, else text."""
    changes: dict[str, Any] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise ApiError(f"--set {pair!r} is not KEY=VALUE, for instance train.steps=50")
        try:
            parsed = parse_json(value)
        except BadText:
            parsed = value
        for part in reversed(key.split(".")):
            parsed = {part: parsed}
        changes = merge(changes, parsed)
    return changes


def patched(spec: Any, changes: dict[str, Any]) -> Any:
    return merge(spec, changes) if changes else spec


def events(job_id: str) -> Iterator[dict[str, Any]]:
    """The job's events from the first to the last, over restarts of the server, none twice."""
    after = 0
    while True:
        try:
            page = call("GET", f"/v1/jobs/{job_id}/events?after={after}&wait={POLL_SECONDS}")
            job = None if page["events"] else call("GET", f"/v1/jobs/{job_id}")
        except NoAnswer:
            time.sleep(RETRY_SECONDS)
            continue
        yield from page["events"]
        after = page["next_after"]
        if job and job["status"] in ENDED and job["last_seq"] <= after:
            return


def follow(job_id: str, out: Console, as_json: bool = False) -> int:
    """Show a job until it ends; 0 if it succeeded. Of one that rests it says how to go on, and waits. Times are not shown for steps that
    are already past."""
    job = call("GET", f"/v1/jobs/{job_id}")  # at the beginning there must be a server; later it may come and go
    if as_json:
        status = ""
        for event in events(job_id):
            out.print(json.dumps(event), highlight=False, markup=False, soft_wrap=True)
            status = event["data"]["status"] if event["type"] == "status" else status
        return 0 if status == Status.SUCCEEDED else 1
    columns = (
        TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed:.0f}/{task.total:.0f}"),
        TextColumn("loss {task.fields[loss]}"), TextColumn("{task.fields[speed]} steps/s"), TimeRemainingColumn(),
    )  # fmt: skip
    status, newest = job["status"], ""
    if status == Status.PAUSED:
        _say_paused(out, job_id, job["step"])
    with Progress(*columns, console=out) as progress:
        bar = progress.add_task(escape(job["name"]), total=job["total_steps"], loss="-", speed="-")
        for event in events(job_id):
            data = event["data"]
            if event["type"] == "progress":
                loss = "-" if data["loss"] is None else f"{data['loss']:.4f}"
                speed = "-" if data["steps_per_second"] is None else f"{data['steps_per_second']:.2f}"
                progress.update(bar, completed=data["step"], total=data["total_steps"], loss=loss, speed=speed)
            elif event["type"] == "phase":
                progress.update(bar, description=data["phase"])
            elif event["type"] == "sample" and data["url"] != newest:
                newest = data["url"]
                progress.console.print(
                    f"preview  step {data['step']:>6}  {data['prompt']!r}  {settings().url}{newest}",
                    highlight=False,
                    markup=False,
                )
            elif event["type"] == "error":
                progress.console.print(f"{data['message']}. {data['hint'] or ''}", style="red", highlight=False, markup=False)
            elif event["type"] == "status":
                if data["status"] == Status.PAUSED != status and event["seq"] > job["last_seq"]:
                    _say_paused(progress.console, job_id, data["step"])
                status = data["status"]
                progress.update(bar, description=status)
    out.print(
        f"{status} after {job['total_steps'] if status == Status.SUCCEEDED else data.get('step', '?')} steps", highlight=False
    )
    return 0 if status == Status.SUCCEEDED else 1


def _say_paused(out: Console, job_id: str, step: int) -> None:
    out.print(f"paused at step {step}; it goes on with: safelight resume {job_id}", highlight=False, markup=False, soft_wrap=True)


def wait_until_ready(seconds: float) -> bool:
    """Whether the server of this machine became ready in time."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            if _http().get("/readyz").status_code == 200:
                return True
        except httpx.HTTPError:
            pass
        time.sleep(0.05)
    return False


def _http() -> httpx.Client:
    token = settings().token.get_secret_value()
    headers = {b"Authorization": f"Bearer {token}".encode()} if token else {}
    return httpx.Client(base_url=settings().url, headers=headers, timeout=TIMEOUT_SECONDS, trust_env=False)


def _explain(answer: httpx.Response) -> str:
    try:
        body = answer.json()
    except ValueError:
        return f"the server answered {answer.status_code}"
    lines = [body.get("detail", "")]
    for fault in body.get("errors", []):
        lines.append(f"{fault['pointer'] or '/'}: {fault['message']}{_advice(fault)}")
    return "\n  ".join(lines[1:] or lines)


def _advice(fault: dict[str, Any]) -> str:
    """A known name like the one given, advice in words, or a value to use."""
    suggestion = fault.get("suggestion")
    if not suggestion:
        return ""
    if fault.get("misspelt"):
        return f" (did you mean {suggestion!r}?)"
    return f"; {suggestion}" if " " in suggestion else f"; use {suggestion}"
