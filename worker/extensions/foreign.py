"""Imports architectures from folders elsewhere and derives their cards. Foreign code runs here, so only in processes that may die."""

import dis
import importlib
import importlib.util
import sys
import traceback
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any, get_args

from pydantic import ValidationError

from models import catalog, toolkit, words
from models.arch import Arch, Capability
from models.errors import Problem, SpecError, UserError
from models.extensions import Extension, FreeOptions, card_as_json
from models.spec import KINDS, ModelSpec
from worker.extensions.packages import LIST_NAME, Package, digest, entries

FALLBACK_MULTIPLE = 16  # pixels, for a class that does not say
KIND_OF: dict[str, Any] = {"image": "t2i", "video": "t2v", "audio": "audio"}
PREVIEW_PIXELS, TRAINING_PIXELS = 1024, 512  # sides of the default sizes, brought to the multiple


def cards(package: Package) -> Iterator[Arch]:
    """The cards of a package. Raises whatever its code raises."""
    if package.problem:
        raise UserError(package.problem)
    with toolkit.installed():
        if package.form == "ours":
            yield from _our_cards(package)
            return
        listed = entries(package)
        if listed is None:
            _place(package, run=True)
            for cls in getattr(sys.modules[package.import_name], LIST_NAME):
                yield card_of(cls)
            return
        _place(package, run=False)
        for entry in listed:
            yield card_of(getattr(importlib.import_module(entry.module), entry.class_name))


def our_card(package: Package, name: str) -> Arch:
    """The card called `name` of a package of our form, whose code was imported and whose class can be constructed. Raises UserError
    where it cannot, and any error of the code."""
    card = next(card for card in cards(package) if card.name == name)
    with toolkit.installed():
        cls = class_of(card)
        if (section := _section(card)) is not None:
            cls("cpu", cls.configure(section), "fp32")
    return card


def class_of(card: Arch) -> Any:
    """The class that a card's `code` names, imported. Raises UserError if its module has no such model class."""
    from models.base import BaseModel

    module, _, name = card.code.partition(":")
    cls = getattr(importlib.import_module(module), name, None)
    if not (isinstance(cls, type) and issubclass(cls, BaseModel)):
        wrong = "has no such class" if cls is None else "has under that name no subclass of models.base.BaseModel"
        raise UserError(f"its card's code is '{card.code}', but {module} {wrong}")
    return cls


def _section(card: Arch) -> Any:
    """A job's `model` section with every default; None where an option has none."""
    try:
        options: Any = card.options()
    except ValidationError:
        return None
    return ModelSpec.model_construct(arch=card.name, name_or_path="", model_kwargs=options)


def one_card(package: Package, module: str, class_name: str) -> Arch:
    """The card of one class of a package whose other classes are not imported."""
    with toolkit.installed():
        _place(package, run=False)
        return card_of(getattr(importlib.import_module(module), class_name))


def found(package: Package, card: Arch) -> Extension:
    """Everything about a healthy architecture. Raises UserError if its card's defaults or presets are no good."""
    if faults := catalog.default_faults(card):
        raise UserError(f"its defaults are not right: {_listed(faults)}")
    extension = Extension(card.name, str(package.path), digest(package.path), card, schemas_of(card))
    before = catalog.extensions().values()
    catalog.register([*before, extension])
    try:
        for preset in card.presets:
            try:
                catalog.parse_job(preset.spec)
            except SpecError as error:
                raise UserError(f"its preset '{preset.name}' is not right: {_listed(error.problems)}") from None
    finally:
        catalog.register(before)
    return extension


def _listed(faults: Iterable[Problem]) -> str:
    return "; ".join(f"{fault.pointer}: {fault.message}" for fault in faults)


def schemas_of(card: Arch) -> dict[str, Any]:
    return {kind: catalog.schema_of(card, catalog.job_type_of(card, kind)) for kind in KINDS}


