"""A disk that fills up in the middle of a run: the job says so, and what was saved before is whole."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from worker.checkpoint import is_whole

RUN = """
import json, resource, sys, threading, time
from server.store import jobs
from server.store.engine import migrate
from worker import tasks
from models import catalog
migrate()
job, _ = jobs.add(catalog.parse_job(json.load(sys.stdin)).model_dump(mode="json"))

def fill_disk():
    "No file may grow as large as a bundle's state any more, once there is a first bundle."
    while not (rows := jobs.job_files(job.id, "bundle")):
        time.sleep(0.005)
    limit = rows[0].size // 2
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

threading.Thread(target=fill_disk, daemon=True).start()
tasks.work(jobs.claim_next("w", list(catalog.archs())))
print(job.id)
"""


def test_a_full_disk_fails_the_job_and_keeps_earlier_saves_whole(home: Path, pictures: Any, tiny_job: Any, until: Any) -> None:
    from server.store import jobs
    from server.store.files import job_folder

    pictures()
    job = tiny_job(**{"train.steps": 400, "train.disable_sampling": True, "save.save_every": 10})
    done = subprocess.run([sys.executable, "-c", RUN], input=json.dumps(job), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-3000:]
    ended = jobs.get(done.stdout.split()[-1])
    assert (ended.status, ended.error["code"]) == ("failed", "no_space"), ended.error["traceback"]
    assert "no space left to write" in ended.error["message"]
    listed = [job_folder(ended.id) / row.path for row in jobs.job_files(ended.id, "bundle")]
    assert listed
    assert all(is_whole(bundle) for bundle in listed)
    assert sorted(job_folder(ended.id).rglob("bundles/*")) == sorted(listed)
    weights = [job_folder(ended.id) / row.path for row in jobs.job_files(ended.id, "weights")]
    assert all(path.stat().st_size == row.size for path, row in zip(weights, jobs.job_files(ended.id, "weights"), strict=True))
