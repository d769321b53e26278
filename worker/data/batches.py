"""Batches ready for a step. Which items micro-batch number n holds follows from the job and its data alone, so a resume needs only n."""

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count, groupby
from typing import Any

import torch

from models import catalog, memory
from models.base import BaseModel, Embeds
from models.batch import Batch, DatasetFacts
from models.data.captions import caption_at, every_caption, preservation_caption, with_trigger
from models.data.datasets import Survey, as_model_takes, every_dataset, is_moving
from models.data.entries import Entry, dataset_hash, parted
from models.data.epochs import Order
from models.data.fileindex import FileIndex
from models.data.limits import decoding_threads
from models.errors import UserError
from models.precise import NotFinite
from models.prompt_embeds import concat_prompt_embeds
from models.spec import DatasetSpec, TrainSpec
from models.words import named
from worker.data import decode, encoders
from worker.data.encode import AUDIO, FIRST_FRAME, FIRST_LEVELS, LATENTS, Latents, Texts, cache_of
from worker.data.load import Loaded, Loader, PixelBatch
from worker.data.survey import INDEX, TOLD_SECONDS, without_collecting
from worker.report import Reporter

AHEAD = 2  # micro-batches prepared in advance, at least


@dataclass(frozen=True)
class TrainBatch:
    """A micro-batch and what its loss needs to know. All of its items come from one dataset and have one size.

    batch                 on the model's device; `batch.mask_tensor` (B, 1, H, W) in [0, 1] where the dataset has masks
    embeds                of `batch.captions`
    preservation_embeds   with diff_output_preservation of the captions with the class in place of the trigger word, with
                          blank_prompt_preservation of the empty caption; None without either
    step, first           the optimizer step (from 0), and the place of the first item in that step's whole batch: seeds come from them;
                          of a held-out batch 0, and the place of its first item among all that are held out
    is_reg                the step is made of regularisation sets; every micro-batch of a step agrees
    prior_reg             the target is the prediction without the adapter
    loss_multiplier       the dataset's weight in the loss
    """

    batch: Batch
    embeds: Embeds
    step: int = 0
    first: int = 0
    preservation_embeds: Embeds | None = None
    is_reg: bool = False
    prior_reg: bool = False
    loss_multiplier: float = 1.0


@dataclass(frozen=True)
class FileItem:
    """What an architecture may ask of an item's file: its path and how it was cut, in pixels."""

    path: str
    crop_width: int
    crop_height: int
    crop_x: int
    crop_y: int
    flip_x: bool
    flip_y: bool
    num_frames: int


@dataclass(frozen=True)
class _Plan:
    """A micro-batch before anything is read."""

    entries: list[Entry]
    captions: list[str]
    step: int
    first: int
    is_reg: bool = False


