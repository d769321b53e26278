"""Jobs in any state, put there through the store as a worker would, without one."""

import contextlib
import hashlib
import json
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from models import bundles
from models.catalog import parse_job
from server import cli
from server.store import broker, jobs, verbs
from server.store.files import attempt_folder
from server.store.settings import settings
from server.store.tables import File, Job, Status

ARCHS = ["pocket"]
PNG = b"\x89PNG\r\n\x1a\n picture "
PREVIEW = {
    "prompt_index": 0,
    "prompt": "a",
    "neg": "",
    "seed": 1,
    "width": 32,
    "height": 32,
    "guidance_scale": 1.0,
    "sample_steps": 2,
}


@pytest.fixture
def add(migrated: Path, tiny_job: Callable[..., dict[str, Any]]) -> Callable[..., str]:
    """`add()` queues a job and answers with its id; dotted keys change it."""

    def queue(**changes: Any) -> str:
        job, _ = jobs.add(parse_job(tiny_job(**changes)).model_dump(mode="json"))
        return job.id

    return queue


@pytest.fixture
def claimed(add: Callable[..., str]) -> Callable[..., Job]:
    """`claimed()`: a job that worker w has just taken (no other job may be queued before it)."""

    def take(**changes: Any) -> Job:
        job_id = add(**changes)
        job = jobs.claim_next("w", ARCHS)
        assert job is not None
        assert job.id == job_id
        return job

    return take


@pytest.fixture
def job_in(claimed: Callable[..., Job], add: Callable[..., str]) -> Callable[..., str]:
    """`job_in("failed", step=3)`: the id of a job in that state."""

    def make(status: str, step: int = 3) -> str:
        if status == Status.QUEUED:
            return add()
        job = claimed()
        if status == Status.PREPARING:
            return job.id
        jobs.tell(job.id, job.attempt, [("phase", {"phase": "training"})], status=Status.RUNNING, step=step)
        if status in (Status.CANCELING, Status.PAUSING):
            (verbs.cancel if status == Status.CANCELING else verbs.pause)(job.id)
        elif status != Status.RUNNING:
            error = {"code": "x", "message": "it broke", "hint": None, "traceback": None}
            jobs.finish(job.id, job.attempt, Status(status), error if status == Status.FAILED else None)
        return job.id

    return make


@pytest.fixture
def rests(claimed) -> Any:
    """`rests("canceled", bundle=3)`: the id of a job with six steps that stopped at step 4, its newest bundle at step 3."""

    def saved(job_id: str, step: int) -> None:
        folder = attempt_folder(job_id, 1) / f"step_{step:09d}"
        folder.mkdir(parents=True)
        (folder / "state.safetensors").write_bytes(b"state")
        digests = {"state.safetensors": hashlib.sha256(b"state").hexdigest()}
        (folder / bundles.MANIFEST).write_text(json.dumps({"sha256": digests}))
        path = f"attempts/1/{folder.name}"
        jobs.tell(
            job_id, 1, [], files=[File(job_id=job_id, attempt=1, kind="bundle", name=folder.name, path=path, size=1, step=step)]
        )

    def make(status: str = "canceled", bundle: int = 3, step: int = 4, **changes: Any) -> str:
        job: Job = claimed(**changes)
        if bundle:
            saved(job.id, bundle)
        jobs.tell(job.id, 1, [], status=Status.RUNNING, step=step)
        jobs.finish(job.id, 1, Status(status))
        return job.id

    return make


@pytest.fixture
def preview(home: Path) -> Callable[..., bytes]:
    """`preview(job, step)`: the worker makes a preview of a prompt; the answer is its bytes. `record` is what it says beyond that."""

    def make(job: Job, step: int, prompt_index: int = 0, name: str | None = None, **record: Any) -> bytes:
        path = attempt_folder(job.id, job.attempt) / "samples" / (name or f"{step:09d}_{prompt_index}.png")
        path.parent.mkdir(parents=True, exist_ok=True)
        data = PNG + f"of step {step}, prompt {prompt_index}".encode()
        path.write_bytes(data)
        small = path.with_suffix(".webp")
        small.write_bytes(b"RIFF small " + data)
        info = {**PREVIEW, "step": step, "prompt_index": prompt_index, **record}
        files = [
            File(**row(job, path), kind="sample", name=f"samples/{path.name}", step=step, info=info),
            File(**row(job, small), kind="thumbnail", name=f"thumbnails/{small.name}", step=step),
        ]
        jobs.tell(job.id, job.attempt, [("sample", info)], files=files)
        return data

    return make


def row(job: Job, path: Path) -> dict[str, Any]:
    inside = path.relative_to(attempt_folder(job.id, job.attempt).parents[1])
    return {"job_id": job.id, "attempt": job.attempt, "path": str(inside), "size": path.stat().st_size}


@pytest.fixture
def save(home: Path) -> Callable[..., Path]:
    """`save(job, "weights", "a.bin", b"...")`: the worker keeps a file under that name."""

    def make(job: Job, kind: str, name: str, data: bytes = b"0123456789", step: int = 1) -> Path:
        path = attempt_folder(job.id, job.attempt) / "saved" / name.replace("/", "_").replace("\\", "_")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        jobs.tell(job.id, job.attempt, [], files=[File(**row(job, path), kind=kind, name=name, step=step)])
        return path

    return make


@pytest.fixture
def app_again(home: Path) -> Callable[[], contextlib.AbstractContextManager[Any]]:
    """`with app_again() as client`: another app on the same data folder, after the first one has stopped."""
    from fastapi.testclient import TestClient

    from server.app import create_app

    return lambda: TestClient(create_app(), base_url="http://127.0.0.1:8765", raise_server_exceptions=False)


@pytest.fixture
def elsewhere() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """`elsewhere(code, "x")` runs Python code with sys.argv[1:] == ["x"] in a process of its own, on this test's data folder."""
    started: list[subprocess.Popen[str]] = []

    def run(code: str, *arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", textwrap.dedent(code), *arguments]
        started.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
        return started[-1]

    yield run
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def safelight(home, monkeypatch, capsys) -> Callable[..., tuple[int, str, str]]:
    """`safelight("jobs", "--json")` in this process: (exit code, stdout, stderr)."""

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["safelight", *arguments])
        capsys.readouterr()
        with pytest.raises(SystemExit) as left:
            cli.main()
        said = capsys.readouterr()
        return int(left.value.code or 0), said.out, said.err

    return run


@pytest.fixture
def server(home, stack, monkeypatch, pictures) -> Any:
    """A running server, which this process's commands find by their settings."""
    started = stack("serve", SAFELIGHT_LEASE_SECONDS="600")
    monkeypatch.setenv("SAFELIGHT_PORT", str(started.port))
    settings.cache_clear()
    broker.client.cache_clear()
    pictures()
    return started
