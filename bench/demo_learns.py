"""Did the demo learn? For 24 training captions, is the training picture nearest to the sampled one (in pixels) the right one?

    python bench/demo_learns.py CHECKPOINT.safetensors DATASET_FOLDER

Prints the share and the seconds it took. Chance is one in the number of pictures.
"""

import json
import sys
import time
from pathlib import Path

import torch

from models import catalog
from models.batch import GenerateImageConfig
from models.data.captions import read_caption
from models.data.datasets import pictures
from worker.data.decode import pixels
from worker.load import Places, load_model

NUM_CAPTIONS, SIZE, STEPS, GUIDANCE, SEED = 24, 32, 20, 2.0, 1000


def retrieval(checkpoint: Path, folder: Path, num_captions: int = NUM_CAPTIONS, seed: int = SEED) -> float:
    """The share of captions whose sampled picture is nearest to its own training picture."""
    paths = list(pictures(folder))
    captions = [read_caption(path.with_suffix(".txt")) for path in paths]
    known = torch.stack([pixels(path, SIZE, SIZE) for path in paths]).flatten(1)
    spec = catalog.parse_job(
        {"kind": "sample", "name": "bench", "model": {"arch": "pocket", "name_or_path": "file"}, "samples": [{"prompt": "x"}]}
    )
    model = load_model(spec, Places(model=checkpoint), "cpu")
    chosen = list(range(0, len(paths), max(1, len(paths) // num_captions)))[:num_captions]
    wanted = [
        GenerateImageConfig(
            captions[i], width=SIZE, height=SIZE, seed=seed + i, guidance_scale=GUIDANCE, num_inference_steps=STEPS
        )
        for i in chosen
    ]
    embeds = {text: model.encode_prompt(text) for text in {"", *(config.prompt for config in wanted)}}
    right = 0
    for i, image in zip(chosen, model.generate_images(wanted, lambda c: (embeds[c.prompt], embeds[""])), strict=True):
        made = torch.tensor(list(image.get_flattened_data()), dtype=torch.float32).T.reshape(1, -1) / 127.5 - 1
        right += int(torch.cdist(made, known).argmin()) == i
    return right / len(chosen)


if __name__ == "__main__":
    torch.set_num_threads(1)
    began = time.monotonic()
    share = retrieval(Path(sys.argv[1]), Path(sys.argv[2]))
    print(json.dumps({"retrieval": share, "captions": NUM_CAPTIONS, "seconds": round(time.monotonic() - began, 1)}))
