"""A job as a whole: what kinds there are."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from models.data.texts import is_blank
from models.spec.data import DatasetSpec
from models.spec.fields import Spec, entry, fixed
from models.spec.model import ModelSpec
from models.spec.network import NetworkSpec
from models.spec.sample import CONTROLS, AdapterRef, Matrix, PreviewPrompt, PreviewSpec, SamplingDefaults
from models.spec.train import SaveSpec, TrainSettings, ValidationSpec
from models.words import NOT_BLANK, ONE_LINE, TEXTS

SPEC_VERSION = 1


def _visible(name: str) -> str:
    if is_blank(name):
        raise ValueError(TEXTS[NOT_BLANK])
    return name


Name = Annotated[str, Field(min_length=1, max_length=120, pattern=ONE_LINE), AfterValidator(_visible)]


def _trigger_word(section: Literal["Dataset", "Previews"], order: int, help: str) -> Any:
    limits: dict[str, Any] = {"min_length": 1, "max_length": 200, "pattern": NOT_BLANK}
    return entry(None, title="Trigger word", section=section, order=order, help=help, **limits)


class JobSpec(Spec):
    """What every kind of job has."""

    spec_version: Literal[1] = fixed(SPEC_VERSION)
    name: Name = entry(title="Name", section="What", order=1, basic=True, help="Shown in lists and used in file names.")
    model: ModelSpec = Field(title="Model", json_schema_extra={"ui": {}})


class TrainSpec(JobSpec):
    """Train an adapter (`network`) or all weights (`network: null`)."""

    kind: Literal["train"] = fixed()
    network: NetworkSpec | None = Field(
        default_factory=NetworkSpec, title="Adapter", json_schema_extra={"ui": {"section": "Training", "order": 4}}
    )
    trigger_word: str | None = _trigger_word(
        "Dataset", 5, "A word of its own for what is trained. It replaces [trigger] in captions and prompts."
    )
    datasets: list[DatasetSpec] = Field(min_length=1, max_length=32, title="Datasets", json_schema_extra={"ui": {}})
    train: TrainSettings = Field(default_factory=TrainSettings, title="Training", json_schema_extra={"ui": {}})
    validation: ValidationSpec | None = Field(
        default=None, title="Validation", json_schema_extra={"ui": {"section": "Training", "order": 89}}
    )
    save: SaveSpec = Field(default_factory=SaveSpec, title="Saving", json_schema_extra={"ui": {}})
    sample: PreviewSpec = Field(default_factory=PreviewSpec, title="Previews", json_schema_extra={"ui": {}})


class SampleSpec(JobSpec):
    """Make pictures with a model, and adapters on it."""

    kind: Literal["sample"] = fixed()
    trigger_word: str | None = _trigger_word(
        "Previews", 29, "The word that an adapter was trained on. It replaces [trigger] in prompts."
    )
    adapters: list[AdapterRef] = Field(default_factory=list, max_length=16, title="Adapters", json_schema_extra={"ui": {}})
    matrix: Matrix | None = Field(default=None, title="Matrix", json_schema_extra={"ui": {"section": "What", "order": 21}})
    sample: SamplingDefaults = Field(default_factory=SamplingDefaults, title="Settings", json_schema_extra={"ui": {}})
    samples: list[PreviewPrompt] = Field(min_length=1, max_length=4096, title="Pictures", json_schema_extra={"ui": {}})


KINDS: Mapping[str, type[JobSpec]] = {"train": TrainSpec, "sample": SampleSpec}


def previews(spec: JobSpec) -> dict[str, PreviewPrompt]:
    """The pictures that a job names, by their JSON pointers."""
    if isinstance(spec, TrainSpec):
        samples, at = spec.sample.samples, "/sample/samples"
    else:
        samples, at = (spec.samples if isinstance(spec, SampleSpec) else []), "/samples"
    return {f"{at}/{index}": sample for index, sample in enumerate(samples)}


def control_paths(spec: JobSpec) -> dict[str, str]:
    """The control files that previews name, each with its JSON pointer into the job."""
    named = ((f"{at}/{key}", getattr(sample, key)) for at, sample in previews(spec).items() for key in CONTROLS)
    return {given: pointer for pointer, given in named if given}


def prompt_texts(spec: JobSpec) -> dict[str, str]:
    """Prompts and negative prompts as they are written, by their JSON pointers; none of a job that makes no pictures."""
    shown = previews(spec)
    if not isinstance(spec, TrainSpec | SampleSpec) or not shown or (isinstance(spec, TrainSpec) and spec.train.disable_sampling):
        return {}
    own = {f"{at}/{key}": getattr(sample, key) for at, sample in shown.items() for key in ("prompt", "neg")}
    return {pointer: text for pointer, text in {"/sample/neg": spec.sample.neg, **own}.items() if text}
