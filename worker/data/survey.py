"""The look at a job's data before anything expensive happens."""

import contextlib
import gc
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from models import catalog
from models.data import datasets, epochs
from models.data.captions import CaptionRule
from models.data.crops import crop_warnings
from models.data.datasets import Folders, Survey
from models.data.fileindex import FileIndex
from models.data.problems import dataset_problems
from models.errors import SpecError
from models.spec import TrainSpec
from worker.report import Reporter

TOLD_SECONDS = 0.3  # between two words on how far it is
INDEX = "index.sqlite"  # in the cache folder


@contextlib.contextmanager
def without_collecting() -> Iterator[None]:
    """Inside, Python looks for no garbage: of a hundred thousand small objects that all stay, it would walk over all again and again."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


class _Progress:
    """Tells now and then how many files have been looked at, of all in the folders that have been opened."""

    def __init__(self, reporter: Reporter) -> None:
        self.reporter = reporter
        self.earlier = self.here = (0, 0)
        self._told = time.monotonic()
        reporter.phase("reading")

    def tell(self, done: int, total: int) -> None:
        """Of the dataset at hand."""
        self.here = self.earlier[0] + done, self.earlier[1] + total
        if time.monotonic() - self._told >= TOLD_SECONDS:
            self.reporter.phase("reading", *self.here)
            self._told = time.monotonic()

    def next(self) -> None:
        self.earlier = self.here


@without_collecting()
def survey(spec: TrainSpec, folders: Sequence[Folders], cache: Path | None, reporter: Reporter) -> list[Survey]:
    """Decode every file once; one that is unchanged since an earlier job did is not read again. `folders` are those of the datasets in
    the order of `models.data.datasets.every_dataset`, and so are the answers. Raises SpecError naming what cannot be used."""
    card = catalog.arch(spec.model.arch)
    index = FileIndex(cache / INDEX) if cache else None
    progress = _Progress(reporter)
    surveys = []
    try:
        for (pointer, dataset), places in zip(datasets.every_dataset(spec), folders, strict=True):
            reporter.check()
            found = datasets.survey(
                dataset, places, sounds=card.modality == "audio", index=index, check=reporter.check, tell=progress.tell
            )
            progress.next()
            errors, warnings = dataset_problems(found, dataset, pointer, CaptionRule.of(spec, dataset).word)
            if errors:
                raise SpecError(errors)
            for warning in warnings:
                reporter.log(warning.message, "WARNING")
            surveys.append(found)
    finally:
        if index:
            index.close()
    if faults := epochs.validation_problems(spec, surveys):
        raise SpecError(faults)
    for warning in crop_warnings(spec, surveys, card.bucket_divisibility):
        reporter.log(warning.message, "WARNING")
    return surveys
