"""`python -m bench.step_overhead [--cuda]`: what our whole step costs beside a bare torch + peft loop.

Both train the same LoRA (same layers, rank and optimizer) on the same tiny U-Net from pictures that are encoded already. Ours is the loop
of a job: data, captions, draws, loss, accumulation, clipping, reporter. The bare one takes pictures from a tensor and draws noise. They
take turns in blocks of steps; the figures are medians over blocks of a step's CPU time in this process, and its peak of allocated memory
as torch's profiler sees it. With --cuda there is no comparison: 50 of our steps run where any host synchronisation is an error.
"""

import argparse
import gc
import json
import logging
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

AIM_MILLISECONDS, AIM_MEMORY, LARGEST_STEP_MILLISECONDS = 0.5, 1.03, 25.0
CHANNELS, PIXELS, BATCH, RANK, PICTURES = [16, 32], 32, 1, 8, 16
WARM_UP, STEPS, BLOCKS = 20, 20, 20
CUDA_STEPS = 50


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="bench.step_overhead")
    parser.add_argument("--cuda", action="store_true", help="check for host synchronisation on a GPU")
    parser.add_argument("--blocks", type=int, default=BLOCKS)
    given = parser.parse_args(arguments)
    logging.disable(logging.INFO)
    with tempfile.TemporaryDirectory() as folder:
        os.environ |= {"SAFELIGHT_HOME": folder, "SAFELIGHT_DATA_ROOTS": folder, "TQDM_DISABLE": "1", "HF_HUB_OFFLINE": "1"}
        pictures(Path(folder) / "datasets" / "bench")
        told = without_sync() if given.cuda else compare(given.blocks)
    print(json.dumps(told, indent=2))
    return 0 if told["met"] else 1


def pictures(folder: Path) -> None:
    from PIL import Image

    folder.mkdir(parents=True)
    for index in range(PICTURES):
        Image.new("RGB", (PIXELS, PIXELS), (index * 15, 255 - index * 15, 128)).save(folder / f"{index}.png")
        (folder / f"{index}.txt").write_text(f"picture number {index}")


def job() -> Any:
    from models import catalog

    return catalog.parse_job(
        {
            "kind": "train",
            "name": "bench",
            "model": {"arch": "pocket", "name_or_path": "random", "dtype": "fp32", "model_kwargs": {"channels": CHANNELS}},
            "network": {"linear": RANK, "linear_alpha": RANK},
            "datasets": [{"folder_path": "bench", "resolution": [PIXELS], "caption_dropout_rate": 0.1}],
            "train": {"steps": 10_000_000, "batch_size": BATCH, "lr": 1e-4, "disable_sampling": True},
        }
    )


def ours(device: str, reporter: Any) -> tuple[Iterator[None], Any]:
    """The loop of a job, right before its first step, and its model."""
    from models import memory
    from worker.data.batches import Batches
    from worker.data.survey import survey
    from worker.load import load_model
    from worker.places import find_places
    from worker.training import loop as train
    from worker.training.steps import TrainStep

    spec = job()
    places = find_places(spec)
    model = load_model(spec, places, device)
    state = train.make_state(model, spec)
    data = Batches(model, spec, survey(spec, places.datasets, places.cache, reporter))
    data.cache(reporter)
    memory.encoded(model, spec, previews=False)
    return train.steps(TrainStep(model, spec), spec, state, data, reporter), model


