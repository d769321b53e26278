"""A matrix of pictures in a real browser: a job that made one, written as a worker writes it. The walk is ui/e2e/matrix.mjs."""

from pathlib import Path

from PIL import Image

from server.store import jobs
from server.store.tables import Status
from worker.report_store import StoreReporter
from worker.sampling.media import write

CHECKPOINTS = ["job:j_x/a_000000010.safetensors", "job:j_x/a_000000020.safetensors"]
WEIGHTS = [0.5, 1.0]
PROMPTS = ["a fox", "a hen"]


def ended_matrix() -> str:
    """A job of all pictures but the last, and one that it has no more since its matrix became another."""
    matrix = {"checkpoints": CHECKPOINTS, "weights": WEIGHTS}
    jobs.add(
        {"name": "m", "kind": "sample", "model": {"arch": "a"}, "matrix": matrix, "samples": [{"prompt": p} for p in PROMPTS]}
    )
    job = jobs.claim_next("w", ["a"])
    assert job is not None
    reporter = StoreReporter(job)
    columns = [(checkpoint, weight) for checkpoint in CHECKPOINTS for weight in WEIGHTS]
    cells = [(*column, index) for column in columns for index in range(len(PROMPTS))]
    gone = (CHECKPOINTS[0], 2.0, 1)
    for cell, (checkpoint, weight, index) in enumerate([*cells[:-1], gone]):
        record = {"step": 20 - cell, "prompt_index": index, "prompt": PROMPTS[index], "neg": "", "seed": 1, "guidance_scale": 1.0}
        record |= {"sample_steps": 2, "checkpoint": checkpoint, "weight": weight}
        picture = Image.new("RGB", (96, 64), (30 * cell, 90, 200))
        reporter.preview(write(reporter.workdir / "samples" / f"{cell:09d}", picture, record))
    error = {"code": "pictures_failed", "message": "1 of 8 pictures could not be made", "hint": None, "traceback": None}
    jobs.finish(job.id, job.attempt, Status.FAILED, error)
    return job.id


def test_matrix(walk, stack, migrated: Path) -> None:
    job_id = ended_matrix()
    walk("matrix", stack("serve"), job_id)
