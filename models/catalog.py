"""The registry: which architectures there are, the typed job of each, and what is wrong with a job that does not fit.

`models/archs/*/card.py` is scanned once; a card module lists its cards in `ARCHS`. What a worker found in folders elsewhere is
registered beside them. Nothing here imports torch.
"""

import difflib
import importlib
import pkgutil
from collections.abc import Iterable, Iterator, Mapping
from functools import cache, lru_cache
from typing import Annotated, Any, TypeVar, get_args, get_origin

from pydantic import Field, ValidationError, create_model
from pydantic.fields import FieldInfo
from pydantic.json_schema import models_json_schema

import models.archs
from models.arch import Arch
from models.errors import Problem, SpecError, UserError
from models.extensions import Extension
from models.spec import KINDS, JobSpec, NoOptions, SampleSpec, Spec, TrainSpec

AnySpec = TypeVar("AnySpec", bound=Spec)
JOB_COMPONENT = "Job-Spec"
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
    """All usable cards by name, sorted. A bundled one is never replaced."""
    healthy = {each.name: each.card for each in extensions().values() if each.card is not None}
    return dict(sorted({**healthy, **bundled()}.items()))


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
    return f"arch {name!r} is broken: {broken}" if broken else f"arch {name!r} is unknown; known: {', '.join(archs())}"


def nearest(word: str, known: Any) -> str | None:
    """The known word most like `word`, or None."""
    return next(iter(difflib.get_close_matches(str(word), list(known), n=1, cutoff=0.6)), None)


def job_type(arch_name: str, kind: str) -> type[JobSpec]:
    """The job of `kind` with this arch's options, limits and defaults in place of the general ones."""
    return _job_type(arch_name, kind, _registered[0])


@lru_cache(maxsize=256)
def _job_type(arch_name: str, kind: str, _registration: int) -> type[JobSpec]:
    return job_type_of(arch(arch_name), kind)


def job_type_of(card: Arch, kind: str) -> type[JobSpec]:
    """The same for a card that need not be in the catalogue."""
    defaults = {key: value for key, value in card.defaults.items() if key in KINDS[kind].model_fields}
    model = {"arch": card.name, "model_kwargs": card.options, **card.defaults.get("model", {})}
    return _specialise(KINDS[kind], {**defaults, "model": model})


def job_schema(arch_name: str, kind: str) -> dict[str, Any]:
    """JSON Schema (2020-12) of `job_type`, with `ui` hints for a form; what the arch has no use for is hidden."""
    if arch_name not in bundled() and arch_name in extensions():
        known: dict[str, Any] = extensions()[arch_name].schemas[kind]
        return known
    return schema_of(arch(arch_name), job_type(arch_name, kind))


def schema_of(card: Arch, wanted: type[JobSpec]) -> dict[str, Any]:
    """JSON Schema of a job type of this card."""
    schema = wanted.model_json_schema()
    for part in [schema, *schema["$defs"].values()]:
        for leaf in part.get("properties", {}).values():
            if leaf.get("ui", {}).get("needs") not in (None, *card.capabilities):
                leaf["ui"]["hidden"] = True
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


def parse_job(raw: Any) -> JobSpec:
    """The typed job for `raw` (parsed JSON). Raises SpecError with a pointer for each fault."""
    if not isinstance(raw, dict):
        raise SpecError([Problem("", f"a job is a JSON object, not {type(raw).__name__}")])
    kind = raw.get("kind")
    if not isinstance(kind, str) or kind not in KINDS:
        known = ", ".join(KINDS)
        said = f"kind {kind!r} is unknown" if "kind" in raw else "kind is missing"
        raise SpecError([Problem("/kind", f"{said}; known: {known}", nearest(str(kind), KINDS))])
    model = raw.get("model")
    if not isinstance(model, dict) or "arch" not in model:
        raise SpecError(
            [
                Problem(
                    "/model/arch" if isinstance(model, dict) else "/model", f"model.arch is missing; known: {', '.join(archs())}"
                )
            ]
        )
    if not isinstance(model["arch"], str) or model["arch"] not in archs():
        raise SpecError([Problem("/model/arch", _why_not(model["arch"]), nearest(model["arch"], archs()))])
    wanted = job_type(model["arch"], kind)
    try:
        spec = wanted.model_validate(raw)
    except ValidationError as error:
        raise SpecError([_problem(wanted, fault) for fault in error.errors(include_url=False)]) from None
    faults = list(_misfits(arch(model["arch"]), spec))
    if faults:
        raise SpecError(faults)
    return spec


def merge(base: Any, patch: Any) -> Any:
    """`base` with the patch's keys replaced, objects merged key by key."""
    if not (isinstance(base, Mapping) and isinstance(patch, Mapping)):
        return patch
    return {**base, **{key: merge(base.get(key), value) for key, value in patch.items()}}


