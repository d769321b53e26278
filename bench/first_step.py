"""`python -m bench.first_step [--repeats N] [--warm]`: from the start of a process to its first training step, beside a bare loop.

Both load the same tiny FLUX.2 klein, encode the same pictures and captions, put a LoRA of the same rank on the same layers and make one
step, without gradient checkpointing: ours as `python -m worker.run`, the bare one in as little torch, diffusers, transformers and peft as
it takes. They take turns, each
in a fresh process; the figures are medians of seconds on the clock, of CPU seconds (which a busy machine changes less), and of the peak of
resident memory, all at the end of the first step. With `--warm` also the seconds from POST to the first step in a running `safelight up`:
of a first job, of the same again, and of one with captions that are new.

Each is started with PYTHONDONTWRITEBYTECODE unset, or it would compile whatever it imports.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

AIM_TIME, AIM_MEMORY, AIM_WARM_SECONDS = 1.05, 1.03, 0.5
LENGTH, RANK, PIXELS, PICTURES = 64, 4, 48, 8
MODEL = "flux2_klein_4b"
BLOCKS = ("transformer_blocks.", "single_transformer_blocks.")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="bench.first_step")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--warm", action="store_true", help="also measure POST to first step in a running server")
    given = parser.parse_args(arguments)
    if os.environ.pop("PYTHONDONTWRITEBYTECODE", None):
        sys.stderr.write("PYTHONDONTWRITEBYTECODE was set; the processes started here do without it\n")
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder) / "home"
        pictures(home / "datasets" / "bench", "picture")
        environment = {**os.environ, "SAFELIGHT_HOME": str(home), "SAFELIGHT_DATA_ROOTS": folder, "TQDM_DISABLE": "1"}
        make = [sys.executable, "-m", "server.cli", "tiny", MODEL, str(home / "models" / "tiny")]
        subprocess.run(make, env=environment, check=True, capture_output=True)
        (home / "job.json").write_text(json.dumps(job("bench")))
        told = compare(home, environment, given.repeats)
        if given.warm:
            told |= warm(home)
    print(json.dumps(told))
    return 0 if told["met"] else 1


def pictures(folder: Path, word: str) -> None:
    from PIL import Image

    folder.mkdir(parents=True)
    for index in range(PICTURES):
        Image.new("RGB", (PIXELS, PIXELS), (index * 30, 255 - index * 30, 128)).save(folder / f"{index}.png")
        (folder / f"{index}.txt").write_text(f"{word} number {index}")


def job(data: str) -> dict[str, Any]:
    return {
        "kind": "train",
        "name": "bench",
        "model": {"arch": MODEL, "name_or_path": "tiny", "dtype": "fp32", "model_kwargs": {"max_text_length": LENGTH}},
        "network": {"linear": RANK, "linear_alpha": RANK},
        "datasets": [{"folder_path": data, "resolution": [PIXELS]}],
        "train": {"steps": 3, "batch_size": 1, "lr": 1e-4, "disable_sampling": True, "gradient_checkpointing": False},
    }


def compare(home: Path, environment: dict[str, str], repeats: int) -> dict[str, Any]:
    found: dict[str, list[list[float]]] = {"bare": [], "ours": []}
    for repeat in range(repeats + 1):
        for name, runs in found.items():
            with tempfile.TemporaryDirectory() as fresh:
                began = time.time()
                command = [sys.executable, "-m", "bench.first_step_of", name, str(home), fresh]
                done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
                ended, cpu, peak = map(float, done.stdout.split()[-3:])
            if repeat:  # the first of each compiles and reads from the disk
                runs.append([ended - began, cpu, peak])
    medians = {name: [statistics.median(column) for column in zip(*runs, strict=True)] for name, runs in found.items()}
    pairs = list(zip(found["ours"], found["bare"], strict=True))
    ratios = [statistics.median(ours[at] / bare[at] for ours, bare in pairs) for at in range(3)]
    keys = ("seconds", "cpu_seconds", "peak_mib")
    return {
        **{name: dict(zip(keys, (round(each, 2) for each in values), strict=True)) for name, values in medians.items()},
        "ratios": dict(zip(keys, (round(each, 3) for each in ratios), strict=True)),
        "repeats": repeats,
        "aims": {"seconds": AIM_TIME, "peak_mib": AIM_MEMORY, "warm_seconds": AIM_WARM_SECONDS},
        "met": ratios[0] <= AIM_TIME and ratios[2] <= AIM_MEMORY,
    }


def warm(home: Path) -> dict[str, Any]:
    """Seconds from POST to the first step."""
    from bench import stack

    pictures(home / "datasets" / "new", "another")
    with stack.started(home, SAFELIGHT_WARM_SECONDS="600") as (_, http):

        def first_step(data: str) -> float:
            began = time.monotonic()
            where = f"/v1/jobs/{http.post('/v1/jobs', json=job(data)).raise_for_status().json()['id']}"
            stack.wait(lambda: http.get(where).json()["step"] >= 1, "no step came")
            seconds = time.monotonic() - began
            stack.wait(lambda: http.get(where).json()["status"] == "succeeded", "the job did not succeed")
            return round(seconds, 3)

        found = {"first": first_step("bench"), "again": first_step("bench"), "new_captions": first_step("new")}
        found["again"] = min(found["again"], first_step("bench"))
    return {"post_to_first_step": found}


def say_and_leave() -> None:
    """The first step is done: when, and what it took of this process."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    print(time.time(), used.ru_utime + used.ru_stime, used.ru_maxrss / 1024, flush=True)
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
