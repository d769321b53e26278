"""A disk that fills up in the middle of a run: the job says so, what was saved before is whole, and it goes on once there is space."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from models.bundles import is_whole

RUN = """
import json, resource, sys
from models import catalog
from server.store import jobs, verbs
from server.store.engine import migrate
from worker.training import checkpoint, saves
from worker.sampling import preview
from worker import tasks
from worker.data import cache

WRITES = {
    "cache": (cache.DiskCache, "write"),
    "state": (checkpoint, "save_tensors"),
    "weights": (saves, "write_weights"),
    "preview": (preview, "write"),
}

def full_at(what, time):
    "From its given time on, this write meets a file size limit. The answer makes space again."
    owner, name = WRITES[what]
    call, times = getattr(owner, name), []
    def limited(*args, **kwargs):
        times.append(1)
        if len(times) < time:
            return call(*args, **kwargs)
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
        try:
            return call(*args, **kwargs)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    setattr(owner, name, limited)
    return lambda: setattr(owner, name, call)

def work():
    tasks.work(jobs.claim_next("w", list(catalog.archs())))

migrate()
for what, spec in json.load(sys.stdin).items():
    job, _ = jobs.add(catalog.parse_job(spec).model_dump(mode="json"))
    make_space = full_at(what, 1 if what == "cache" else 2)
    work()
    make_space()
    ended = jobs.get(job.id)
    listed = [row.path for row in jobs.job_files(job.id, "bundle", "weights", "sample", "thumbnail")]
    if ended.status == "failed":
        verbs.resume(job.id)
        work()
    print(json.dumps([what, job.id, ended.status, ended.error, listed, jobs.get(job.id).status]))
"""


def answers(home: Path, tiny_job: Any) -> dict[str, list[Any]]:
    saving = tiny_job(**{"train.steps": 6, "train.disable_sampling": True, "save.save_every": 2})
    saving["save"]["recover_every_seconds"] = 3600.0
    seeing = {**saving, "train": {**saving["train"], "disable_sampling": False}}
    specs = {"cache": saving, "state": saving, "weights": saving, "preview": seeing}
    done = subprocess.run([sys.executable, "-c", RUN], input=json.dumps(specs), capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr[-3000:]
    return {what: rest for what, *rest in map(json.loads, done.stdout.splitlines())}


def test_a_full_disk_at_any_write(home: Path, pictures: Any, tiny_job: Any) -> None:
    from server.store import events, jobs
    from server.store.engine import reading
    from server.store.files import job_folder

    pictures()
    told = answers(home, tiny_job)
    expected = {
        "cache": "nothing was saved yet",
        "state": "the last good save is of step 2",
        "weights": "the last good save is of step 2",
    }
    for what, last_save in expected.items():
        job_id, status, error, listed, later = told[what]
        assert (status, error["code"]) == ("failed", "no_space"), (what, error)
        assert error["message"].startswith("no space left to write "), what
        assert error["message"].endswith(last_save), what
        assert len(listed) == (0 if what == "cache" else 2), what  # the first checkpoint: a bundle and its weights
        assert all((job_folder(job_id) / path).exists() for path in listed), what
        assert later == "succeeded", what
    job_id, status, _, listed, _ = told["preview"]
    assert status == "succeeded"  # a preview that finds no space is said to be missing; training goes on
    with reading() as session:
        said = [row.data["message"] for row in events.after(session, job_id, 0, 1000) if row.data.get("level") == "ERROR"]
    assert len([path for path in listed if path.endswith(".png")]) == 1
    assert said and all("File too large" in message for message in said)
    for job_id, *_ in told.values():
        bundles = [job_folder(job_id) / row.path for row in jobs.job_files(job_id, "bundle")]
        assert len(bundles) == 3
        assert all(map(is_whole, bundles))
        assert sorted(job_folder(job_id).rglob("bundles/*")) == sorted(bundles)  # nothing torn, nothing hidden
        names = {row.name for row in jobs.job_files(job_id, "weights")}
        assert names == {f"tiny_{step:09d}.safetensors" for step in (2, 4, 6)}
    assert list((home / "cache").rglob("*.part")) == []
