"""Fixtures that several rooms share. Every test has a data folder of its own; real parts are started where users have them."""

import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from PIL import Image

from tests.weight_files import safetensors

SETTLE_SECONDS = 60  # the longest that anything here is waited for; nothing asserts how fast it was

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TQDM_DISABLE", "1")
os.environ["HF_HUB_OFFLINE"] = "1"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty data folder, which this process's settings, database and broker use."""
    folder = tmp_path / "home"
    for name in [name for name in os.environ if name.startswith("SAFELIGHT_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("SAFELIGHT_HOME", str(folder))
    monkeypatch.setenv("SAFELIGHT_DATA_ROOTS", str(tmp_path))
    forget_process_state()
    yield folder
    forget_process_state()


def forget_process_state() -> None:
    from server.store import broker, engine, settings

    engine.forget()
    for cached in (settings.settings, broker.client, broker.celery):
        cached.cache_clear()


@pytest.fixture
def migrated(home: Path) -> Path:
    """The data folder with an empty, current database."""
    from server.store.engine import migrate

    migrate()
    return home


@pytest.fixture
def client(home: Path) -> Iterator[Any]:
    """The app, started (its own embedded Redis too), as an HTTP client in this process."""
    from fastapi.testclient import TestClient

    from server.app import create_app

    with TestClient(create_app(), base_url="http://127.0.0.1:8765", raise_server_exceptions=False) as started:
        yield started


@pytest.fixture
def an_adapter() -> bytes:
    """What a file holds that a submission takes for an adapter's."""
    return safetensors(transformer__a__lora_A__weight=[2, 2], transformer__a__lora_B__weight=[2, 2])


@pytest.fixture
def pictures(home: Path) -> Callable[..., Path]:
    """`pictures("name", 4)` makes datasets/name with four small captioned pictures, always the same ones."""

    def make(name: str = "colours", count: int = 4, size: int = 32) -> Path:
        folder = home / "datasets" / name
        folder.mkdir(parents=True)
        draw = random.Random(7)
        for index in range(count):
            colour = tuple(draw.randrange(256) for _ in range(3))
            Image.new("RGB", (size, size), colour).save(folder / f"{index:03d}.png")
            (folder / f"{index:03d}.txt").write_text(f"colour number {index}")
        return folder

    return make


@pytest.fixture
def tiny_job() -> Callable[..., dict[str, Any]]:
    """`tiny_job(**{"train.steps": 6})`: a small full training job of the bundled arch; dotted keys change it."""

    def make(**changes: Any) -> dict[str, Any]:
        job: dict[str, Any] = {
            "kind": "train",
            "name": "tiny",
            "model": {"arch": "pocket", "name_or_path": "random", "model_kwargs": {"channels": [16, 32]}},
            "network": None,
            "datasets": [{"folder_path": "colours"}],
            "train": {"steps": 6, "batch_size": 2, "lr": 1e-3},
            "save": {"save_every": 3, "recover_every_seconds": 1.0},
            "sample": {"sample_every": 3, "sample_steps": 2, "samples": [{"prompt": "colour number 0"}]},
        }
        for key, value in changes.items():
            *parents, last = key.split(".")
            place = job
            for parent in parents:
                place = place[parent]
            place[last] = value
        return job

    return make


class Stack:
    """A real `safelight up` (or `serve`) in a process of its own, and an HTTP client for it."""

    def __init__(self, home: Path, command: str, **env: str) -> None:
        self.home, self.command = home, command
        self.port = free_port()
        self.env = {**os.environ, "SAFELIGHT_PORT": str(self.port), "SAFELIGHT_LEASE_SECONDS": "5", **env}
        self.http = httpx.Client(base_url=f"http://127.0.0.1:{self.port}", timeout=SETTLE_SECONDS, trust_env=False)
        self.process: subprocess.Popen[bytes] | None = None
        self.log = home.parent / "stack.log"

    def start(self) -> "Stack":
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "server.cli", self.command],
                env=self.env,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        eventually(self.ready, f"the server did not become ready; see {self.log}")
        return self

    def ready(self) -> bool:
        assert self.process is not None and self.process.poll() is None, self.log.read_text()
        with contextlib.suppress(httpx.HTTPError):
            return self.http.get("/readyz").status_code == 200
        return False

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Stop it as a user would; the answer is its exit code."""
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.wait(SETTLE_SECONDS)

    def submit(self, job: dict[str, Any], **headers: str) -> str:
        answer = self.http.post("/v1/jobs", json=job, headers=headers)
        assert answer.status_code == 202, answer.text
        return str(answer.json()["id"])

    def job(self, job_id: str) -> dict[str, Any]:
        found: dict[str, Any] = self.http.get(f"/v1/jobs/{job_id}").json()
        return found

    def wait_for(self, job_id: str, *statuses: str) -> dict[str, Any]:
        def reached() -> bool:
            return self.job(job_id)["status"] in statuses

        eventually(
            reached,
            f"job {job_id} did not become {' or '.join(statuses)}",
            lambda: str(self.job(job_id)) + self.log.read_text()[-3000:],
        )
        return self.job(job_id)


@pytest.fixture
def stack(home: Path) -> Iterator[Callable[..., Stack]]:
    """`stack()` starts `safelight up`; `stack("serve")` the server alone. Whatever was started is stopped at the end."""
    started: list[Stack] = []

    def start(command: str = "up", **env: str) -> Stack:
        made = Stack(home, command, **env)
        started.append(made)
        return made.start()

    yield start
    for each in started:
        each.stop()
        each.http.close()


@pytest.fixture(scope="session")
def stack_type() -> type[Stack]:
    """For fixtures that share one stack between tests: whoever makes it stops it."""
    return Stack


@pytest.fixture
def until() -> Callable[..., None]:
    return eventually


def eventually(condition: Callable[[], bool], complaint: str, details: Callable[[], str] = str) -> None:
    """Wait until the condition holds, looking often; fail with the complaint if it never does."""
    deadline = time.monotonic() + SETTLE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"{complaint} within {SETTLE_SECONDS} s {details()}"
        time.sleep(0.02)


@pytest.fixture
def free_ports() -> Callable[[int], list[int]]:
    """`free_ports(2)`: as many different ports of this machine that nothing listens on."""
    return lambda count: [free_port() for _ in range(count)]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
