"""How soon does a watcher see a preview? Over 20 previews of a real job under `safelight up` on this machine.

    python bench/streaming.py

Prints JSON: seconds from the moment at which the PNG is complete under its name (its inode's change time, which the rename
sets) to (a) an SSE client holding its `sample` event, (b) a client of `samples/latest?wait=` holding all of its bytes.
"""

import json
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import httpx
from stack import make_pictures, spread, started, wait

NUM_PREVIEWS, EVERY = 20, 10
STEPS = (NUM_PREVIEWS - 1) * EVERY  # there is one before the first step
JOB = {
    "kind": "train",
    "name": "stream",
    "model": {"arch": "pocket", "name_or_path": "random", "model_kwargs": {"channels": [16, 32]}},
    "network": None,
    "datasets": [{"folder_path": "colours"}],
    "train": {"steps": STEPS, "batch_size": 2},
    "save": {"save_every": STEPS},
    "sample": {"sample_every": EVERY, "sample_steps": 8, "samples": [{"prompt": "colour 0"}]},
}


def main() -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder) / "home"
        make_pictures(home / "datasets" / "colours")
        with started(home) as (_, http):
            job_id = http.post("/v1/jobs", json=JOB).json()["id"]
            seen: dict[str, dict[int, float]] = {"sse": {}, "latest": {}}
            watchers = [
                threading.Thread(target=watch, args=(str(http.base_url), job_id, seen[name]))
                for name, watch in (("sse", watch_events), ("latest", watch_latest))
            ]
            for watcher in watchers:
                watcher.start()
            wait(lambda: not any(watcher.is_alive() for watcher in watchers), "the job did not end")
        complete = {index: completed_at(home, job_id, index) for index in range(1, NUM_PREVIEWS + 1)}
    delays = {name: [times[index] - complete[index] for index in complete if index in times] for name, times in seen.items()}
    return {"previews": NUM_PREVIEWS} | {
        name: {"seen": len(values), "seconds": spread(values)} for name, values in delays.items()
    }


def completed_at(home: Path, job_id: str, index: int) -> float:
    step = (index - 1) * EVERY
    return (home / "jobs" / job_id / "attempts/1/samples" / f"{step:09d}_000.png").stat().st_ctime


def watch_events(url: str, job_id: str, seen: dict[int, float]) -> None:
    with (
        httpx.Client(base_url=url, timeout=None, trust_env=False) as http,
        http.stream("GET", f"/v1/jobs/{job_id}/events", headers={"Accept": "text/event-stream"}) as stream,
    ):
        kind = ""
        for line in stream.iter_lines():
            name, _, value = line.partition(": ")
            kind = value if name == "event" else kind
            if name == "data" and kind == "sample":
                now = time.time()
                seen[json.loads(value)["data"]["index"]] = now


def watch_latest(url: str, job_id: str, seen: dict[int, float]) -> None:
    etag = ""
    with httpx.Client(base_url=url, timeout=None, trust_env=False) as http:
        while True:
            headers = {"If-None-Match": etag} if etag else {}
            answer = http.get(f"/v1/jobs/{job_id}/samples/latest", params={"wait": 60}, headers=headers)
            now = time.time()
            if answer.status_code == 200:
                etag = answer.headers["ETag"]
                seen[int(answer.headers["Safelight-Sample-Index"])] = now
            elif answer.headers["Safelight-Job-Status"] in ("succeeded", "failed", "canceled"):
                return


if __name__ == "__main__":
    print(json.dumps(main(), indent=2))
