"""`python -m worker.planning.plan job.json`: what memory and disk a job will need, as JSON, without a GPU and without reading its weights.

With `--answer DIGEST` the JSON goes to the server that asked. A run that is about to begin looks once more: `before_run`.
"""

import argparse
import functools
import json
import logging
import math
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from models import budget, catalog, toolkit
from models.data import datasets
from models.data.datasets import Survey
from models.data.entries import make_entries
from models.data.lengths import cut_notes, job_texts
from models.errors import SpecError, UserError
from models.spec import JobSpec, SampleSpec, TrainSpec
from models.tokens import cut_texts
from worker import gpus
from worker.load import Places, load_model
from worker.planning.blank import blank_weights, new_mode
from worker.planning.predict import Data, predict

# Codes of errors that say nothing sure about the job's own run: what is not here may come, and the prediction touches no GPU.
MAY_PASS = {"no_hub", "missing_file", "path_refused", "out_of_memory", "cache_damaged", "data_changed", "no_data"}
OF_THE_DEVICE = {"no_optimizer", "no_kernel"}

log = logging.getLogger("safelight")


def plan(spec: JobSpec, places: Places, device: str, total: int | None, surveys: list[Survey] | None = None) -> dict[str, Any]:
    """The prediction as JSON; `fits_with` lists changes that would make a job fit that does not. Raises whatever stops the model's
    code."""
    trained = isinstance(spec, TrainSpec)
    data = look(spec, surveys if surveys is not None else glance(spec, places)) if trained else None  # type: ignore[arg-type]
    found = predict(spec, places, data, device)
    misfit = total is not None and found.peak > total
    fits_with = list(alternatives(spec, places, data, device, total or 0, found.phases)) if misfit else []
    return {**asdict(found), "device": device.partition(":")[0], "total": total, "fits_with": fits_with}


def glance(spec: TrainSpec, places: Places) -> list[Survey]:
    """The datasets as far as their files' headers tell."""
    sounds = catalog.arch(spec.model.arch).modality == "audio"
    named = zip(datasets.every_dataset(spec), places.datasets, strict=True)
    return [datasets.survey(dataset, folders, sounds=sounds, decode_at_most=0) for (_, dataset), folders in named]


def look(spec: TrainSpec, surveys: list[Survey]) -> Data:
    """The largest picture, the largest batch and the longest caption. Raises UserError where there is nothing to train on."""
    entries = make_entries(spec, surveys, catalog.arch(spec.model.arch).bucket_divisibility)
    if not entries:
        raise UserError("the datasets hold nothing to train on", code="no_data")
    largest = max(entries, key=lambda entry: entry.view.width * entry.view.height * entry.item.num_frames)
    captions = {entry.item.caption for entry in entries}
    members = Counter(entry.bucket for entry in entries)
    batches = {
        (entry.view.width, entry.view.height, entry.item.num_frames, min(spec.train.batch_size, members[entry.bucket]))
        for entry in entries
    }
    return Data(
        size=(largest.view.width, largest.view.height),
        caption=max(captions, key=len),
        num_frames=largest.item.num_frames,
        num_controls=max(len(entry.item.controls) for entry in entries),
        num_pictures=len({(entry.item.name, entry.dataset, entry.view) for entry in entries}),
        num_captions=len(captions),
        in_memory=any(dataset.cache_latents for dataset in spec.datasets),
        batch=max(batches, key=math.prod),
    )


def alternatives(
    spec: JobSpec, places: Places, data: Data | None, device: str, total: int, phases: Mapping[str, int]
) -> Iterator[dict[str, Any]]:
    """{"change": {path: value}, "peak": bytes} of each single change that makes the job fit; where none does, of the first of the growing
    combinations that does. `phases` are the job's peaks as it is."""
    over = {phase for phase, peak in phases.items() if peak > total}
    options = [
        (path, value, set(helps))
        for path, value, _, helps in budget.OPTIONS
        if over & set(helps) and budget.would_change(spec, path, value)
    ]
    fits = partial(_fitting, spec, places, data, device, total)
    singles = [
        _first(fits({path: each}) for each in values(spec, path, value)) for path, value, helps in options if over <= helps
    ]
    if any(singles):
        yield from filter(None, singles)
        return
    together: dict[str, Any] = {}
    for path, value, _ in options:
        together[path] = value
        if len(together) > 1 and (made := fits(dict(together))):
            yield made
            return


