"""A matrix of pictures in a real browser: a job that made one, written as a worker writes it. The walk is ui/e2e/matrix.mjs."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from PIL import Image

from server.store import jobs
from server.store.tables import Status
from worker.media import write
from worker.report_store import StoreReporter

ROOT = Path(__file__).parents[2]
CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
CHECKPOINTS = ["job:j_x/a_000000010.safetensors", "job:j_x/a_000000020.safetensors"]
WEIGHTS = [0.5, 1.0]
PROMPTS = ["a fox", "a hen"]


def ended_matrix() -> str:
    """A job of all pictures but the last."""
    matrix = {"checkpoints": CHECKPOINTS, "weights": WEIGHTS}
    jobs.add(
        {"name": "m", "kind": "sample", "model": {"arch": "a"}, "matrix": matrix, "samples": [{"prompt": p} for p in PROMPTS]}
    )
    job = jobs.claim_next("w", ["a"])
    assert job is not None
    reporter = StoreReporter(job)
    columns = [(checkpoint, weight) for checkpoint in CHECKPOINTS for weight in WEIGHTS]
    cells = [(*column, index) for column in columns for index in range(len(PROMPTS))]
    for cell, (checkpoint, weight, index) in enumerate(cells[:-1]):
        record = {"step": cell + 1, "prompt_index": index, "prompt": PROMPTS[index], "neg": "", "seed": 1, "guidance_scale": 1.0}
        record |= {"sample_steps": 2, "cell": cell, "checkpoint": checkpoint, "weight": weight}
        picture = Image.new("RGB", (96, 64), (30 * cell, 90, 200))
        reporter.preview(write(reporter.workdir / "samples" / f"{cell:09d}", picture, record))
    error = {"code": "pictures_failed", "message": "1 of 8 pictures could not be made", "hint": None, "traceback": None}
    jobs.finish(job.id, job.attempt, Status.FAILED, error)
    return job.id


@pytest.mark.skipif(CHROMIUM is None, reason="NO BROWSER: install chromium or set CHROMIUM; the page is not tested without one")
def test_matrix(stack, migrated: Path, tmp_path: Path) -> None:
    job_id = ended_matrix()
    up = stack("serve")
    walk = [
        "sh",
        "ui/with-node.sh",
        "node",
        "ui/e2e/matrix.mjs",
        f"http://127.0.0.1:{up.port}",
        job_id,
        str(tmp_path / "screens"),
    ]
    env = {**os.environ, "CHROMIUM": str(CHROMIUM)}
    ran = subprocess.run(walk, cwd=ROOT, env=env, capture_output=True, text=True, timeout=200, check=False)
    assert ran.returncode == 0, ran.stdout[-3000:] + ran.stderr[-2000:] + up.log.read_text()[-2000:]
