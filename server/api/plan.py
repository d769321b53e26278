"""What a job would do, as far as that can be known without torch: the check before a POST and the body of /validate."""

from typing import Any

from models import catalog, datasets
from models.errors import Problem, SpecError
from models.spec import JobSpec, SampleSpec, TrainSpec, control_paths
from server.api.shapes import Plan
from server.store import files, workers
from server.store.files import PathRefused

DECODED_AT_SUBMIT = 300  # pictures decoded while a POST waits; the worker decodes the rest before it loads the model
NOT_CHECKED = ["memory, parameters and checkpoint contents: known once a worker has loaded the model"]


def make_plan(asked: Any) -> Plan:
    """The plan of a job (raw or parsed). Everything that would refuse it is in `problems`, with its place."""
    try:
        spec = asked if isinstance(asked, JobSpec) else catalog.parse_job(asked)
    except SpecError as error:
        return _plan(None, error.problems, [], {}, [])
    problems, warnings = _weights_problems(spec), []
    summary: dict[str, Any] = {}
    not_checked = list(NOT_CHECKED)
    if isinstance(spec, TrainSpec):
        surveys = []
        for index, dataset in enumerate(spec.datasets):
            pointer = f"/datasets/{index}"
            try:
                found = datasets.survey(dataset, files.dataset_folder(dataset.folder_path), decode_at_most=DECODED_AT_SUBMIT)
            except PathRefused as error:
                problems.append(Problem(f"{pointer}/folder_path", str(error)))
                continue
            errors, notes = datasets.problems(found, dataset, pointer)
            problems += errors
            warnings += notes
            surveys.append(found)
            if found.undecoded:
                not_checked.append(f"{found.undecoded} of the pictures in {dataset.folder_path}: decoded before the model loads")
        if len(surveys) == len(spec.datasets):
            summary = datasets.epoch_summary(spec, surveys, catalog.arch(spec.model.arch).bucket_divisibility)
    able = [w.id for w, _ in workers.listing() if spec.model.arch in w.archs and not w.stopped]
    if not able:
        warnings.append(Problem("", "no worker is connected that can run this; the job waits until one is"))
    return _plan(spec, problems, warnings, summary, able, not_checked)


def _weights_problems(spec: JobSpec) -> list[Problem]:
    named = [
        (f"/model/{key}", given)
        for key in ("name_or_path", "te_name_or_path", "vae_path", "assistant_lora_path")
        if (given := getattr(spec.model, key))
    ]
    if isinstance(spec, SampleSpec):
        named += [(f"/adapters/{index}/path", adapter.path) for index, adapter in enumerate(spec.adapters)]
    checks = [(pointer, given, files.weights_path) for pointer, given in named]
    checks += [(pointer, given, files.data_file) for given, pointer in control_paths(spec).items()]
    problems = []
    for pointer, given, look in checks:
        try:
            look(given)
        except PathRefused as error:
            problems.append(Problem(pointer, str(error)))
    return problems


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
            **summary,
        }
    )
