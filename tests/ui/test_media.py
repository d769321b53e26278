"""Clips and sounds in a real browser: jobs that made some, written as a worker writes them. The walk is ui/e2e/media.mjs."""

import math
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from models.batch import Audio, Clip
from server.store import jobs
from server.store.tables import Status
from worker.report_store import StoreReporter
from worker.sampling.media import write

RATE = 16000


def sound(seconds: float) -> Audio:
    t = torch.arange(int(seconds * RATE)) / RATE
    return Audio((torch.sin(2 * math.pi * 440 * t) * torch.exp(-2 * t))[None], RATE)


def clip(seed: int) -> Clip:
    frames = [Image.new("RGB", (96, 64), ((40 * seed + 12 * at) % 256, 90, 255 - 12 * at)) for at in range(16)]
    return Clip(frames, 8, sound(2.0))


def ended_job(kind: str, made: list[tuple[int, int, str, Any]]) -> str:
    """A job that made (step, prompt index, prompt, what) and succeeded."""
    prompts = [{"prompt": "x"}]
    body = {"train": {"steps": 20}} if kind == "train" else {"samples": prompts * len(made)}
    jobs.add({"name": f"{kind} clips", "kind": kind, "model": {"arch": "a"}, **body})
    job = jobs.claim_next("w", ["a"])
    assert job is not None
    reporter = StoreReporter(job)
    for step, index, prompt, what in made:
        record = {
            "step": step,
            "prompt_index": index,
            "prompt": prompt,
            "neg": "",
            "seed": 1,
            "guidance_scale": 1.0,
            "sample_steps": 2,
        }
        reporter.preview(write(reporter.workdir / "samples" / f"{step:09d}_{index:03d}", what, record))
    jobs.finish(job.id, job.attempt, Status.SUCCEEDED)
    return job.id


def test_clips_and_sounds_play(walk, stack, migrated: Path) -> None:
    trained = ended_job(
        "train",
        [
            (step, index, prompt, what)
            for step in (0, 10, 20)
            for index, (prompt, what) in enumerate({"a clip": clip(step), "a sound": sound(1.5)}.items())
        ],
    )
    every = {"a picture": clip(1).frames[0], "a clip": clip(2), "a sound": sound(0.5)}
    sampled = ended_job("sample", [(index + 1, index, prompt, what) for index, (prompt, what) in enumerate(every.items())])
    walk("media", stack("serve"), trained, sampled)
