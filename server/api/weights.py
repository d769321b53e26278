"""The weights that a job names, checked when it is submitted: files that are here are judged by their first bytes and headers."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from models import catalog, weightfiles
from models.errors import Problem, UserError
from models.spec import JobSpec, SampleSpec, TrainSpec
from server.store import files
from server.store.files import PathRefused

Named = tuple[str, str, Callable[[Path | str], None]]  # a pointer, the path as given, and how to look at what is there


def weights_problems(spec: JobSpec) -> list[Problem]:
    """The problems of the files of weights that the job names: a file is missing, or a run could not read it."""
    problems = []
    for pointer, given, look in [*_bases(spec), *_adapters(spec)]:
        try:
            look(files.weights_path(given))
        except (PathRefused, UserError) as error:
            problems.append(Problem(pointer, str(error)))
    return problems


def _bases(spec: JobSpec) -> Iterator[Named]:
    model = spec.model
    starts_from = catalog.arch(model.arch).starts_from
    for key, parts in weightfiles.parts_by_key(model.te_name_or_path, model.vae_path).items():
        kinds = starts_from if key == "name_or_path" else weightfiles.ANY
        if given := getattr(model, key):
            yield f"/model/{key}", given, partial(_base, kinds=kinds, parts=parts)


def _base(found: Path | str, kinds: tuple[str, ...], parts: str) -> None:
    if isinstance(found, Path):
        weightfiles.check_base(found, kinds, parts)
    elif found != "random" and "folder" not in kinds:
        raise UserError(f"{found} names a repository on a hub; this model starts from {weightfiles.kinds_said(kinds)}")


def _adapters(spec: JobSpec) -> Iterator[Named]:
    model = spec.model
    if model.assistant_lora_path:  # code of an extension may fetch it from a hub
        yield "/model/assistant_lora_path", model.assistant_lora_path, partial(_adapter, may_be_fetched=True)
    if model.accuracy_recovery_adapter:
        yield "/model/accuracy_recovery_adapter", model.accuracy_recovery_adapter, _adapter
    if isinstance(spec, TrainSpec) and spec.network and spec.network.pretrained_lora_path:
        yield "/network/pretrained_lora_path", spec.network.pretrained_lora_path, _adapter
    if isinstance(spec, SampleSpec):
        for index, adapter in enumerate(spec.adapters):
            yield f"/adapters/{index}/path", adapter.path, _adapter
        for index, given in enumerate(spec.matrix.checkpoints if spec.matrix else []):
            yield f"/matrix/checkpoints/{index}", given, _adapter


def _adapter(found: Path | str, may_be_fetched: bool = False) -> None:
    if isinstance(found, Path):
        weightfiles.check_adapter_file(found)
    elif not may_be_fetched or found == "random":
        raise UserError(f"{found} is no file under the models folder; adapters are not fetched from a hub, so download it there")
