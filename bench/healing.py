"""What do kills cost? SIGKILLs the trainer and the worker in turn, at random moments of real jobs under `safelight up`.

    python bench/healing.py [--kills 20] [--seed 1]
    python bench/healing.py --night [--kills 10] [--steps 2000]     one job with every option that goes with the others,
                                                                    one kill in each tenth of it

Prints JSON: whether every job succeeded, whether every job's steps are gapless, whether the final weights equal those of an
undisturbed run bit for bit, and per kill the training seconds done twice (of steps told before the kill and told again after
it) and the seconds from the kill to the first step that was told afterwards.
"""

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
import psutil
import torch
from safetensors.torch import load_file
from stack import environment, make_pictures, spread, started, wait

STEPS = 300
KILLS_PER_JOB = 5
ALONE_SECONDS = 3 * 3600
LONGEST_SECONDS = 6.0  # a kill comes so long after the step it waits for, at most
ENDED = ("succeeded", "failed", "canceled")
JOB = {
    "kind": "train",
    "name": "kill",
    "model": {"arch": "pocket", "name_or_path": "random", "model_kwargs": {"channels": [16, 32]}},
    "network": None,
    "datasets": [{"folder_path": "colours"}],
    "train": {"steps": STEPS, "batch_size": 2, "lr": 1e-3, "ema_config": {"use_ema": True}},
    "save": {"save_every": 50, "recover_every_seconds": 1.0},
    "sample": {"sample_every": 50, "sample_steps": 4, "samples": [{"prompt": "colour 0"}]},
}
NIGHT = {
    **JOB,
    "name": "night",
    "model": {**JOB["model"], "quantize": True, "qtype": "qint8", "layer_offloading": True, "low_vram": True},
    "network": {"linear": 4, "linear_alpha": 2.0, "conv": 2, "dropout": 0.1},
    "trigger_word": "sks",
    "datasets": [
        {
            "folder_path": "colours", "flip_x": True, "random_crop": True, "num_repeats": 2, "caption_dropout_rate": 0.1,
            "mask_path": "masks", "mask_min_value": 0.1, "resolution": [16],
        },
        {"folder_path": "class", "is_reg": True, "prior_reg": True, "loss_multiplier": 0.5, "resolution": [16]},
    ],
    "train": {
        "steps": 2000, "batch_size": 1, "gradient_accumulation": 2, "optimizer": "prodigy", "lr": 1.0,
        "lr_scheduler": "cosine_with_restarts", "lr_scheduler_params": {"num_cycles": 2, "min_lr_ratio": 0.1},
        "lr_warmup_steps": 50, "timestep_type": "weighted", "content_or_style": "content", "loss_type": "huber",
        "noise_offset": 0.05, "reg_weight": 0.5, "diff_output_preservation": True, "diff_output_preservation_class": "tile",
        "gradient_checkpointing": True, "ema_config": {"use_ema": True},
    },
    "validation": {"fraction": 0.25, "every": 200},
    "save": {"save_every": 250, "recover_every_seconds": 1.0},
    "sample": {"sample_every": 500, "sample_steps": 4, "samples": [{"prompt": "[trigger] colour 0"}, {"prompt": "colour 1"}]},
}  # fmt: skip


