"""What tests of a long job on a running stack share besides fixtures."""

import contextlib
import sqlite3
from pathlib import Path
from typing import Any

import psutil

STEPS = 90
MIDDLE = 30  # the first kept save; things are killed after it


def gone(process: psutil.Process) -> bool:
    """Ended, or waiting for a parent that never asks."""
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def writable(database: Path) -> bool:
    with contextlib.closing(sqlite3.connect(database, timeout=0.1, isolation_level=None)) as connection:
        try:
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("ROLLBACK")
        except sqlite3.OperationalError:
            return False
        return True


def told_steps(up: Any, job_id: str) -> list[int]:
    points = up.http.get(f"/v1/jobs/{job_id}/metrics").json()["points"]
    return [step for step, _ in points]


def every_telling(up: Any, job_id: str) -> list[int]:
    """The steps of all metrics events, in the order in which they were told."""
    events = up.http.get(f"/v1/jobs/{job_id}/events", params={"limit": 5000}).json()["events"]
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    return [event["data"]["step"] for event in events if event["type"] == "metrics"]
