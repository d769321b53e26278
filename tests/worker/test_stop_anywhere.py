"""Wishes that come while a run loads for minutes, or caches slowly: acted on at once, with whatever is finished kept.

The architecture comes from a folder elsewhere and knows nothing of any of this. Its load waits for a pipe that nobody writes to, and its
encoder is slowed, for as long as there are files that say so.
"""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from server.store import jobs
from tests.worker.foreign_sources import THEIRS, net_weights, theirs
from tests.worker.long_run import every_telling, gone

NUM_PICTURES = 200
AT_LEAST_CACHED = 10
SLOW = THEIRS.replace(
    """        self.print_and_status_update("Loading")
""",
    """        self.signs = self.model_config.model_kwargs["signs"]
        with open(os.path.join(self.signs, "loads"), "a") as file:
            file.write(f"{os.getpid()}\\n")
        if os.path.exists(os.path.join(self.signs, "gate")):
            open(os.path.join(self.signs, "gate")).read()
""",
).replace(
    """        return torch.stack(list(image_list))""",
    """        if os.path.exists(os.path.join(self.signs, "slow")):
            import time

            time.sleep(0.2)  # the encoder is slow: nothing waits for this
        with open(os.path.join(self.signs, "encodes"), "a") as file:
            file.write("x" * len(image_list))
        return torch.stack(list(image_list))""",
)


@pytest.fixture(scope="module")
def shared_stack(tmp_path_factory: pytest.TempPathFactory, stack_type: Any) -> Iterator[Any]:
    """As everywhere, with the architecture beside it."""
    root = tmp_path_factory.mktemp("shared")
    theirs(root / "ext" / "pack", SLOW)
    net_weights(root / "weights")
    (root / "signs").mkdir()
    env = {"HOME": root / "home", "DATA_ROOTS": root, "EXTENSIONS": root / "ext", "WARM_SECONDS": 600}
    made = stack_type(root / "home", "up", **{f"SAFELIGHT_{name}": str(value) for name, value in env.items()})
    yield made
    if made.process:
        made.stop()
    made.http.close()