def main(num_kills: int, seed: int, night: bool, steps: int) -> dict[str, Any]:
    draw = random.Random(seed)
    job = {**NIGHT, "train": {**NIGHT["train"], "steps": steps}} if night else JOB
    per_job = num_kills if night else KILLS_PER_JOB
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder) / "home"
        for name in ("colours", "masks", "class"):
            make_pictures(home / "datasets" / name)
        alone = start_alone(home, Path(folder), job)
        with started(home) as (up, http):
            jobs, kills = [], []
            while len(kills) < num_kills:
                job_id = http.post("/v1/jobs", json=job).json()["id"]
                jobs.append(job_id)
                for attempt in range(1, min(per_job, num_kills - len(kills)) + 1):
                    what = ("trainer", "worker")[len(kills) % 2]
                    first = draw.randrange((attempt - 1) * steps // num_kills, attempt * steps // num_kills) if night else 0
                    if not kill(up, http, job_id, attempt, what, draw.uniform(0, LONGEST_SECONDS), first):
                        break
                    kills.append({"job": job_id, "attempt": attempt, "killed": what, "at": time.time()})
                wait(lambda job_id=job_id: status(http, job_id) in ENDED, "the job did not end", ALONE_SECONDS)
            total = job["train"]["steps"]
            return judge(http, home, jobs, kills, weights_of_alone(alone, Path(folder), total), total)


def kill(up: psutil.Process, http: httpx.Client, job_id: str, attempt: int, what: str, seconds: float, first: int) -> bool:
    """Kill `seconds` after the attempt told a step that is not before `first`; False when the job ended before that."""
    wait(lambda: told(http, job_id, attempt) or status(http, job_id) in ENDED, f"attempt {attempt} did no step")
    wait(lambda: step_of(http, job_id) >= first or status(http, job_id) in ENDED, f"step {first} did not come", ALONE_SECONDS)
    time.sleep(seconds)
    if status(http, job_id) != "running":
        return False
    worker = next(child for child in up.children() if "worker.app" in child.cmdline())
    (worker if what == "worker" else worker.children()[0]).kill()
    return True


def judge(
    http: httpx.Client, home: Path, jobs: list[str], kills: list[dict[str, Any]], undisturbed: dict[str, Any], steps: int
) -> dict[str, Any]:
    gapless, equal = [], []
    ended = {job_id: http.get(f"/v1/jobs/{job_id}").json() for job_id in jobs}
    failed = [job["error"] for job in ended.values() if job["status"] != "succeeded"]
    if failed:
        return {"kills": len(kills), "jobs": len(jobs), "all_succeeded": False, "errors": failed}
    for job_id in jobs:
        events = metrics(http, job_id)
        gapless.append(sorted({event["data"]["step"] for event in events}) == list(range(1, steps + 1)))
        weights = load_file(next((home / "jobs" / job_id).rglob(f"step_*/*_{steps:09d}.safetensors")))
        equal.append(set(weights) == set(undisturbed) and all(torch.equal(weights[name], undisturbed[name]) for name in weights))
    amid = [each for each in kills if told(http, each["job"], each["attempt"] + 1)]
    repeated = [repeated_seconds(metrics(http, each["job"]), each["attempt"]) for each in amid]
    back = [back_seconds(metrics(http, each["job"]), each) for each in amid]
    return {
        "kills": len(kills),
        "of_trainer": sum(each["killed"] == "trainer" for each in kills),
        "of_worker": sum(each["killed"] == "worker" for each in kills),
        "after_the_last_step": len(kills) - len(amid),
        "jobs": len(jobs),
        "all_succeeded": True,
        "steps_gapless": all(gapless),
        "weights_equal_bit_for_bit": all(equal),
        "killed_after_steps": [step_before(metrics(http, each["job"]), each["attempt"]) for each in kills],
        "repeated_training_seconds": spread(repeated),
        "seconds_from_kill_to_next_step_told": spread(back),
    }


def repeated_seconds(events: list[dict[str, Any]], attempt: int) -> float:
    """What the next attempt did again of the steps that were told up to this one."""
    before = {event["data"]["step"] for event in events if event["attempt"] <= attempt}
    return sum(e["data"]["step_seconds"] for e in events if e["attempt"] == attempt + 1 and e["data"]["step"] in before)


def step_before(events: list[dict[str, Any]], attempt: int) -> int:
    return max(event["data"]["step"] for event in events if event["attempt"] == attempt)


def back_seconds(events: list[dict[str, Any]], kill: dict[str, Any]) -> float:
    first = min(datetime.fromisoformat(event["time"]).timestamp() for event in events if event["attempt"] == kill["attempt"] + 1)
    return first - kill["at"]


def metrics(http: httpx.Client, job_id: str) -> list[dict[str, Any]]:
    """The step rows; those of held-out pictures have no loss of a step."""
    found, after = [], 0
    while page := http.get(f"/v1/jobs/{job_id}/events", params={"limit": 5000, "after": after}).json()["events"]:
        found += [event for event in page if event["type"] == "metrics" and "loss" in event["data"]]
        after = page[-1]["seq"]
    return found


def told(http: httpx.Client, job_id: str, attempt: int) -> bool:
    return any(event["attempt"] == attempt for event in metrics(http, job_id))


def status(http: httpx.Client, job_id: str) -> str:
    return str(http.get(f"/v1/jobs/{job_id}").json()["status"])


def step_of(http: httpx.Client, job_id: str) -> int:
    return int(http.get(f"/v1/jobs/{job_id}").json()["step"])


def start_alone(home: Path, folder: Path, job: dict[str, Any]) -> subprocess.Popen[bytes]:
    """The same job with no server and no kills, beside the others."""
    (folder / "job.json").write_text(json.dumps(job))
    command = [sys.executable, "-m", "worker.run", str(folder / "job.json"), str(folder / "alone")]
    return subprocess.Popen(command, env=environment(home), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def weights_of_alone(alone: subprocess.Popen[bytes], folder: Path, steps: int) -> dict[str, Any]:
    if alone.wait(ALONE_SECONDS):
        raise RuntimeError(f"the undisturbed run ended with {alone.returncode}")
    return load_file(next((folder / "alone").rglob(f"step_*/*_{steps:09d}.safetensors")))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--night", action="store_true")
    parser.add_argument("--steps", type=int, default=2000)
    given = parser.parse_args()
    print(json.dumps(main(given.kills, given.seed, given.night, given.steps), indent=2))
