"""The point of it all: a model that is trained learns."""

from pathlib import Path
from typing import Any

import torch
from PIL import Image

from worker.data.decode import pixels

COLOURS = {"red": (220, 30, 30), "green": (30, 190, 60), "blue": (40, 60, 220), "yellow": (235, 215, 40)}
STEPS = 100


def test_a_hundred_steps_teach_the_colour_of_a_word(home: Path, tiny_job: Any, run_here: Any, scripted: Any) -> None:
    folder = home / "datasets" / "colours"
    folder.mkdir(parents=True)
    for name, colour in COLOURS.items():
        Image.new("RGB", (16, 16), colour).save(folder / f"{name}.png")
        (folder / f"{name}.txt").write_text(name)
    shared = {"width": 16, "height": 16, "sample_steps": 8, "guidance_scale": 1.0, "seed": 1}
    job = tiny_job(
        datasets=[{"folder_path": "colours", "resolution": [16], "num_repeats": 4}],
        sample={"sample_every": STEPS, "samples": [{"prompt": name} for name in COLOURS], **shared},
        **{
            "train.steps": STEPS,
            "train.batch_size": 16,
            "train.lr": 3e-3,
            "train.skip_first_sample": True,
            "save.save_every": STEPS,
        },
    )
    reporter = scripted()
    run_here(job, reporter)
    losses = reporter.heard("loss")
    assert len(losses) == STEPS
    assert sum(losses[-20:]) < 0.6 * sum(losses[:20])
    known = torch.tensor([*COLOURS.values()]) / 127.5 - 1
    made = [pixels(path, 16, 16).mean((1, 2)) for path in sorted(reporter.workdir.glob("samples/*.png"))]
    right = [int(torch.cdist(colour[None], known).argmin()) == index for index, colour in enumerate(made)]
    assert sum(right) >= 3, [colour.tolist() for colour in made]
