"""Whether a validation set that a resumed job gets holds files that it was trained on: a loss on those says nothing."""

from dataclasses import dataclass
from pathlib import Path

from models import catalog
from models.data import datasets
from models.data.entries import held_out, is_held_out
from models.errors import Problem
from models.spec import DatasetSpec, JobSpec, TrainSpec
from server.api.plan import DECODED_AT_SUBMIT, folders_of

POINTER = "/validation/dataset"
UNKNOWN = "pictures that were trained may be among these: equal ones are known by their content, and not all have been decoded"


@dataclass(frozen=True)
class Seen:
    """`trained`: some of what is held out from now on was trained. `warnings`: why it cannot be said that none was."""

    trained: bool = False
    warnings: tuple[Problem, ...] = ()


def seen_before(before: JobSpec, after: JobSpec) -> Seen:
    """What of the validation dataset that `after` brings is trained by the job as it was `before`, by path and content. What was trained
    before still earlier edits is not known here."""
    if not isinstance(before, TrainSpec) or not isinstance(after, TrainSpec):
        return Seen()
    brought = after.validation.dataset if after.validation else None
    kept = before.validation.dataset if before.validation else None
    if brought is None or (kept and kept.folder_path == brought.folder_path):
        return Seen()
    sounds = catalog.arch(before.model.arch).modality == "audio"
    surveys = [_look(dataset, sounds) for _, dataset in datasets.every_dataset(before)]
    new = _look(brought, sounds)
    try:
        out = held_out(before, surveys)
    except ValueError:  # the files of a share that was held out are gone
        out = frozenset()
    now_out = {item.media.file for item in new.items} | {item.media.digest for item in new.items if item.media.digest}
    taught = [item for found in surveys[: len(before.datasets)] for item in found.items if not is_held_out(item, out)]
    if any(is_held_out(item, now_out) for item in taught):
        return Seen(trained=True)
    unknown = new.undecoded or any(found.undecoded for found in surveys)
    return Seen(warnings=(Problem(POINTER, UNKNOWN),) if unknown else ())


def _look(dataset: DatasetSpec, sounds: bool) -> datasets.Survey:
    folders, _ = folders_of(dataset, POINTER)
    if folders is None:  # gone: nothing is known of it
        return datasets.Survey(Path(), undecoded=1)
    return datasets.survey(dataset, folders, sounds=sounds, decode_at_most=DECODED_AT_SUBMIT)
