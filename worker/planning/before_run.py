"""A last look before a run loads anything large: whether its device has the memory that the job will need."""

import logging
from pathlib import Path
from typing import Any

from models import budget
from models.data.datasets import Survey
from models.errors import UserError
from models.spec import JobSpec, SampleSpec, TrainSpec
from worker import gpus
from worker.load import Places

KNOWN_TO_FIT = 16  # a model whose files are that many times smaller than the device is not looked at before a run
PIXEL_BYTES = 2**16  # together with its pictures, if each of their pixels took so much: several times what decoding one takes

log = logging.getLogger("safelight")


def check(spec: JobSpec, places: Places, device: str, surveys: list[Survey]) -> JobSpec:
    """The job as this device can run it: fewer pictures at once where so many do not fit. Raises UserError before anything is loaded if
    it cannot fit. Says nothing where model and pictures are small beside the device, where files are not here yet, and where the
    prediction itself fails: running out of memory is explained as well."""
    total = gpus.memory(device)[1]
    random = places.model == "random"
    if total is None or not (random or isinstance(places.model, Path)):
        return spec
    on_disk = _file_bytes(places)
    if (random or on_disk) and KNOWN_TO_FIT * on_disk + PIXEL_BYTES * most_pixels(spec) < total:
        return spec
    from worker.planning.plan import changed, plan  # most runs do without, and it imports a lot

    try:
        made = plan(spec, places, device, total, surveys)
    except Exception as error:
        log.info("the memory could not be predicted: %s: %s", type(error).__name__, error)
        return spec
    if made["peak"] <= total:
        return spec
    if count := budget.fewer_at_once(made, total):
        return changed(spec, {budget.AT_ONCE: count})
    hint = budget.advice(made, total) or budget.general_advice(spec)
    raise UserError(budget.too_large(made, total), code="out_of_memory", hint=hint)


def most_pixels(spec: JobSpec) -> int:
    """Of the largest batch, all frames counted, without a look at the data."""
    shared: Any = spec.sample  # type: ignore[attr-defined]
    samples = spec.samples if isinstance(spec, SampleSpec) else shared.samples
    pictures = [
        (each.width or shared.width) * (each.height or shared.height) * (each.num_frames or shared.num_frames) for each in samples
    ]
    most: int = max(pictures, default=0) * min(shared.batch_size, len(samples))
    if isinstance(spec, TrainSpec):
        trained = [max(each.resolution) ** 2 * each.num_frames for each in spec.datasets]
        most = max(most, max(trained) * spec.train.batch_size)
    return most


def _file_bytes(places: Places) -> int:
    """What the weights take on disk; 0 where they are not here."""
    named = (places.model, places.text_encoder, places.vae, *places.adapters)
    roots = [place for place in named if isinstance(place, Path)]
    files = [file for root in roots for file in ([root] if root.is_file() else root.rglob("*.safetensors"))]
    return sum(file.stat().st_size for file in files)