def _misfits(card: Arch, spec: JobSpec) -> Iterator[Problem]:
    """Faults that a single field's limits cannot express."""
    yield from _needless(card, spec)
    if spec.model.name_or_path == "random" and not card.random_init:
        yield Problem("/model/name_or_path", f"arch '{card.name}' does not start from random weights; name a checkpoint")
    if isinstance(spec, TrainSpec):
        if spec.train.lr_warmup_steps > spec.train.steps:
            yield Problem(
                "/train/lr_warmup_steps", f"{spec.train.lr_warmup_steps} warm-up steps are more than the {spec.train.steps} steps"
            )
        if spec.network is None and not card.trains_all_weights:
            yield Problem("/network", f"arch '{card.name}' trains adapters, not all of its weights; give a network")
        elif spec.network is None and spec.model.dtype != "fp32":
            message = f"a full fine-tune trains the weights themselves and needs fp32; {spec.model.dtype} loses small updates"
            yield Problem("/model/dtype", message, "fp32")
        if spec.network is not None and spec.network.type not in card.adapters:
            yield Problem(
                "/network/type", f"'{spec.network.type}' does not fit arch '{card.name}'; it takes: {', '.join(card.adapters)}"
            )
        for index, dataset in enumerate(spec.datasets):
            for place, resolution in enumerate(dataset.resolution):
                yield from _size(card, f"/datasets/{index}/resolution/{place}", resolution)
    if isinstance(spec, TrainSpec | SampleSpec):
        yield from _size(card, "/sample/width", spec.sample.width)
        yield from _size(card, "/sample/height", spec.sample.height)
        samples, at = (spec.sample.samples, "/sample/samples") if isinstance(spec, TrainSpec) else (spec.samples, "/samples")
        for index, sample in enumerate(samples):
            yield from _size(card, f"{at}/{index}/width", sample.width)
            yield from _size(card, f"{at}/{index}/height", sample.height)


def _needless(card: Arch, spec: Spec, pointer: str = "") -> Iterator[Problem]:
    """Keys that are set but mean nothing to this arch."""
    for name, info in type(spec).model_fields.items():
        value = getattr(spec, name)
        extra = info.json_schema_extra
        ui = extra.get("ui") if isinstance(extra, dict) else None
        needs = ui.get("needs") if isinstance(ui, dict) else None
        if needs and needs not in card.capabilities and value != info.default:
            yield Problem(f"{pointer}/{name}", f"arch '{card.name}' has no use for {name}: it lacks '{needs}'")
        for place, inner in enumerate(value) if isinstance(value, list) else [("", value)]:
            if isinstance(inner, Spec):
                yield from _needless(card, inner, f"{pointer}/{name}" + (f"/{place}" if place != "" else ""))


def _size(card: Arch, pointer: str, pixels: int | None) -> Iterator[Problem]:
    multiple = card.bucket_divisibility
    if pixels is not None and pixels % multiple:
        below = pixels // multiple * multiple
        near = [n for n in (below, below + multiple) if n]
        message = f"{pixels} must be a multiple of {multiple}; nearest: {', '.join(map(str, near))}"
        yield Problem(pointer, message, str(min(near, key=lambda n: abs(n - pixels))))


def _problem(wanted: type[Spec], fault: Any) -> Problem:
    """A pydantic error as a Problem; an unknown key gets the nearest known one."""
    place = fault["loc"]
    pointer = "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in place)
    if fault["type"] == "extra_forbidden":
        known = _keys_at(wanted, place[:-1])
        return Problem(pointer, f"unknown key {place[-1]!r}; known here: {', '.join(known)}", _meant(place[-1], known))
    value = fault["input"]
    given = "" if fault["type"] == "missing" or isinstance(value, dict | list) else f", not {value!r}"
    return Problem(pointer, f"{fault['msg']}{given}")


def _keys_at(wanted: type[Spec], place: tuple[str | int, ...]) -> dict[str, FieldInfo]:
    for part in place:
        if isinstance(part, str):
            wanted = _inner(wanted.model_fields[part].annotation) or wanted
    return dict(wanted.model_fields)


def _meant(word: str | int, known: Mapping[str, FieldInfo]) -> str | None:
    """The key most like `word`, or the key whose title is: `learing_rate` means `lr`."""
    titles = {(info.title or key).lower().replace(" ", "_"): key for key, info in known.items()}
    return nearest(str(word), known) or titles.get(nearest(str(word), titles) or "")


def _inner(annotation: Any) -> type[Spec] | None:
    """The Spec inside `S`, `S | None` or `list[S]`."""
    for candidate in (annotation, *get_args(annotation)):
        if isinstance(candidate, type) and issubclass(candidate, Spec):
            return candidate
    return None


def _specialise(cls: type[AnySpec], changes: Mapping[str, Any]) -> type[AnySpec]:
    """A subclass of `cls` whose defaults (and types, where a change is a type) are replaced, at any depth."""
    fields: dict[str, Any] = {}
    for name, change in changes.items():
        info: FieldInfo = cls.model_fields[name]
        inner = _inner(info.annotation)
        keep: dict[str, Any] = {"title": info.title, "description": info.description, "json_schema_extra": info.json_schema_extra}
        if isinstance(change, type):
            fields[name] = (change, Field(default_factory=change, **keep))
        elif inner and isinstance(change, Mapping):
            special = _specialise(inner, change)
            annotation = _swap(info.annotation, inner, special)
            made = list if get_origin(annotation) is list else special
            default: dict[str, Any] = {} if info.is_required() else {"default_factory": made}
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
