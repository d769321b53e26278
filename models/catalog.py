"""The registry: which architectures there are, the typed job of each, and what is wrong with a job that does not fit.

`models/archs/*/card.py` is scanned once; a card module lists its cards in `ARCHS`. What a worker found in folders elsewhere is
registered beside them. Nothing here imports torch.
"""

import importlib
import pkgutil
from collections.abc import Iterable, Mapping
from functools import cache, lru_cache
from typing import Annotated, Any, TypeVar, get_origin

from pydantic import Field, ValidationError, create_model
from pydantic.fields import FieldInfo
from pydantic.json_schema import models_json_schema

import models.archs
from models.arch import Arch
from models.choices import inner_spec
from models.errors import Problem, SpecError, UserError
from models.extensions import Extension
from models.fit import TRAINING_ONLY, lacks, misfits, unfit_timesteps
from models.spec import KINDS, JobSpec, NoOptions, Spec, TrainSpec
from models.words import given, names, nearest, problems, unknown

AnySpec = TypeVar("AnySpec", bound=Spec)
JOB_COMPONENT = "Job-Spec"
AI_TOOLKIT = (
    "this is a config of ai-toolkit (job, config.process), which cannot be read yet; begin with a preset of the same model, on the page "
    "for a new job or from GET /v1/archs/ARCH, and copy the values over: keys that mean the same have the same names"
)
TEMPLATE_FOLDER = "example"  # the documented template is in every contract test, never in the catalogue


_registered: tuple[int, Mapping[str, Extension]] = (0, {})  # a number that every registration raises, and what it brought


def register(found: Iterable[Extension]) -> None:
    """Replace what is known of folders elsewhere."""
    global _registered
    _registered = (_registered[0] + 1, {each.name: each for each in found})


def extensions() -> Mapping[str, Extension]:
    """What was registered, by name; broken ones too."""
    return _registered[1]


def archs() -> Mapping[str, Arch]:
    """All usable cards by name, sorted. A registered one, broken or not, stands in place of a bundled one of its name: its folder chose
    that."""
    healthy = {each.name: each.card for each in extensions().values() if each.card is not None}
    own = {name: card for name, card in bundled().items() if name not in extensions()}
    return dict(sorted({**own, **healthy}.items()))


@cache
def bundled() -> Mapping[str, Arch]:
    """The cards of models/archs. Raises ImportError when one does not import: that is our bug, never hidden."""
    cards: dict[str, Arch] = {}
    for module in pkgutil.iter_modules(models.archs.__path__):
        if module.ispkg and module.name != TEMPLATE_FOLDER:
            for card in importlib.import_module(f"models.archs.{module.name}.card").ARCHS:
                if card.name in cards:
                    raise ImportError(f"arch '{card.name}' is declared twice; the second is in models/archs/{module.name}")
                cards[card.name] = card
    return dict(sorted(cards.items()))


def arch(name: str) -> Arch:
    """The card called `name`. Raises UserError naming what is known, or why it is broken."""
    if name not in archs():
        raise UserError(_why_not(name), code="unknown_arch", hint=nearest(name, archs()))
    return archs()[name]


def _why_not(name: Any) -> str:
    broken = extensions()[name].broken if isinstance(name, str) and name in extensions() else None
    return f"arch {name!r} is broken: {broken}" if broken else f"arch {name!r} is unknown; known: {names(archs())}"


def job_type(arch_name: str, kind: str) -> type[JobSpec]:
    """The job of `kind` with this arch's options, limits and defaults in place of the general ones."""
    return _job_type(arch_name, kind, _registered[0])


@lru_cache(maxsize=256)
def _job_type(arch_name: str, kind: str, _registration: int) -> type[JobSpec]:
    return job_type_of(arch(arch_name), kind)


def job_type_of(card: Arch, kind: str) -> type[JobSpec]:
    """The same for a card that need not be in the catalogue."""
    own = merge(_sizes(card), card.defaults)
    held_out = {key: value for key, value in own.get("datasets", {}).items() if key not in TRAINING_ONLY}
    own = merge({"validation": {"dataset": held_out}} if held_out else {}, own)
    defaults = {key: value for key, value in own.items() if key in KINDS[kind].model_fields}
    model = {"arch": card.name, "model_kwargs": card.options, **own.get("model", {})}
    return _specialise(KINDS[kind], {**defaults, "model": model})


