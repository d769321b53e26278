"""Batches ready for a step. Which pictures micro-batch number n holds follows from the job alone, so a resume needs only n."""

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from random import Random

import torch

from models.base import BaseModel, Embeds
from models.batch import Batch
from models.buckets import epoch_batches
from models.datasets import Item, Survey
from models.prompt_embeds import concat_prompt_embeds
from models.spec import TrainSpec
from worker.data.decode import pixels
from worker.report import Reporter
from worker.seeds import seed_for

AHEAD = 2  # micro-batches decoded in advance
PICTURES_AHEAD = 8  # the same for single pictures while caching


@dataclass(frozen=True)
class Entry:
    """One picture at one size, and how it is captioned."""

    item: Item
    size: tuple[int, int]
    dropout: float
    cached: bool


class Batches:
    """Caches what the job wants cached, then hands out micro-batches from any number on."""

    def __init__(self, model: BaseModel, spec: TrainSpec, surveys: list[Survey]) -> None:
        self.model, self.spec = model, spec
        divisibility = model.get_bucket_divisibility()
        self.entries = [
            Entry(item, size, dataset.caption_dropout_rate, dataset.cache_latents)
            for dataset, survey in zip(spec.datasets, surveys, strict=True)
            for item, size in survey.entries(dataset, divisibility)
        ]
        self._latents: dict[tuple[Item, tuple[int, int]], torch.Tensor] = {}
        self._embeds: dict[str, Embeds] = {}
        self._epoch: tuple[int, list[list[int]]] = (-1, [])

    def cache(self, reporter: Reporter) -> None:
        """Encode every caption, and every picture whose dataset caches latents, once."""
        captions = sorted(
            {entry.item.caption for entry in self.entries} | ({""} if any(e.dropout for e in self.entries) else set())
        )
        wanted = list(dict.fromkeys((entry.item, entry.size) for entry in self.entries if entry.cached))
        total = len(captions) + len(wanted)
        reporter.phase("caching", 0, total)
        for caption in captions:
            reporter.check()
            self._embeds[caption] = self.model.encode_prompt(caption).to("cpu")
        with ThreadPoolExecutor() as pool, torch.no_grad():
            for key, picture in zip(wanted, _ahead(pool, wanted), strict=True):
                reporter.check()
                self._latents[key] = self.model.encode_images([picture])[0].cpu()
        reporter.phase("caching", total, total)

    def from_number(self, first: int) -> Iterator[tuple[Batch, Embeds]]:
        """Micro-batches first, first + 1, ... without end, the next ones decoded in threads meanwhile."""
        with ThreadPoolExecutor(max_workers=AHEAD) as pool:
            coming: deque[Future[list[torch.Tensor]]] = deque()
            number = first
            while True:
                while len(coming) <= AHEAD:
                    coming.append(pool.submit(self._pictures, self._members(number + len(coming))))
                yield self._batch(number, coming.popleft().result())
                number += 1

    def _batch(self, number: int, pictures: list[torch.Tensor]) -> tuple[Batch, Embeds]:
        members = self._members(number)
        entries = [self.entries[index] for index in members]
        tensor = None
        if pictures:
            tensor = torch.stack(pictures)
            with torch.no_grad():
                latents = self.model.encode_images(tensor)
        else:
            latents = torch.stack([self._latents[entry.item, entry.size] for entry in entries]).to(self.model.device_torch)
        step, micro = divmod(number, self.spec.train.gradient_accumulation)
        first = micro * self.spec.train.batch_size
        captions = [self._caption(entry, step, first + place) for place, entry in enumerate(entries)]
        embeds = concat_prompt_embeds([self._embeds[c] for c in captions], self.model.te_padding_side)
        return Batch(latents, captions, tensor), embeds

    def _caption(self, entry: Entry, step: int, place: int) -> str:
        """The caption of the sample at this place of an optimizer step's whole batch, or "" where it is dropped."""
        chance = Random(seed_for(self.spec.train.seed, step, place, "caption")).random()
        return "" if chance < entry.dropout else entry.item.caption

    def _pictures(self, members: list[int]) -> list[torch.Tensor]:
        """Pixels of the batch, unless all of it is cached."""
        entries = [self.entries[index] for index in members]
        return [] if all(entry.cached for entry in entries) else [pixels(entry.item.path, *entry.size) for entry in entries]

    def _members(self, number: int) -> list[int]:
        epoch, place = divmod(number, self.num_batches)
        if self._epoch[0] != epoch:
            self._epoch = (epoch, self._order(epoch))
        return self._epoch[1][place]

    def _order(self, epoch: int) -> list[list[int]]:
        return epoch_batches([entry.size for entry in self.entries], self.spec.train.batch_size, self.spec.train.seed, epoch)

    @property
    def num_batches(self) -> int:
        """Micro-batches of an epoch."""
        if self._epoch[0] < 0:
            self._epoch = (0, self._order(0))
        return len(self._epoch[1])


def _ahead(pool: ThreadPoolExecutor, wanted: list[tuple[Item, tuple[int, int]]]) -> Iterator[torch.Tensor]:
    """Decode in order, a few pictures ahead of who takes them."""
    coming: deque[Future[torch.Tensor]] = deque()
    for item, size in wanted:
        coming.append(pool.submit(pixels, item.path, *size))
        if len(coming) > PICTURES_AHEAD:
            yield coming.popleft().result()
    while coming:
        yield coming.popleft().result()