def values(spec: JobSpec, path: str, value: Any) -> Iterator[Any]:
    """What to try for an option: pictures at once are halved until they fit, as a run does it."""
    if path == budget.AT_ONCE and isinstance(spec, SampleSpec):
        count = min(spec.sample.batch_size, len(spec.samples)) // 2
        while count > value:
            yield count
            count //= 2
    yield value


def _first(tried: Iterator[dict[str, Any] | None]) -> dict[str, Any] | None:
    return next(filter(None, tried), None)


def changed(spec: JobSpec, change: Mapping[str, Any]) -> JobSpec:
    """The job with {"section.key": value}. Raises SpecError where that does not go with the rest."""
    told: dict[str, Any] = spec.model_dump(mode="json")
    for path, value in change.items():
        section, _, key = path.partition(".")
        told[section][key] = value
    return catalog.parse_job(told)


def _fitting(
    spec: JobSpec, places: Places, data: Data | None, device: str, total: int, change: dict[str, Any]
) -> dict[str, Any] | None:
    try:
        peak = predict(changed(spec, change), places, data, device).peak
    except (SpecError, UserError):
        return None
    return {"change": change, "peak": peak} if peak <= total else None


def cut(spec: JobSpec, places: Places) -> list[dict[str, Any]] | None:
    """The texts that the model's encoder does not read whole, as problems in JSON; None where that cannot be seen."""
    texts = job_texts(spec, glance(spec, places) if isinstance(spec, TrainSpec) else [])
    with blank_weights(new_mode()):
        model = load_model(spec, Places(**{**vars(places), "cache": None}), "cpu")
        found = cut_texts(model, (each.text for each in texts))
    return None if found is None else [note.as_dict() for note in cut_notes(texts, found)]


def main(arguments: list[str] | None = None) -> int:
    from server.store import plans
    from worker.places import find_places

    parser = argparse.ArgumentParser(prog="worker.planning.plan")
    parser.add_argument("job")
    parser.add_argument("--answer", default=None, help="send it to the server as the answer to this question")
    parser.add_argument("--texts", default=None, help="send which texts are too long as the answer to this question")
    parser.add_argument("--device", default="cpu", help="the kind of device whose memory is counted")
    parser.add_argument("--total", type=int, default=None, help="that memory in bytes, if it need not be looked up")
    given = parser.parse_args(arguments)
    logging.basicConfig(level="WARNING", format="%(message)s")
    asked = bool(given.answer or given.texts)
    spec = functools.cache(partial(_read, Path(given.job), asked))
    if given.texts:  # the faster answer first
        plans.remember(given.texts, _answered(lambda: {"cut": cut(spec(), find_places(spec()))}, given.device))
    if given.texts and not given.answer:
        return 0
    total = given.total or gpus.memory(given.device)[1]
    answer = _answered(lambda: {"plan": plan(spec(), find_places(spec()), given.device, total)}, given.device)
    if given.answer:
        plans.remember(given.answer, answer)
        return 0
    print(json.dumps(answer.get("plan", answer), indent=2))  # noqa: T201
    return int("error" in answer)


def _read(file: Path, asked: bool) -> JobSpec:
    """The job in the file. A worker that was asked knows its extensions from the database."""
    from worker import extensions

    raw = json.loads(file.read_text())
    toolkit.install()
    name = str(raw.get("model", {}).get("arch", ""))
    if asked:
        extensions.load(name)
    else:
        extensions.load_from_folders(name)
    return catalog.parse_job(raw)


def _answered(work: Callable[[], dict[str, Any]], device: str) -> dict[str, Any]:
    try:
        return work()
    except UserError as error:
        unsure = MAY_PASS | (set() if device == "cpu" else OF_THE_DEVICE)
        return {"error": error.message, "hint": error.hint, "refuses": error.code not in unsure}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}


if __name__ == "__main__":
    sys.exit(main())