def reason(error: BaseException, package: Package) -> str:
    """Why an import failed, in one line: what is missing, or the error and its place in the package."""
    if isinstance(error, UserError):
        return error.message
    if isinstance(error, ModuleNotFoundError) and error.name and not error.name.startswith((toolkit.ROOT, package.path.name)):
        return f"it needs the Python package '{error.name.partition('.')[0]}', which is not installed"
    frames = traceback.extract_tb(error.__traceback__)
    inside = [frame for frame in frames if Path(frame.filename).is_relative_to(package.path)]
    where = ""
    if isinstance(error, SyntaxError) and error.filename:
        where = f" ({Path(error.filename).name}, line {error.lineno})"
    elif inside:
        where = f" ({Path(inside[-1].filename).name}, line {inside[-1].lineno})"
    if isinstance(error, ValidationError):
        faults = words.problems(error.errors(include_url=False), None)
        return f"{error.title}: {'; '.join(f'{each.pointer[1:]} {each.message}' for each in faults)}{where}"
    text = error.msg if isinstance(error, SyntaxError) else str(error)
    return f"{type(error).__name__}: {text}{where}"


def card_of(cls: Any) -> Arch:
    """A card for an ai-toolkit class: what its code says and reads decides what it can do. Raises UserError for a class without a
    usable `arch`, and any error of its constructor."""
    name = getattr(cls, "arch", None)
    if not isinstance(name, str) or not name:
        raise UserError(f"class {cls.__name__} has no arch: a class attribute with its unique name")
    reads = names_in(cls)
    model = _made(cls, name)
    flags: dict[str, tuple[str, ...]] = {
        "edit": ("has_multiple_control_images", "encode_control_in_text_embeddings", "use_raw_control_images"),
        "multistage": ("is_multistage",),
        "multi_reference": ("has_multiple_control_images",),
        "old_lokr_names": ("use_old_lokr_format",),
    }
    words = {"edit": "control_tensor", "multi_reference": "control_tensor_list", "video": "num_frames", "vae": "vae_path"}
    words |= {"i2v": "do_i2v", "audio": "do_audio"}
    able = {key for key, names in flags.items() if any(getattr(model, flag, False) for flag in names)}
    able |= {key for key, word in words.items() if word in reads}
    able |= {"training_adapter"} if uses(cls, "assistant_lora_path") else set()
    if uses(cls, "ctrl_img") and not able & {"edit", "i2v"}:  # of a video model it is the first frame
        able |= {"i2v" if "video" in able else "edit"}
    able |= {"schedule"} if _may_have_a_schedule(cls, reads) else set()
    sounds = bool(getattr(model, "is_audio_model", False))  # sounds only: clips with sound are video
    modality: Any = "audio" if sounds else "video" if "video" in able else "image"
    multiple = _multiple(cls, model)
    side = max(PREVIEW_PIXELS // multiple * multiple, multiple)
    resolution = max(TRAINING_PIXELS // multiple * multiple, multiple)
    return Arch(
        name=name,
        label=name,
        description=f"{cls.__name__}, from a folder elsewhere.",
        kind=KIND_OF[modality],
        modality=modality,
        capabilities=tuple(word for word in get_args(Capability) if word in able),
        code=f"{cls.__module__}:{cls.__qualname__}",
        options=FreeOptions,
        bucket_divisibility=multiple,
        defaults={"sample": {"width": side, "height": side}, "datasets": {"resolution": [resolution]}},
        trains_all_weights=False,
    )


def names_in(cls: type) -> set[str]:
    """Every attribute and variable that the class's own code reads, inherited foreign code included, ours not."""
    return {name for code in _own_code(cls) for name in code.co_names}


def uses(cls: type, attribute: str) -> bool:
    """Whether that code does more with an attribute than to look whether it is None, which is what code does that refuses it."""
    for code in _own_code(cls):
        for one, following in pairwise(dis.get_instructions(code)):
            tests = following.opname.startswith("POP_JUMP") or (following.opname == "LOAD_CONST" and following.argval is None)
            if one.argval == attribute and one.opname in ("LOAD_ATTR", "LOAD_METHOD") and not tests:
                return True
    return False


def _own_code(cls: type) -> Iterator[CodeType]:
    for base in cls.__mro__:
        for value in vars(base).values() if not (base.__module__.startswith("models.") or base is object) else ():
            function = getattr(value, "__func__", getattr(value, "fget", value))
            codes = [function.__code__] if isinstance(function, FunctionType) else []
            while codes:
                code = codes.pop()
                yield code
                codes += [inner for inner in code.co_consts if isinstance(inner, CodeType)]


def _made(cls: Any, name: str) -> Any:
    """An instance without weights, whose flags can be read."""
    from models.toolkit.config_modules import ModelConfig

    return cls("cpu", ModelConfig(name_or_path="", arch=name), "fp32")


def _may_have_a_schedule(cls: Any, reads: set[str]) -> bool:
    """False only where there is certainly none: a scheduler may also come with the weights."""
    from models.flow import has_shift

    try:
        scheduler = cls.get_train_scheduler()
    except Exception:
        return True
    return has_shift(scheduler) or (scheduler is None and "noise_scheduler" in reads)


def _multiple(cls: Any, model: Any) -> int:
    from models.base import BaseModel

    if getattr(cls, "get_bucket_divisibility", None) in (None, BaseModel.get_bucket_divisibility):
        return FALLBACK_MULTIPLE
    try:
        return int(model.get_bucket_divisibility())
    except Exception:
        return FALLBACK_MULTIPLE


def _our_cards(package: Package) -> Iterator[Arch]:
    _place(package, run=(package.path / "__init__.py").is_file())
    module = importlib.import_module(f"{package.import_name}.card")
    for card in module.ARCHS:
        code = card.code if not card.code.startswith(".") else package.import_name + card.code
        yield card.model_copy(update={"code": code})


def _place(package: Package, run: bool) -> None:
    """Make the package importable under its name; with `run`, run its `__init__.py`, else only what is below can be imported.
    Raises UserError if the name is already another module's."""
    *parents, _ = package.import_name.split(".")
    folder = package.path
    for depth in range(len(parents), 0, -1):
        folder = folder.parent
        _module(".".join(parents[:depth]), folder)
    known = sys.modules.get(package.import_name)
    if known is None and not parents and importlib.util.find_spec(package.import_name) is not None:
        raise UserError(f"the folder's name '{package.path.name}' is that of an installed Python module; give it another")
    if known is not None:
        if str(package.path) not in list(getattr(known, "__path__", [])):
            raise UserError(f"the folder's name '{package.path.name}' is that of another module; give it another")
        return
    if not run:
        _module(package.import_name, package.path)
        return
    init = package.path / "__init__.py"
    spec = importlib.util.spec_from_file_location(package.import_name, init, submodule_search_locations=[str(package.path)])
    if spec is None or spec.loader is None:
        raise UserError(f"{init} cannot be imported")
    module = sys.modules[package.import_name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[package.import_name]
        raise


def _module(name: str, folder: Path) -> None:
    """A package without code of its own, whose submodules lie in `folder`, and in others for the same name."""
    known = sys.modules.get(name)
    if known is None:
        known = sys.modules[name] = ModuleType(name)
        known.__path__ = []
    if str(folder) not in known.__path__:
        known.__path__.append(str(folder))


def card_row(extension: Extension) -> dict[str, Any]:
    """An Extension as JSON, for a pipe or a table."""
    card = card_as_json(extension.card) if extension.card else {}
    shared = {"name": extension.name, "source": extension.source, "digest": extension.digest}
    return {**shared, "card": card, "schemas": dict(extension.schemas), "broken": extension.broken}
