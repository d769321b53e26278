"""How light is the server? Starts `safelight serve` five times, each in an empty data folder.

    python bench/server_light.py

Prints JSON: seconds from the start of the process to `/readyz` answering 200 (database migrated, broker up), and the resident
memory of the server's process after it has idled for a while; the broker's is told beside it.
"""

import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil
from stack import spread, started

RUNS = 5
IDLE_SECONDS = 5


def main() -> dict[str, Any]:
    ready, server, broker = [], [], []
    for _ in range(RUNS):
        with tempfile.TemporaryDirectory() as folder:
            began = time.monotonic()
            with started(Path(folder) / "home", "serve") as (process, _http):
                ready.append(time.monotonic() - began)
                time.sleep(IDLE_SECONDS)
                server.append(process.memory_info().rss / 2**20)
                broker.append(sum(part.memory_info().rss for part in broker_processes(folder)) / 2**20)
    return {
        "runs": RUNS,
        "seconds_to_ready": spread(ready),
        "server_rss_mib": round(statistics.median(server), 1),
        "broker_rss_mib": round(statistics.median(broker), 1),
    }


def broker_processes(folder: str) -> list[psutil.Process]:
    """The embedded broker and its keeper, which are no children of the server."""
    keepers = [p for p in psutil.process_iter(["cmdline"]) if any(folder in part for part in p.info["cmdline"] or [])]
    return list({part.pid: part for keeper in keepers for part in (keeper, *keeper.children())}.values())


if __name__ == "__main__":
    print(json.dumps(main(), indent=2))