class Batches:
    """Caches what the job wants cached, then hands out micro-batches from any number on, and those that are held out. `surveys`
    are those of `models.data.datasets.every_dataset`, in its order."""

    @without_collecting()
    def __init__(self, model: BaseModel, spec: TrainSpec, surveys: Sequence[Survey]) -> None:
        self.model, self.spec = model, spec
        divisibility, snap = model.get_bucket_divisibility(), model.get_frame_count_snapper()
        named = zip(surveys, every_dataset(spec), strict=True)
        surveys = [as_model_takes(found, dataset, snap) for found, (_, dataset) in named]
        self.datasets: list[DatasetSpec] = list(spec.datasets)
        self.entries, self.held = parted(spec, surveys, divisibility)
        if spec.validation and spec.validation.dataset:
            self.datasets.append(spec.validation.dataset)
        self.dataset_hash = dataset_hash(surveys)
        self.order = Order(self.entries, spec)
        folder = cache_of(model)
        self._index_path = folder / INDEX
        self._latents = Latents(model, spec, self.datasets, folder)
        self.texts = Texts(model, spec, folder, cached=spec.train.cache_text_embeddings)
        card = catalog.arch(spec.model.arch)
        self._load = Loader(model, self.datasets, "video" in card.capabilities, self._latents, self.texts)

    @property
    def num_batches(self) -> int:
        """Micro-batches of an epoch, without those of regularisation sets."""
        return self.order.num_batches

    def cache(self, reporter: Reporter) -> None:
        """Encode every caption and every item that the job caches and that no earlier run has encoded. Whatever is done when it is
        stopped stays. Parts that an earlier job released are loaded again if this or a step needs them; raises NotAlone where one
        cannot be, and NotFinite naming a file whose latents or embeds are not finite, unless its dataset's `on_bad_file` says to skip
        it; then it is left out."""
        index = FileIndex(self._index_path)
        entries = [*self.entries, *self.held]
        unusable: dict[str, str] = {}  # by key, why
        try:
            with without_collecting():
                texts = self.texts.missing(self._captions(entries), index) if self.texts.cached else []
                items = self._latents.missing(entries, index)
            if texts or not self.texts.cached:
                encoders.need(self.model, "text_encoder", reporter)
            if items or memory.steps_need_vae(self.spec):
                encoders.need(self.model, "vae", reporter)
            progress = _Progress(reporter, len(texts) + len(items), self._remembering(index))
            for caption, entry in texts:
                progress.next()
                with self._skipping(entry, self.texts.key(caption, entry), unusable):
                    self.texts.keep(caption, entry, self.texts.encode(caption, entry, self._load.text_controls(entry)))
            with ThreadPoolExecutor(max_workers=decoding_threads()) as pool:
                for entry, (pixels, sound) in zip(items, _ahead(pool, self._load.media, items), strict=True):
                    progress.next()
                    with self._skipping(entry, self._latents.key(entry), unusable):
                        self._latents.keep(entry, self._latents.encode(entry, pixels, sound))
            progress.end()
        finally:
            self._remembering(index)()
            index.close()
        if unusable:
            self._leave_out(unusable, reporter)

    @contextmanager
    def _skipping(self, entry: Entry, key: str, unusable: dict[str, str]) -> Iterator[None]:
        """Inside, an entry that cannot be encoded is noted, if its dataset says so."""
        try:
            yield
        except NotFinite as error:
            if self.datasets[entry.dataset].on_bad_file == "stop":
                raise NotFinite(f"{error.message}; repair or remove it, or set on_bad_file to skip") from None
            unusable[key] = error.message

    def _leave_out(self, unusable: Mapping[str, str], reporter: Reporter) -> None:
        """Go on without the entries whose latents or embeds are unusable, by key. Raises NotFinite if that leaves nothing to train on."""

        def is_good(entry: Entry) -> bool:
            keys = {self.texts.key(caption, each) for caption, each in self._captions([entry])} if self.texts.cached else set()
            return not (keys | {self._latents.key(entry)}) & unusable.keys()

        before = [*self.entries, *self.held]
        self.entries, self.held = [list(filter(is_good, each)) for each in (self.entries, self.held)]
        left = {entry.item.path for entry in (*self.entries, *self.held)}
        gone = sorted({entry.item.path for entry in before} - left)
        said = named(list(unusable.values()), between="; ")
        if all(entry.rule.is_reg for entry in self.entries):
            raise NotFinite(f"no file is left to train on: {said}")
        reporter.log(f"{len(gone)} of {len(gone) + len(left)} files are left out, since on_bad_file is skip: {said}", "WARNING")
        self.order = Order(self.entries, self.spec)

    def _remembering(self, index: FileIndex) -> Callable[[], None]:
        def remember() -> None:
            for disk in (self.texts.disk, self._latents.disk):
                disk.remember(index)

        return remember

    def from_number(self, first: int) -> Iterator[TrainBatch]:
        """Micro-batches first, first + 1, ... without end, the next ones read and decoded in threads meanwhile."""
        return self._stream(self._plan(number) for number in count(first))

    def held_out(self) -> Iterator[TrainBatch]:
        """What is held out, once, always in the same batches and the same order, with nothing random about it."""
        return self._stream(self._held_plans())

    def _plan(self, number: int) -> _Plan:
        entries = [self.entries[index] for index in self.order.members(number)]
        step, micro = divmod(number, self.spec.train.gradient_accumulation)
        first, seed = micro * self.spec.train.batch_size, self.spec.train.seed
        captions = [caption_at(each.item.caption, each.rule, seed, step, first + place) for place, each in enumerate(entries)]
        return _Plan(entries, captions, step, first, self.order.is_reg(step))

    def _held_plans(self) -> Iterator[_Plan]:
        first, size = 0, self.spec.train.batch_size
        for _, group in groupby(sorted(self.held, key=lambda entry: (entry.bucket, entry.item.name)), lambda entry: entry.bucket):
            members = list(group)
            for begin in range(0, len(members), size):
                entries = members[begin : begin + size]
                yield _Plan(entries, [with_trigger(each.item.caption, each.rule) for each in entries], 0, first)
                first += len(entries)

    def _captions(self, entries: Iterable[Entry]) -> Iterator[tuple[str, Entry]]:
        """Every caption that can occur, with an entry that it may occur with."""
        blank = [""] if self.spec.train.blank_prompt_preservation else []
        seen: set[Any] = set()
        for entry in entries:
            about = (entry.item.caption, entry.rule)
            if self.texts.sees(entry) or about not in seen:
                seen.add(about)
                yield from ((caption, entry) for caption in [*every_caption(*about), *blank])

    def _stream(self, plans: Iterator[_Plan]) -> Iterator[TrainBatch]:
        workers = decoding_threads()
        with ThreadPoolExecutor(max_workers=workers) as pool:
            coming: deque[tuple[_Plan, list[Future[Loaded]]]] = deque()
            try:
                for plan in plans:
                    preserved = self._preserved(plan) or []
                    texts = [[caption, *preserved[at : at + 1]] for at, caption in enumerate(plan.captions)]
                    pairs = zip(plan.entries, texts, strict=True)
                    coming.append((plan, [pool.submit(self._load, entry, captions) for entry, captions in pairs]))
                    moving = is_moving(self.datasets[plan.entries[0].dataset])
                    if len(coming) > (AHEAD if moving else max(AHEAD, -(-workers // len(plan.entries)))):
                        ready, futures = coming.popleft()
                        yield self._batch(ready, [future.result() for future in futures])
                while coming:
                    ready, futures = coming.popleft()
                    yield self._batch(ready, [future.result() for future in futures])
            finally:
                for _, futures in coming:
                    for future in futures:
                        future.cancel()

    def _batch(self, plan: _Plan, loaded: list[Loaded]) -> TrainBatch:
        dataset = self.datasets[plan.entries[0].dataset]
        made = [each.stored or self._made(entry, each) for entry, each in zip(plan.entries, loaded, strict=True)]
        _check_alike(plan.entries, made)
        batch = PixelBatch(
            latents=self._stacked([each[LATENTS] for each in made]),
            captions=plan.captions,
            tensor=self._stacked([each.pixels for each in loaded]),
            control_tensor=self._stacked([each.control for each in loaded]),
            mask_tensor=self._stacked([each.mask for each in loaded]),
            first_frame_latents=self._stacked([each.get(FIRST_FRAME) for each in made]),
            audio_latents=self._stacked([each.get(AUDIO) for each in made]),
            num_frames=plan.entries[0].item.num_frames,
            dataset_config=DatasetFacts(
                dataset.do_i2v, dataset.do_audio, dataset.num_frames, dataset.fps, dataset.auto_frame_count
            ),
            file_items=[_file_item(entry) for entry in plan.entries],
        )
        batch.read = partial(self._pixels, plan.entries)
        if all(each.raw_controls for each in loaded):
            batch.control_tensor_list = [[self._there(control) for control in each.raw_controls] for each in loaded]
        if all(each.sound is not None for each in loaded):
            batch.audio_data = [each.sound for each in loaded if each.sound is not None]
        preserved = self._preserved(plan)
        return TrainBatch(
            batch,
            self._embeds(plan, plan.captions, loaded),
            plan.step,
            plan.first,
            self._embeds(plan, preserved, loaded) if preserved else None,
            plan.is_reg,
            dataset.prior_reg,
            dataset.loss_multiplier,
        )

    def _pixels(self, entries: list[Entry]) -> torch.Tensor | None:
        """The pixels of a batch whose latents are cached; later batches bring theirs along."""
        self._load.always_pixels = True
        pixels: torch.Tensor | None = self._stacked([self._load.shown(entry) for entry in entries])
        return pixels

    def _made(self, entry: Entry, loaded: Loaded) -> Any:
        """Latents that were not cached, or that were damaged and not yet made again."""
        made = self._latents.stored(entry)
        if made is None:
            made = self._latents.encode(entry, loaded.pixels, loaded.sound)
            if self._latents.is_cached(entry):
                self._latents.keep(entry, made)
        if FIRST_LEVELS in made:
            loaded.pixels = decode.pixels_of(made[FIRST_LEVELS])
        return made

    def _embeds(self, plan: _Plan, captions: list[str], loaded: list[Loaded]) -> Embeds:
        found = []
        for entry, caption, each in zip(plan.entries, captions, loaded, strict=True):
            embeds = each.embeds.get(caption) or self.texts.stored(caption, entry)
            if embeds is None:
                embeds = self.texts.encode(caption, entry, self._load.text_controls(entry))
                if self.texts.cached:
                    self.texts.keep(caption, entry, embeds)
            found.append(embeds.to(self.model.device_torch, non_blocking=True))
        joined: Embeds = concat_prompt_embeds(found, self.model.te_padding_side)
        return joined

    def _preserved(self, plan: _Plan) -> list[str] | None:
        """The captions that preservation compares with."""
        if self.spec.train.diff_output_preservation:
            return [preservation_caption(c, entry.rule) for c, entry in zip(plan.captions, plan.entries, strict=True)]
        return [""] * len(plan.captions) if self.spec.train.blank_prompt_preservation else None

    def _stacked(self, tensors: Sequence[torch.Tensor | None]) -> Any:
        whole = [tensor for tensor in tensors if tensor is not None]
        return self._there(torch.stack(whole)) if len(whole) == len(tensors) else None

    def _there(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(self.model.device_torch, non_blocking=True)


class _Progress:
    """Tells how far caching is, and has it noted, now and then; asks before every unit whether to stop."""

    def __init__(self, reporter: Reporter, total: int, remember: Callable[[], None]) -> None:
        self.reporter, self.total, self.done, self.remember = reporter, total, 0, remember
        self._told = time.monotonic()
        reporter.phase("caching", 0, total)

    def next(self) -> None:
        self.reporter.check()
        if time.monotonic() - self._told > TOLD_SECONDS:
            self.reporter.phase("caching", self.done, self.total)
            self.remember()
            self._told = time.monotonic()
        self.done += 1

    def end(self) -> None:
        if self.total:
            self.reporter.phase("caching", self.total, self.total)


def _check_alike(entries: Sequence[Entry], made: Sequence[Any]) -> None:
    """Raises UserError where the model made latents of unlike shapes of items of one bucket: of sounds at two rates, say."""
    for name in (LATENTS, AUDIO):
        shapes = {tuple(each[name].shape): entry.item.name for entry, each in zip(entries, made, strict=True) if name in each}
        if len(shapes) > 1:
            told = ", ".join(f"{shape} of {file}" for shape, file in shapes.items())
            raise UserError(
                f"{name} of unlike shapes cannot share a batch: {told}; bring the files to one form, or set train.batch_size to 1",
                code="unlike_latents",
            )


def _file_item(entry: Entry) -> FileItem:
    view = entry.view
    return FileItem(
        str(entry.item.path),
        view.width,
        view.height,
        view.left,
        view.top,
        view.flip_x,
        view.flip_y,
        entry.item.num_frames,
    )


def _ahead(pool: ThreadPoolExecutor, function: Any, wanted: Sequence[Any]) -> Iterator[Any]:
    """The function's results in order, a few computed ahead of who takes them."""
    coming: deque[Future[Any]] = deque()
    try:
        for each in wanted:
            coming.append(pool.submit(function, each))
            if len(coming) > decoding_threads():
                yield coming.popleft().result()
        while coming:
            yield coming.popleft().result()
    finally:
        for future in coming:
            future.cancel()
