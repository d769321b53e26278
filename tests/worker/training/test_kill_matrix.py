"""Killed anywhere, also in the middle of a save, a run ends with the bits of an undisturbed one, whatever its optimizer keeps."""

import itertools
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

CASES = list(itertools.product(["adamw", "adafactor", "prodigy"], [1, 3], [False, True]))
STEPS, SAVE_EVERY = 6, 2


def spec_of(small_job: Any, optimizer: str, accumulation: int, ema: bool) -> dict[str, Any]:
    train = {
        "optimizer": optimizer,
        "lr": 1.0 if optimizer == "prodigy" else 1e-3,
        "lr_scheduler": "cosine",
        "lr_warmup_steps": 2,
        "steps": STEPS,
        "batch_size": 1,
        "gradient_accumulation": accumulation,
        "ema_config": {"use_ema": ema},
        "disable_sampling": True,
    }
    network = {"type": "lora", "linear": 2, "linear_alpha": 2.0}
    job: dict[str, Any] = small_job(network=network, train=train, **{"save.save_every": SAVE_EVERY})
    return job


def test_a_killed_run_ends_with_the_bits_of_an_undisturbed_one(small_job, tmp_path: Path) -> None:
    cases = [
        {"job": spec_of(small_job, *case), "folder": str(tmp_path / str(number)), "seeds": [2 * number, 2 * number + 1]}
        for number, case in enumerate(CASES)
    ]
    command = [sys.executable, "-m", "tests.worker.killing"]
    done = subprocess.run(command, input=json.dumps(cases), capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr[-5000:]
    answers = json.loads(done.stdout)
    for case, answer in zip(CASES, answers, strict=True):
        assert answer["steps"] == list(range(1, STEPS + 1)), case
        assert len(answer["ends"]) == 2 * STEPS // SAVE_EVERY, case  # state and weights of each kept checkpoint
        for seed, killed in enumerate(answer["killed"]):
            assert killed["died"], case
            assert killed["ends"] == answer["ends"], (case, killed["at"])
            assert killed["there"] == answer["there"], (case, killed["at"])  # nothing torn stays
            assert killed["steps"] == list(range(STEPS - len(killed["steps"]) + 1, STEPS + 1)), case
            assert len(killed["steps"]) % SAVE_EVERY == 0, case  # from a kept checkpoint, or the start
            assert seed % 2 == 0 or killed["at"].startswith("save: "), case
    different = {json.dumps(answer["ends"]) for answer in answers}
    assert len(different) == len(CASES)  # no two cases are the same run
    assert len({killed["at"] for answer in answers for killed in answer["killed"]}) >= 3
