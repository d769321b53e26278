"""Starting the parts: a server in this process, or everything as children that are watched and restarted."""

import contextlib
import logging
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import uvicorn
from rich.console import Console
from uvicorn.config import STARTUP_FAILURE

from models import catalog
from server import client
from server.app import StartRefused, check_start, create_app, server_lock
from server.store import broker, parent
from server.store.settings import settings

HERE = Path(__file__).parent
DEMO_DATA = HERE / "demo"
DEMO_PRESET = "demo"
DEMO_KEY = "bundled-demo"
STOP_SECONDS = 120  # a worker saves before it goes
READY_SECONDS = 60
RESTART_SECONDS = 1.0

log = logging.getLogger(__name__)
console = Console(stderr=True, soft_wrap=True)


def serve() -> None:
    """The API and the web page in this process, until a signal. Raises StartRefused."""
    check_start(settings())
    with server_lock():
        pass  # refuse before anything is opened; the app takes the lock again when it starts
    console.print(f"data folder: {settings().home}\nserver:      {settings().url}", highlight=False)
    logging.basicConfig(level=settings().log_level, format="%(asctime)s server %(levelname)s %(message)s")
    parent.end_with_parent()
    if DEMO_DATA.is_dir() and not (settings().home / "datasets").exists():
        _copy_demo_data()
    app = create_app()
    config = uvicorn.Config(
        app, host=settings().host, port=settings().port, log_level="warning", timeout_graceful_shutdown=2, ws="none"
    )
    server = Server(config)
    with contextlib.suppress(KeyboardInterrupt):
        server.run()
    if not server.started:
        raise SystemExit(STARTUP_FAILURE)


class Server(uvicorn.Server):
    """uvicorn's, which waits for open calls when it stops, and breaks those off, with an error for each, that go on for too long."""

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Event streams and calls that wait for events would; they end now."""
        app: Any = self.config.app
        app.state.wakes.close()
        await super().shutdown(sockets)


def run(demo: bool = False, exit_when_done: bool = False) -> int:
    """Server and one worker per device, each restarted when it dies, until Ctrl-C or SIGTERM; with `demo`, its job too."""
    check_start(settings())
    share = broker.hold()
    parts = [Part("server.cli", "serve"), *(Part("worker.app", "--device", device) for device in _devices())]
    stopping = threading.Event()

    def stop(_signal: int, _frame: FrameType | None) -> None:
        stopping.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    code = 0
    try:
        parts[0].start()
        if not _ready(parts[0], stopping):
            return parts[0].process.wait() if parts[0].process else 1
        for part in parts[1:]:
            part.start()
        if demo:
            code = _demo(stopping, exit_when_done)
        while not stopping.wait(RESTART_SECONDS):
            for part in parts:
                part.restart_if_dead()
    finally:
        console.print("stopping; running jobs are saved and go on next time", highlight=False)
        for part in reversed(parts):
            part.stop()
        if share:
            share.close()
    return code


class Part:
    """One child process, in a session of its own so that Ctrl-C reaches only us."""

    def __init__(self, module: str, *arguments: str) -> None:
        self.command = [sys.executable, "-m", module, *arguments]
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self.process = subprocess.Popen(self.command, env=parent.environment(), start_new_session=True, stdin=subprocess.DEVNULL)

    def restart_if_dead(self) -> None:
        if self.process is not None and (code := self.process.poll()) is not None:
            console.print(f"{' '.join(self.command[2:])} ended with {code}; starting it again", highlight=False)
            self.start()

    def stop(self) -> None:
        if self.process is None or self.process.poll() is not None:
            return
        self.process.terminate()
        try:
            self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def _demo(stopping: threading.Event, exit_when_done: bool) -> int:
    """Put the pictures into the datasets folder, queue the demo job once, follow it in a thread."""
    _copy_demo_data()
    preset = next(p for name in catalog.archs() for p in catalog.presets(name) if p["name"] == DEMO_PRESET)
    known = client.call("GET", "/v1/jobs?q=&limit=200")["jobs"]
    ours = [job for job in known if job["labels"].get("demo")]
    if ours:
        job = ours[0]
    else:
        job = client.call("POST", "/v1/jobs", preset["spec"], {"Idempotency-Key": DEMO_KEY})
        job = client.call("PATCH", f"/v1/jobs/{job['id']}", {"labels": {"demo": "yes"}})
    console.print(f"demo job:    {settings().url}/jobs/{job['id']}", highlight=False)
    codes: list[int] = []

    def watch() -> None:
        with contextlib.suppress(client.ApiError):
            codes.append(client.follow(job["id"], Console()))
        if exit_when_done:
            stopping.set()
        else:
            console.print(f"the server goes on at {settings().url}; Ctrl-C stops it", highlight=False)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    if exit_when_done:
        while thread.is_alive() and not stopping.wait(0.2):
            pass
        return codes[0] if codes else 1
    return 0


def _copy_demo_data() -> None:
    if not DEMO_DATA.is_dir():
        raise StartRefused("the demo pictures are not built; run 'make build'")
    target = settings().home / "datasets" / "emoji"
    if not target.exists():
        part = target.with_name(".emoji.part")
        shutil.rmtree(part, ignore_errors=True)
        shutil.copytree(DEMO_DATA, part)
        part.rename(target)


def _ready(server: Part, stopping: threading.Event) -> bool:
    deadline = time.monotonic() + READY_SECONDS
    while time.monotonic() < deadline and not stopping.is_set():
        if server.process is None or server.process.poll() is not None:
            return False
        if client.wait_until_ready(0.2):
            return True
    return False


def _devices() -> Sequence[str]:
    """The devices that workers are started for, as the worker's side sees them."""
    answer = subprocess.run([sys.executable, "-m", "worker.gpus"], capture_output=True, text=True, check=True)
    return answer.stdout.split()
