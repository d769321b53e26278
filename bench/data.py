"""What the data side costs: the check of a job's second start over many files, and how fast pictures are decoded.

`python -m bench.data [--files 100000] [--pictures 40]` works in a temporary folder. The first start looks at every file and encodes it
with a model that costs nothing; the second finds all of it unchanged. Decoding is measured on one core from 1 MP JPEGs, our loop and a
plain Pillow loop in turns, medians of their rates.
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from PIL import Image

from models import catalog
from models.base import BaseModel
from models.data.datasets import Folders
from models.data.entries import Entry, make_entries
from models.prompt_embeds import AdvancedPromptEmbeds
from models.spec import TrainSpec
from worker.data import decode, survey
from worker.data.batches import Batches
from worker.report import Reporter

ROUNDS = 7


class Free(BaseModel):
    """Costs nothing: a number for a picture, a number for a text."""

    def __init__(self, cache: Path) -> None:
        super().__init__("cpu", SimpleNamespace(), dtype="fp32")
        self.cache_folder = cache

    def get_bucket_divisibility(self) -> int:
        return 16

    def encode_images(self, image_list: Any, *_: Any) -> torch.Tensor:
        return torch.stack([image[:, :1, :1] for image in image_list])

    def get_prompt_embeds(self, prompt: list[str]) -> AdvancedPromptEmbeds:
        return AdvancedPromptEmbeds(text_embeds=[torch.zeros(1, 1) for _ in prompt])


class Silent(Reporter):
    def phase(self, *_: Any) -> None:
        pass


def job(folder: Path) -> TrainSpec:
    spec = catalog.parse_job(
        {
            "kind": "train",
            "name": "bench",
            "model": {"arch": "pocket", "name_or_path": "random"},
            "datasets": [{"folder_path": str(folder)}],
        }
    )
    assert isinstance(spec, TrainSpec)
    return spec


def start(folder: Path, cache: Path) -> dict[str, float]:
    """Seconds of each part of a job's start, before its first step; and of this process's work, without what others had of the
    machine."""
    reporter, spec = Silent(cache, 1), job(folder)
    began, working = time.perf_counter(), time.process_time()
    surveys = survey.survey(spec, [Folders(folder)], cache, reporter)
    looked = time.perf_counter()
    made = Batches(Free(cache), spec, surveys)
    built = time.perf_counter()
    made.cache(reporter)
    done = time.perf_counter()
    return {
        "look at files": looked - began,
        "make entries": built - looked,
        "cache": done - built,
        "all": done - began,
        "its work": time.process_time() - working,
    }


def many_files(home: Path, count: int) -> None:
    folder = home / "many"
    folder.mkdir()
    for number in range(count):
        Image.new("RGB", (16, 16), (number % 256, number // 256 % 256, number // 65536)).save(folder / f"{number:06d}.png")
        (folder / f"{number:06d}.txt").write_text(f"picture number {number}")
    time.sleep(0.1)  # younger files than a clock's tick are not trusted
    for name in ("first start", "second start"):
        told = ", ".join(f"{part} {seconds:.1f} s" for part, seconds in start(folder, home / "cache").items())
        print(f"{count} files, {name}: {told}")


def decoding(home: Path, count: int) -> None:
    folder = home / "jpegs"
    folder.mkdir()
    levels = np.random.default_rng(0)
    for number in range(count):
        coarse = Image.fromarray(levels.integers(0, 256, (128, 128, 3), dtype=np.uint8))
        coarse.resize((1024, 1024), Image.Resampling.BICUBIC).save(folder / f"{number}.jpg", quality=90)
        (folder / f"{number}.txt").write_text("a picture")
    for resolution in (1024, 512):
        spec = job(folder)
        spec = spec.model_copy(update={"datasets": [spec.datasets[0].model_copy(update={"resolution": [resolution]})]})
        entries = make_entries(spec, survey.survey(spec, [Folders(folder)], None, Silent(home, 1)), 16)
        ours, plain = [], []
        for _ in range(ROUNDS):
            ours.append(rate(lambda entry: decode.picture(entry.item.media, entry.view), entries))
            plain.append(rate(lambda entry, size: by_pillow(entry.item.path, size), entries, resolution))
        print(
            f"1 MP JPEG to {resolution}²: {statistics.median(ours):.1f} pictures/s per core, Pillow {statistics.median(plain):.1f}"
        )


def by_pillow(path: Path, size: int) -> torch.Tensor:
    """The least that must be done: decode, resize, tensor."""
    image = Image.open(path).convert("RGB")
    if image.size != (size, size):
        image = image.resize((size, size), Image.Resampling.BICUBIC)
    return torch.from_numpy(np.array(image)).permute(2, 0, 1).float() / 127.5 - 1


def rate(work: Any, entries: list[Entry], *more: Any) -> float:
    """Entries a second of CPU time: others may use the machine."""
    began = time.process_time()
    for entry in entries:
        work(entry, *more)
    return float(len(entries) / (time.process_time() - began))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--files", type=int, default=100_000)
    parser.add_argument("--pictures", type=int, default=40)
    wanted = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as home:
        decoding(Path(home), wanted.pictures)
        many_files(Path(home), wanted.files)


if __name__ == "__main__":
    main()
