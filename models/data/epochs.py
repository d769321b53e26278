"""Which entries each micro-batch of a job holds, and what an epoch comes to. Torch-free: a plan shows what the loop does.

Where there are regularisation sets, every second optimizer step (the odd ones, counted from 0) is made of them alone.
"""

import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

from models.data.buckets import batches_per_epoch, epoch_batches
from models.data.captions import with_trigger
from models.data.datasets import Survey, every_dataset
from models.data.entries import Entry, cut, held_out, identity, is_held_out, make_entries, parted
from models.errors import Problem
from models.spec import TrainSettings, TrainSpec

SHOWN = 3  # entries of each dataset that a plan shows in detail


class _Stream:
    """Micro-batches without end out of one set of entries."""

    def __init__(self, indices: Sequence[int], entries: Sequence[Entry], train: TrainSettings) -> None:
        self.indices, self.train = indices, train
        self.buckets = [entries[index].bucket for index in indices]
        self.num_batches = batches_per_epoch(self.buckets, train.batch_size)
        self._epoch: tuple[int, list[list[int]]] = (-1, [])

    def members(self, number: int) -> list[int]:
        epoch, place = divmod(number, self.num_batches)
        if self._epoch[0] != epoch:
            train = self.train
            batches = epoch_batches(self.buckets, train.batch_size, train.seed, epoch, train.gradient_accumulation)
            self._epoch = (epoch, batches)
        return [self.indices[member] for member in self._epoch[1][place]]


class Order:
    """The order of a job's micro-batches, counted from 0 over all optimizer steps. It hangs on the job and its data alone."""

    def __init__(self, entries: Sequence[Entry], spec: TrainSpec) -> None:
        self.accumulation = spec.train.gradient_accumulation
        trained = [index for index, entry in enumerate(entries) if not entry.rule.is_reg]
        reg = [index for index, entry in enumerate(entries) if entry.rule.is_reg]
        self._trained = _Stream(trained, entries, spec.train)
        self._reg = _Stream(reg, entries, spec.train) if reg else None

    def is_reg(self, step: int) -> bool:
        return self._reg is not None and step % 2 == 1

    def members(self, number: int) -> list[int]:
        """The numbers of the entries of micro-batch `number`; all of them from one bucket."""
        if self._reg is None:
            return self._trained.members(number)
        step, micro = divmod(number, self.accumulation)
        stream = self._reg if self.is_reg(step) else self._trained
        return stream.members(step // 2 * self.accumulation + micro)

    @property
    def num_batches(self) -> int:
        """Micro-batches of an epoch of what is trained, without those of regularisation sets."""
        return self._trained.num_batches

    @property
    def steps_per_epoch(self) -> float:
        """Optimizer steps until all that is trained was shown once, with the regularisation steps between."""
        return self.num_batches / self.accumulation * (2 if self._reg else 1)


def validation_problems(spec: TrainSpec, surveys: Sequence[Survey]) -> list[Problem]:
    """What is wrong with holding out a share of this data, or a dataset that may hold the same files. `surveys` are those of
    `every_dataset`."""
    if not spec.validation:
        return []
    named = list(enumerate(zip(spec.datasets, surveys, strict=False)))
    if spec.validation.fraction:
        different = {identity(item) for _, (dataset, found) in named if not dataset.is_reg for item in found.items}
        if len(different) < 2:
            message = f"to hold one back takes at least two different pictures, not {len(different)}"
            hint = "add pictures, or name a dataset of its own in validation.dataset"
            return [Problem("/validation/fraction", message, hint)]
    out = held_out(spec, surveys)
    place = "/validation/dataset/folder_path" if spec.validation.dataset else "/validation/fraction"
    return [
        Problem(place, f"all of /datasets/{number} ({dataset.folder_path}) is held out too, so nothing of it is left to train")
        for number, (dataset, found) in named
        if (spec.validation.dataset or dataset.is_reg) and found.items and all(is_held_out(item, out) for item in found.items)
    ]


def epoch_summary(spec: TrainSpec, surveys: Sequence[Survey], divisibility: int) -> dict[str, Any]:
    """Buckets, batches and epochs of a job, and for some entries of each dataset what happens to them, as a plan shows it. Where files
    were not decoded, and so have no digest, what is held out is chosen by their paths: the counts are then estimates."""
    fits = not validation_problems(spec, surveys)
    entries, held = parted(spec, surveys, divisibility) if fits else (make_entries(spec, surveys, divisibility), [])
    order = Order(entries, spec) if any(not entry.rule.is_reg for entry in entries) else None
    steps = order.steps_per_epoch if order else 0
    return {
        "datasets": [
            _dataset_summary(spec, number, found, entries if number < len(spec.datasets) else held)
            for number, found in enumerate(surveys)
        ],
        "steps_per_epoch": round(steps, 2) if steps else None,
        "epochs": round(spec.train.steps / steps, 2) if steps else None,
    }


def _dataset_summary(spec: TrainSpec, number: int, found: Survey, entries: Sequence[Entry]) -> dict[str, Any]:
    _, dataset = every_dataset(spec)[number]
    is_trained = number < len(spec.datasets)
    own = [entry for entry in entries if entry.dataset == number]
    counts = sorted(Counter(entry.bucket for entry in own).items())
    shown = random.Random(f"{spec.train.seed}/{number}/shown").sample(range(len(own)), min(SHOWN, len(own)))
    return {
        "folder_path": dataset.folder_path,
        "images": len(found.items),
        "refused": [{"file": name, "reason": reason} for name, reason in found.refused],
        "captions_missing": len(found.uncaptioned) + len(found.defaulted),
        "buckets": [
            {"width": width, "height": height, "frames": frames, "milliseconds": milliseconds, "images": count}
            for (_, width, height, frames, milliseconds), count in counts
        ],
        "is_reg": dataset.is_reg,
        "masks": sum(item.mask is not None for item in found.items),
        "controls": sum(len(item.controls) for item in found.items),
        "held_out": len(found.items) - len({entry.item.name for entry in own}) if is_trained else len(found.items),
        "samples": [_sample(own[index]) for index in shown],
    }


def _sample(entry: Entry) -> dict[str, Any]:
    item = entry.item
    return {
        "file": item.name,
        "caption": with_trigger(item.caption, entry.rule),
        **cut(entry.view),
        "frames": item.num_frames,
        "mask": item.mask is not None,
        "controls": [each.path.name for each in item.controls],
    }
