"""What a process that died had written is in the event of its death and in the error, and no more is read of it than its end."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from server.store import jobs
from server.store.files import LAST_LINES, last_words, stderr_file
from server.store.jobs import MAX_FAILURES
from worker import app

WRITES = """
import logging, os, sys
from pathlib import Path
from worker import stderr
logging.basicConfig(level="INFO", format="%(message)s")
with stderr.kept(Path(sys.argv[1])):
    logging.info("a line of ours")
    print("a library's warning", file=sys.stderr)
    os.write(2, b"Assertion `index < size` failed.\\n")
    if sys.argv[2] == "dies":
        os.kill(os.getpid(), 11)
logging.info("afterwards")
os.write(2, b"also afterwards\\n")
with stderr.kept(Path(sys.argv[1]).with_name("quiet.log")):
    pass
"""


@pytest.mark.parametrize("end", ["dies", "goes on"])
def test_all_that_is_written_is_kept_and_what_python_writes_is_seen(tmp_path: Path, end: str) -> None:
    path = tmp_path / "attempts/1/stderr.log"
    done = subprocess.run([sys.executable, "-c", WRITES, str(path), end], capture_output=True, text=True, timeout=60)
    wrote = ["a line of ours", "a library's warning"]
    assert path.read_text().splitlines() == [*wrote, "Assertion `index < size` failed."]
    assert done.stderr.splitlines() == wrote + (["afterwards", "also afterwards"] if end == "goes on" else [])
    assert (done.returncode == 0) == (end == "goes on")
    assert not path.with_name("quiet.log").exists()


def test_a_run_whose_file_cannot_be_made_goes_without(tmp_path: Path) -> None:
    (tmp_path / "attempts").write_text("no folder")
    path = tmp_path / "attempts/1/stderr.log"
    done = subprocess.run([sys.executable, "-c", WRITES, str(path), "goes on"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0
    assert "Assertion `index < size` failed." in done.stderr.splitlines()


@pytest.fixture
def claimed(migrated: Path, tiny_job: Any) -> Any:
    from models.catalog import parse_job

    jobs.add(parse_job(tiny_job()).model_dump(mode="json"))
    return jobs.claim_next("w", ["pocket"])


def write(job: Any, text: str, gap: int = 0) -> None:
    path = stderr_file(job.id, job.attempt)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.seek(gap)
        file.write(text.encode())


def test_of_a_file_however_long_the_last_lines_are_read(claimed: Any, monkeypatch: Any) -> None:
    assert last_words(claimed.id, 1) == ""
    write(claimed, "\n".join(["x" * 5000, *(f"line {number}" for number in range(100))]), gap=2**40)  # a hole of a terabyte
    assert last_words(claimed.id, 1).splitlines() == [f"line {number}" for number in range(100 - LAST_LINES, 100)]
    write(claimed, "x" * 100_000)
    assert 0 < len(last_words(claimed.id, 1)) < 1000
    write(claimed, " 10%\r 20%\r\nonly these\n\n")
    assert last_words(claimed.id, 1) == " 10%\n 20%\nonly these"


def test_of_a_crash_the_innermost_calls_are_shown(claimed: Any) -> None:
    trace = ["Fatal Python error: Segmentation fault", "", "Current thread 0x1 (most recent call first):"]
    write(claimed, "\n".join([*("before",) * 30, "what led to it", *trace, *(f'  File "{place}.py"' for place in range(40))]))
    shown = last_words(claimed.id, 1).splitlines()
    assert len(shown) == LAST_LINES
    assert shown[9:13] == ["what led to it", trace[0], trace[2], '  File "0.py"']


def test_the_event_of_a_death_and_the_error_hold_them(claimed: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(app.extensions, "archs", lambda: ["pocket"])
    monkeypatch.setattr(app.broker, "publish", lambda told: seen.extend(told))
    monkeypatch.setattr(app.broker, "ring", lambda _: None)
    supervisor = app.Supervisor.__new__(app.Supervisor)
    supervisor.worker, supervisor.stopping = app.Worker(id="w", host="h", device="cpu", pid=1), app.threading.Event()
    seen: list[Any] = []
    for attempt in range(1, MAX_FAILURES + 1):
        job = claimed if attempt == 1 else jobs.claim_next("w", ["pocket"])
        write(job, f"CUDA error in attempt {attempt}\n")
        assert supervisor.child_died("the training process died (signal 9 (SIGKILL))")
    told = [row.data["message"] for row in seen if row.type == "log"]
    assert told[0] == (
        "the training process died (signal 9 (SIGKILL)) at step 0; the usual cause is that the machine ran out of memory. "
        "The last that it wrote:\nCUDA error in attempt 1"
    )
    failed = jobs.get(claimed.id)
    assert failed.status == "failed"
    assert failed.error["traceback"] == f"CUDA error in attempt {MAX_FAILURES}\n"
    assert failed.error["hint"].startswith("The usual cause is that the machine ran out of memory. Look at the log")