class Signs:
    """The files by which a test and the architecture speak."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def text(self, name: str) -> str:
        path = self.folder / name
        return path.read_text() if path.exists() else ""

    def loads(self) -> list[int]:
        """The process of each load so far."""
        return [int(pid) for pid in self.text("loads").split()]

    def num_encoded(self) -> int:
        return len(self.text("encodes"))


@pytest.fixture
def signs(up: Any, until: Callable[..., None]) -> Iterator[Signs]:
    def usable() -> bool:
        found = [each for each in up.http.get("/v1/archs").json()["archs"] if each["arch"] == "tiny_theirs"]
        return bool(found and found[0]["workers"])

    until(usable, "the architecture is not listed")
    made = Signs(up.home.parent / "signs")
    yield made
    for path in made.folder.iterdir():
        path.unlink()


@pytest.fixture
def job(up: Any, tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """`job()` trains the architecture for three steps; the warm model of another test is not the same."""
    root = up.home.parent

    def make(folder: str = "colours", **data: Any) -> dict[str, Any]:
        kwargs = {"signs": str(root / "signs"), "test": tmp_path.name}
        model = {"arch": "tiny_theirs", "name_or_path": str(root / "weights"), "dtype": "fp32", "model_kwargs": kwargs}
        return {
            "kind": "train",
            "name": "theirs",
            "model": model,
            "network": {"linear": 2},
            "datasets": [{"folder_path": folder, "resolution": [16], **data}],
            "train": {"steps": 3, "lr": 1e-2, "disable_sampling": True},
            "save": {"save_every": 3},
        }

    return make


@pytest.fixture
def loading(up: Any, signs: Signs, job: Any, until: Callable[..., None]) -> Callable[[], str]:
    """`loading()` submits a job and answers with its id once its load waits for what will not come."""

    def start() -> str:
        os.mkfifo(signs.folder / "gate")
        before = len(signs.loads())
        job_id: str = up.submit(job())
        until(lambda: len(signs.loads()) > before, "the job does not load", lambda: up.log.read_text()[-3000:])
        return job_id

    return start


@pytest.fixture
def told(up: Any) -> Iterator[Callable[[], list[str]]]:
    """`told()`: what the stack has written to its terminal during this test."""
    begin = len(up.log.read_bytes())
    yield lambda: up.log.read_bytes()[begin:].decode().splitlines()


def check_one_plain_line(lines: list[str], job_id: str, how: str) -> None:
    ends = [line for line in lines if "while it was loading" in line]
    assert [line.rpartition(" worker INFO ")[2] for line in ends] == [
        f"job {job_id}: {how} while it was loading; this process ends"
    ]
    assert not [line for line in lines if "Traceback" in line or "ERROR" in line or "died" in line]


def test_a_job_is_canceled_although_its_load_does_not_listen(up, signs, loading, told, tiny_job, until) -> None:
    job_id = loading()
    (loader,) = signs.loads()
    process = psutil.Process(loader)
    assert up.job(job_id)["phase"] == "loading"
    assert up.http.post(f"/v1/jobs/{job_id}/cancel").json()["status"] == "canceling"
    assert up.wait_for(job_id, "canceled", "failed", "succeeded")["status"] == "canceled"
    until(lambda: gone(process), "the process that loads is still there")
    after = up.submit(tiny_job(**{"train.steps": 2, "train.disable_sampling": True}))
    assert up.wait_for(after, "succeeded", "failed")["status"] == "succeeded"
    assert (up.job(after)["attempt"], up.job(job_id)["attempt"]) == (1, 1)
    check_one_plain_line(told(), job_id, "canceled")


def test_a_job_is_paused_while_it_loads_and_loads_again_when_resumed(up, signs, loading, told, until) -> None:
    job_id = loading()
    process = psutil.Process(signs.loads()[-1])
    assert up.http.post(f"/v1/jobs/{job_id}/pause").json()["status"] == "pausing"
    paused = up.wait_for(job_id, "paused", "failed", "succeeded")
    assert (paused["status"], paused["worker"], paused["phase"], paused["error"]) == ("paused", None, None, None)
    until(lambda: gone(process), "the process that loads is still there")
    (signs.folder / "gate").unlink()
    assert up.http.post(f"/v1/jobs/{job_id}/resume").status_code == 202
    done = up.wait_for(job_id, "succeeded", "failed")
    assert (done["status"], done["attempt"], done["step"]) == ("succeeded", 2, 3), done["error"]
    assert every_telling(up, job_id) == [1, 2, 3]
    check_one_plain_line(told(), job_id, "paused")


def test_a_load_whose_lease_is_lost_ends_and_says_nothing_of_the_job(up, signs, loading, told, until) -> None:
    job_id = loading()
    process = psutil.Process(signs.loads()[-1])
    (signs.folder / "gate").rename(signs.folder / "old gate")
    assert jobs.give_back(job_id, 1, "taken away")  # as the server's reaper does
    done = up.wait_for(job_id, "succeeded", "failed")
    assert (done["status"], done["attempt"]) == ("succeeded", 2), done["error"]
    assert gone(process)
    check_one_plain_line(told(), job_id, "lost")


@pytest.mark.slow
def test_a_stack_that_is_stopped_while_a_job_loads_queues_it_and_starts_it_again(up, signs, loading, told) -> None:
    job_id = loading()
    assert up.stop() == 0
    left = jobs.get(job_id)
    assert (left.status, left.worker, left.failures) == ("queued", None, 0)
    check_one_plain_line(told(), job_id, "queued")
    (signs.folder / "gate").unlink()
    up.start()
    assert up.wait_for(job_id, "succeeded", "failed")["status"] == "succeeded"


def test_a_cancel_amid_slow_caching_keeps_what_is_cached_and_the_next_start_encodes_only_the_rest(
    up, signs, job, pictures, until
) -> None:
    folder = pictures("many", NUM_PICTURES, 16).rename(up.home / "datasets" / "many")
    different = len({path.read_bytes() for path in folder.glob("*.png")})  # two that are equal share an entry
    cache = up.home / "cache" / "latents"
    others = set(whole_entries(cache))
    (signs.folder / "slow").touch()
    job_id = up.submit(job("many", cache_latents_to_disk=True))
    until(lambda: signs.num_encoded() >= AT_LEAST_CACHED, "nothing is cached", lambda: str(up.job(job_id)))
    assert up.job(job_id)["phase"] == "caching"
    assert up.http.post(f"/v1/jobs/{job_id}/cancel").json()["status"] == "canceling"
    assert up.wait_for(job_id, "canceled", "failed", "succeeded")["status"] == "canceled"
    encoded = signs.num_encoded()
    assert AT_LEAST_CACHED <= encoded < different
    entries = whole_entries(cache)
    assert len(set(entries) - others) == encoded
    (signs.folder / "slow").unlink()
    assert up.http.post(f"/v1/jobs/{job_id}/resume").status_code == 202
    done = up.wait_for(job_id, "succeeded", "failed")
    assert (done["status"], done["step"]) == ("succeeded", 3), done["error"]
    assert signs.num_encoded() == different
    after = whole_entries(cache)
    assert len(set(after) - others) == different
    assert {path: after[path] for path in entries} == entries  # neither written again nor touched


def whole_entries(folder: Path) -> dict[Path, tuple[int, int]]:
    """Inode and time of each entry, all of which are whole; there is no file besides."""
    from worker.data.cache import DiskCache

    cache = DiskCache(folder)
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert all(path == cache.path(path.stem) and cache.read(path.stem) for path in files)
    return {path: (path.stat().st_ino, path.stat().st_mtime_ns) for path in files}
