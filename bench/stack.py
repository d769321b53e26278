"""What the benches share: a real Safelight on a free port in a data folder of its own."""

import contextlib
import os
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import psutil
from PIL import Image

SETTLE_SECONDS = 180


@contextlib.contextmanager
def started(home: Path, command: str = "up", **env: str) -> Iterator[tuple[psutil.Process, httpx.Client]]:
    """`safelight up` (or another command) on a free port, and a client for it; stopped at the end, also of a SIGTERM."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    log = (home.parent / "up.log").open("ab")
    process = subprocess.Popen(
        [sys.executable, "-m", "server.cli", command],
        env={**environment(home), "SAFELIGHT_PORT": port, **env}, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60, trust_env=False) as http:
            wait(lambda: is_ready(http), f"the server did not become ready: {log.name}")
            yield psutil.Process(process.pid), http
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(SETTLE_SECONDS)
        log.close()


def environment(home: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SAFELIGHT_")}
    return {
        **kept,
        "OMP_NUM_THREADS": "1",
        "SAFELIGHT_HOME": str(home),
        "SAFELIGHT_DATA_ROOTS": str(home),
        "SAFELIGHT_LEASE_SECONDS": "5",
    }


def is_ready(http: httpx.Client) -> bool:
    try:
        return http.get("/readyz").status_code == 200
    except httpx.HTTPError:
        return False


def wait(condition: Callable[[], bool], complaint: str, seconds: float = SETTLE_SECONDS) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(complaint)
        time.sleep(0.02)


def make_pictures(folder: Path) -> None:
    folder.mkdir(parents=True)
    for index in range(4):
        Image.new("RGB", (32, 32), (60 * index, 255 - 60 * index, 128)).save(folder / f"{index}.png")
        (folder / f"{index}.txt").write_text(f"colour {index}")


def spread(values: list[float]) -> dict[str, float]:
    cut = statistics.quantiles(values, n=20, method="inclusive")
    return {"p50": round(statistics.median(values), 3), "p95": round(cut[18], 3), "max": round(max(values), 3)}