def _sizes(card: Arch) -> dict[str, Any]:
    """The defaults that a network of one size brings."""
    if card.fixed_size is None:
        return {}
    width, height = card.fixed_size
    return {"datasets": {"resolution": [max(width, height)]}, "sample": {"width": width, "height": height}}


def job_schema(arch_name: str, kind: str) -> dict[str, Any]:
    """JSON Schema (2020-12) of `job_type`, with `ui` hints for a form; what the arch has no use for is hidden."""
    if arch_name in extensions():
        known: dict[str, Any] = extensions()[arch_name].schemas[kind]
        return known
    return schema_of(arch(arch_name), job_type(arch_name, kind))


def schema_of(card: Arch, wanted: type[JobSpec]) -> dict[str, Any]:
    """JSON Schema of a job type of this card."""
    schema = wanted.model_json_schema()
    for part in [schema, *schema["$defs"].values()]:
        for key, leaf in part.get("properties", {}).items():
            if lacks(card, leaf.get("ui", {})) or (key == "sampler" and not card.samplers):
                leaf["ui"]["hidden"] = True
            if key == "sampler":
                leaf["ui"]["suggest"] = list(card.samplers)
            if key == "dtype" and "arch" in part["properties"] and issubclass(wanted, TrainSpec):
                leaf["enum"] = [dtype for dtype in leaf["enum"] if dtype != "fp16"]
            if key == "timestep_type":
                leaf["enum"] = [kind for kind in leaf["enum"] if unfit_timesteps(card, kind) is None]
    return schema


def general_schema() -> dict[str, Any]:
    """JSON Schema of every job kind, for any arch."""
    components = openapi_components(ref="#/$defs/{model}")
    job = components.pop(JOB_COMPONENT)
    return {**job, "$defs": components}


def openapi_components(ref: str = "#/components/schemas/{model}") -> dict[str, Any]:
    """The job kinds as named schemas that refer to each other; JOB_COMPONENT is their union."""
    _, made = models_json_schema([(cls, "validation") for cls in KINDS.values()], ref_template=ref)
    made["$defs"][NoOptions.__name__] |= {"description": "Options of the arch: see its schema.", "additionalProperties": True}
    union = [{"$ref": ref.format(model=cls.__name__)} for cls in KINDS.values()]
    mapping = {kind: ref.format(model=cls.__name__) for kind, cls in KINDS.items()}
    job = {"oneOf": union, "discriminator": {"propertyName": "kind", "mapping": mapping}, "title": "Job"}
    return {**made["$defs"], JOB_COMPONENT: job}


def presets(arch_name: str) -> list[dict[str, Any]]:
    """The card's presets, each `spec` written out in full."""
    return [{**preset.model_dump(), "spec": parse_job(preset.spec).model_dump(mode="json")} for preset in arch(arch_name).presets]


def default_faults(card: Arch) -> list[Problem]:
    """What is wrong with the card's defaults, each with its place in them: an unknown key, a value that its key does not take, a key that
    means nothing to this arch."""
    found: dict[Problem, None] = {}
    known = {key for cls in KINDS.values() for key in cls.model_fields}
    for kind, cls in KINDS.items():
        wanted = job_type_of(card.model_copy(update={"defaults": {}}), kind)
        given = {key: value for key, value in card.defaults.items() if key in cls.model_fields or key not in known}
        raw = merge(_written_out(wanted, given), {"kind": kind, "model": {"arch": card.name}})
        try:
            faults = list(misfits(card, wanted.model_validate(raw), as_defaults=True))
        except ValidationError as error:
            faults = _in_words(error, raw, wanted)
        found |= dict.fromkeys(fault for fault in faults if _holds(card.defaults, fault.pointer))
    return list(found)


