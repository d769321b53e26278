"""What a job would do, as far as that can be known without torch: the check before a POST and the body of /validate."""

from pathlib import Path
from typing import Any

from models import catalog
from models.data import datasets, epochs
from models.data.captions import CaptionRule
from models.data.crops import crop_warnings
from models.data.lengths import job_texts
from models.data.look import look_at
from models.data.problems import dataset_problems
from models.errors import Problem, SpecError
from models.spec import CONTROL_FOLDERS, DatasetSpec, JobSpec, Spec, TrainSpec, control_paths
from server.api.forecast import forecast
from server.api.shapes import Plan
from server.api.weights import weights_problems
from server.store import files, workers
from server.store.files import PathRefused
from server.store.settings import settings

DECODED_AT_SUBMIT = 300  # pictures decoded while a POST waits; the worker decodes the rest before it loads the model
HELD_OUT = "how many are held out: estimated from the files' paths until every file is decoded"
NOT_CHECKED = ["checkpoint contents: known once a worker has loaded the model"]


def make_plan(asked: Any, ask_workers: bool = False) -> Plan:
    """The plan of a job (raw or parsed). Everything that would refuse it is in `problems`, with its place. With `ask_workers` one of
    them is asked for what is not known yet."""
    try:
        spec = asked if isinstance(asked, JobSpec) else catalog.parse_job(asked)
    except SpecError as error:
        return _plan(None, error.problems, [], {}, [])
    problems, warnings = [*weights_problems(spec), *_control_problems(spec), *_trust_problems(spec)], []
    summary: dict[str, Any] = {}
    not_checked = list(NOT_CHECKED)
    surveys: list[datasets.Survey] = []
    if isinstance(spec, TrainSpec):
        named = datasets.every_dataset(spec)
        sounds = catalog.arch(spec.model.arch).modality == "audio"
        for pointer, dataset in named:
            folders, faults = folders_of(dataset, pointer)
            if folders is None:
                problems += faults
                continue
            found = datasets.survey(dataset, folders, sounds=sounds, decode_at_most=DECODED_AT_SUBMIT)
            errors, notes = dataset_problems(found, dataset, pointer, CaptionRule.of(spec, dataset).word)
            problems += errors
            warnings += notes
            surveys.append(found)
            if found.undecoded:
                not_checked.append(f"{found.undecoded} of the files in {dataset.folder_path}: decoded before the model loads")
                not_checked += [HELD_OUT] if spec.validation and HELD_OUT not in not_checked else []
            if dataset.auto_frame_count:
                not_checked.append(f"frames of the clips in {dataset.folder_path}: the model rounds them down to what it takes")
        if len(surveys) == len(named):
            problems += epochs.validation_problems(spec, surveys)
            divisibility = catalog.arch(spec.model.arch).bucket_divisibility
            warnings += crop_warnings(spec, surveys, divisibility)
            summary = epochs.epoch_summary(spec, surveys, divisibility)
    running = [w for w, _ in workers.listing() if not w.stopped]
    able = [w for w in running if spec.model.arch in w.archs]
    if not able:
        why = "".join(f"; {w.id} cannot use {w.device}: {w.problem}" for w in running if w.problem)
        warnings.append(Problem("", f"no worker is connected that can run this; the job waits until one is{why}"))
    if not problems:
        found_out = forecast(spec, summary, job_texts(spec, surveys), able, ask_workers)
        summary["memory"] = found_out.memory
        problems += found_out.problems
        warnings += found_out.warnings
        not_checked += found_out.unknown
    return _plan(spec, problems, warnings, summary, [w.id for w in able], not_checked)


def folders_of(dataset: DatasetSpec, pointer: str) -> tuple[datasets.Folders | None, list[Problem]]:
    """Where the dataset lies, or what is wrong with its paths."""
    found: dict[str, Path] = {}
    faults = []
    for key in ("folder_path", "mask_path", *CONTROL_FOLDERS):
        try:
            if given := getattr(dataset, key):
                found[key] = files.dataset_folder(given)
        except PathRefused as error:
            faults.append(Problem(f"{pointer}/{key}", str(error)))
    if faults:
        return None, faults
    controls = tuple(found[key] for key in CONTROL_FOLDERS if key in found)
    return datasets.Folders(found["folder_path"], found.get("mask_path"), controls, tuple(settings().roots)), []


def _control_problems(spec: JobSpec) -> list[Problem]:
    problems = []
    for given, pointer in control_paths(spec).items():
        try:
            _picture(given)
        except PathRefused as error:
            problems.append(Problem(pointer, str(error)))
    return problems


def _picture(given: str) -> Path:
    """The file of a preview's control image. Raises PathRefused, also for what is no picture."""
    path = files.data_file(given)
    if problem := look_at(path, "picture", decode=True).get("problem"):
        raise PathRefused(f"{path} cannot be used: {problem}")
    return path


def _trust_problems(spec: JobSpec) -> list[Problem]:
    named = spec.train.optimizer if isinstance(spec, TrainSpec) else ""
    if ":" not in named or settings().trusts(named):
        return []
    package = named.partition(":")[0].partition(".")[0]
    message = f"this server runs code from listed packages only; add {package} to SAFELIGHT_TRUSTED_PACKAGES, or name another"
    return [Problem("/train/optimizer", message)]


def _plan(
    spec: JobSpec | None,
    problems: list[Problem],
    warnings: list[Problem],
    summary: dict[str, Any],
    able: list[str],
    not_checked: list[str] = NOT_CHECKED,
) -> Plan:
    return Plan.model_validate(
        {
            "ok": not problems,
            "problems": [p.as_dict() for p in problems],
            "warnings": [p.as_dict() for p in warnings],
            "spec": spec and spec.model_dump(mode="json"),
            "datasets": [],
            "steps_per_epoch": None,
            "epochs": None,
            "workers": able,
            "not_checked": not_checked,
            **{name: value.model_dump() if isinstance(value, Spec) else value for name, value in summary.items()},
        }
    )