def bare() -> Iterator[None]:
    """The same network and layers in as little code as it takes."""
    import torch
    from diffusers import UNet2DConditionModel
    from peft import LoraConfig

    from models.archs.pocket.model import TEXT_FEATURES, unet_config

    torch.manual_seed(0)
    unet: Any = UNet2DConditionModel(**unet_config(CHANNELS)).requires_grad_(False)
    linear = [
        name
        for name, part in unet.named_modules()
        if isinstance(part, torch.nn.Linear) or (isinstance(part, torch.nn.Conv2d) and part.kernel_size == (1, 1))
    ]
    unet.add_adapter(LoraConfig(r=RANK, lora_alpha=RANK, target_modules=linear))
    unet.train()
    params = [param for param in unet.parameters() if param.requires_grad]
    optimizer = torch.optim.AdamW(params, lr=1e-4, eps=1e-6, fused=True)
    pictures = torch.rand(PICTURES, 12, PIXELS // 2, PIXELS // 2) * 2 - 1  # as many as ours keeps in memory
    texts = torch.randn(PICTURES, 1, TEXT_FEATURES)
    while True:
        picked = torch.randint(PICTURES, (BATCH,))
        latents, text = pictures[picked], texts[picked]
        noise, t = torch.randn_like(latents), torch.rand(BATCH)
        share = t.reshape(-1, 1, 1, 1)
        noisy = (1 - share) * latents + share * noise
        predicted = unet(noisy, t * 1000, encoder_hidden_states=text, class_labels=text[:, 0], return_dict=False)[0]
        torch.nn.functional.mse_loss(predicted, noise - latents).backward()
        torch.nn.utils.clip_grad_norm_(params, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        yield


def compare(blocks: int) -> dict[str, Any]:
    import torch

    from worker.report import Reporter

    torch.set_num_threads(1)
    memory_ratio = peak_bytes(lambda: ours("cpu", Reporter(Path("run"), 1))[0]) / peak_bytes(bare)
    loops = {"bare": bare(), "ours": ours("cpu", Reporter(Path("run"), 1))[0]}
    for loop in loops.values():
        for _ in range(WARM_UP):
            next(loop)
    taken: dict[str, list[float]] = {name: [] for name in loops}
    gc.collect()
    for _ in range(blocks):
        for name, loop in loops.items():
            began = time.process_time()
            for _ in range(STEPS):
                next(loop)
            taken[name].append((time.process_time() - began) / STEPS * 1000)
    added = statistics.median(mine - theirs for mine, theirs in zip(taken["ours"], taken["bare"], strict=True))
    medians = {name: statistics.median(values) for name, values in taken.items()}
    return {
        "bare_ms": round(medians["bare"], 3),
        "ours_ms": round(medians["ours"], 3),
        "added_ms": round(added, 3),
        "memory_ratio": round(memory_ratio, 4),
        "blocks": blocks,
        "steps_per_block": STEPS,
        "aims": {"added_ms": AIM_MILLISECONDS, "memory_ratio": AIM_MEMORY},
        "met": added <= AIM_MILLISECONDS and memory_ratio <= AIM_MEMORY and medians["bare"] <= LARGEST_STEP_MILLISECONDS,
    }


def peak_bytes(start: Callable[[], Iterator[None]]) -> int:
    """The most that is allocated during a few steps, the model included."""
    from torch.profiler import ProfilerActivity, profile, record_function

    gc.collect()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as told:
        loop = start()
        gc.collect()
        with record_function("the steps begin"):
            pass
        for _ in range(4):
            next(loop)
    events: Any = told.profiler.kineto_results.events()  # type: ignore[union-attr]
    (begin,) = [event.start_ns() for event in events if event.name() == "the steps begin"]
    now = most = 0
    for event in sorted((each for each in events if each.name() == "[memory]"), key=lambda each: each.start_ns()):
        now += event.nbytes()
        most = max(most, now) if event.start_ns() >= begin else most
    return most


def without_sync() -> dict[str, Any]:
    import torch

    from worker.report import Reporter

    class Waiting(Reporter):
        """Rows are due only when it is asked."""

        def step(self, told: Any) -> None:
            self._pending.append(told)

    reporter = Waiting(Path("run"), 1)
    loop, _ = ours("cuda", reporter)
    for _ in range(WARM_UP):
        next(loop)
    reporter.flush()
    torch.cuda.set_sync_debug_mode("error")
    done, fault = 0, None
    try:
        for _ in range(CUDA_STEPS):
            next(loop)
            done += 1
    except RuntimeError as error:
        fault = str(error)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    reporter.flush()
    return {"steps_without_synchronisation": done, "wanted": CUDA_STEPS, "fault": fault, "met": done == CUDA_STEPS}


if __name__ == "__main__":
    sys.exit(main())