def _written_out(cls: type[Spec], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """The defaults as a job would name them: a list's are those of its only item, and what must be there is."""
    made: dict[str, Any] = dict(defaults)
    for name, info in cls.model_fields.items():
        given, inner = defaults.get(name, {}), inner_spec(info.annotation)
        if inner and isinstance(given, Mapping) and (given or info.is_required()):
            item = _written_out(inner, given)
            made[name] = [item] if get_origin(info.annotation) is list else item
        elif info.is_required():
            made.setdefault(name, "-")
    return made


def _holds(values: Any, pointer: str) -> bool:
    """Whether the place is inside these values; numbers of items are passed over."""
    for part in pointer.split("/")[1:]:
        if isinstance(values, Mapping) and not part.isdigit():
            if part not in values:
                return False
            values = values[part]
    return True


def parse_job(raw: Any) -> JobSpec:
    """The typed job for `raw` (parsed JSON). Raises SpecError with a pointer for each fault."""
    if not isinstance(raw, dict):
        raise SpecError([Problem("", f"a job is a JSON object, not {given(raw)}")])
    if "kind" not in raw and isinstance(raw.get("config"), dict) and "process" in raw["config"]:
        raise SpecError([Problem("", AI_TOOLKIT)])
    kind = raw.get("kind")
    if not isinstance(kind, str) or kind not in KINDS:
        said = f"kind {kind!r} is unknown" if "kind" in raw else "kind is missing"
        raise SpecError([unknown("/kind", f"{said}; known: {names(KINDS)}", kind, KINDS)])
    model = raw.get("model")
    if not isinstance(model, dict) or "arch" not in model:
        place = "/model/arch" if isinstance(model, dict) else "/model"
        raise SpecError([Problem(place, f"model.arch is missing; known: {names(archs())}")])
    if not isinstance(model["arch"], str) or model["arch"] not in archs():
        raise SpecError([unknown("/model/arch", _why_not(model["arch"]), model["arch"], archs())])
    wanted = job_type(model["arch"], kind)
    try:
        spec = wanted.model_validate(raw)
    except ValidationError as error:
        raise SpecError(_in_words(error, raw, wanted)) from None
    faults = list(misfits(arch(model["arch"]), spec))
    if faults:
        raise SpecError(faults)
    return spec


def merge(base: Any, patch: Any) -> Any:
    """`base` with the patch's keys replaced, objects merged key by key."""
    if not (isinstance(base, Mapping) and isinstance(patch, Mapping)):
        return patch
    return {**base, **{key: merge(base.get(key), value) for key, value in patch.items()}}


def _in_words(error: ValidationError, raw: Any, wanted: type[Spec]) -> list[Problem]:
    return problems(error.errors(include_url=False), raw, lambda place: _keys_at(wanted, place))


def _keys_at(wanted: type[Spec], place: tuple[str | int, ...]) -> dict[str, FieldInfo]:
    for part in place:
        if isinstance(part, str):
            wanted = inner_spec(wanted.model_fields[part].annotation) or wanted
    return dict(wanted.model_fields)


def _specialise(cls: type[AnySpec], changes: Mapping[str, Any]) -> type[AnySpec]:
    """A subclass of `cls` whose defaults (and types, where a change is a type) are replaced, at any depth."""
    fields: dict[str, Any] = {}
    for name, change in changes.items():
        info: FieldInfo = cls.model_fields[name]
        inner = inner_spec(info.annotation)
        keep: dict[str, Any] = {"title": info.title, "description": info.description, "json_schema_extra": info.json_schema_extra}
        if isinstance(change, type):
            fields[name] = (change, Field(default_factory=change, **keep))
        elif inner and isinstance(change, Mapping):
            special = _specialise(inner, change)
            annotation = _swap(info.annotation, inner, special)
            made = list if get_origin(annotation) is list else special
            default: dict[str, Any] = {} if info.is_required() else {"default_factory": made}
            if info.default is None:  # a section that a job may leave out stays out
                default = {"default": None}
            fields[name] = (Annotated[annotation, *info.metadata] if info.metadata else annotation, Field(**default, **keep))
        else:
            annotation = Annotated[info.annotation, *info.metadata] if info.metadata else info.annotation
            fields[name] = (annotation, Field(change, **keep))
    return create_model(cls.__name__, __base__=cls, __doc__=cls.__doc__, **fields)


def _swap(annotation: Any, old: type, new: Any) -> Any:
    """`annotation` with `old` replaced by `new` in `S`, `S | None` or `list[S]`."""
    if annotation is old:
        return new
    return list[new] if get_origin(annotation) is list else new | None
