"""The names that ai-toolkit architecture folders import, offered by parts of ours.

A folder written for ai-toolkit says `from toolkit.models.base_model import BaseModel`. Between `install()` and `uninstall()` such
imports find the modules listed in NAMES; at any other time there is no package called `toolkit` here. Nothing of ai-toolkit is
copied: this is an implementation of its names, on our BaseModel, adapters, embeds and on optimum-quanto. What a name cannot do here
is a UserError when it is used, never when it is imported.
"""

import contextlib
import importlib
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any

ROOT = "toolkit"
NAMES: Mapping[str, str] = {
    "toolkit.accelerator": "models.toolkit.helpers",
    "toolkit.advanced_prompt_embeds": "models.toolkit.embeds",
    "toolkit.basic": "models.toolkit.helpers",
    "toolkit.config_modules": "models.toolkit.config_modules",
    "toolkit.data_transfer_object.data_loader": "models.toolkit.config_modules",
    "toolkit.dequantize": "models.toolkit.quantize",
    "toolkit.ideogram_caption": "models.toolkit.captions",
    "toolkit.lora_special": "models.toolkit.lora_special",
    "toolkit.memory_management": "models.toolkit.memory",
    "toolkit.memory_management.manager": "models.toolkit.memory",
    "toolkit.metadata": "models.toolkit.helpers",
    "toolkit.models.FakeVAE": "models.toolkit.vae",
    "toolkit.models.base_model": "models.toolkit.base_model",
    "toolkit.models.flux": "models.toolkit.flux",
    "toolkit.models.v2.z_image": "models.toolkit.single_file",
    "toolkit.models.wan21.wan21": "models.toolkit.wan",
    "toolkit.models.wan21.wan_utils": "models.toolkit.wan_frames",
    "toolkit.paths": "models.toolkit.helpers",
    "toolkit.print": "models.toolkit.helpers",
    "toolkit.prompt_utils": "models.toolkit.embeds",
    "toolkit.samplers.custom_flowmatch_sampler": "models.toolkit.samplers",
    "toolkit.train_tools": "models.toolkit.train_tools",
    "toolkit.util.comfy_quant_import": "models.toolkit.quantize",
    "toolkit.util.mask": "models.toolkit.masks",
    "toolkit.util.ostris_quant": "models.toolkit.quantize",
    "toolkit.util.quantize": "models.toolkit.quantize",
    "toolkit.util.qwen_vae_gradient_checkpointing": "models.toolkit.vae",
}
PACKAGES = frozenset(name.rpartition(".")[0] for name in NAMES) | {ROOT, "toolkit.models.v2", "toolkit.models.wan21"}

# names that folders import from where an older diffusers had them: module, name, and the module that has it now
MOVED = (("diffusers.pipelines.ltx2.export_utils", "encode_video", "diffusers.utils"),)


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Answers for `toolkit` and everything below it, so that no other package of that name is found."""

    def find_spec(
        self, fullname: str, _path: Sequence[str] | None = None, _target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != ROOT and not fullname.startswith(ROOT + "."):
            return _mended(fullname, _path) if any(fullname == module for module, _, _ in MOVED) else None
        if fullname not in NAMES and fullname not in PACKAGES:
            raise ModuleNotFoundError(f"Safelight does not offer ai-toolkit's module '{fullname}'", name=fullname)
        return importlib.machinery.ModuleSpec(fullname, self, is_package=fullname in PACKAGES)

    def exec_module(self, module: ModuleType) -> None:
        """The same objects as in our module, so that classes are one and the same under both names."""
        if target := NAMES.get(module.__name__):
            ours: dict[str, Any] = vars(importlib.import_module(target))
            vars(module).update({name: value for name, value in ours.items() if not name.startswith("__")})


class _Mending(importlib.abc.Loader):
    """Loads a module as its own loader does, then adds the names that have moved out of it."""

    def __init__(self, loader: importlib.abc.Loader) -> None:
        self.loader = loader

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self.loader.exec_module(module)
        _mend()


def _mended(fullname: str, path: Sequence[str] | None) -> importlib.machinery.ModuleSpec | None:
    spec = importlib.machinery.PathFinder.find_spec(fullname, path)
    if spec is not None and spec.loader is not None:
        spec.loader = _Mending(spec.loader)
    return spec


def _mend() -> None:
    for module, name, where in MOVED:
        if (known := sys.modules.get(module)) is not None and not hasattr(known, name):
            setattr(known, name, getattr(importlib.import_module(where), name, None))


_finder = _Finder()
_hidden: dict[str, ModuleType] = {}


def install() -> None:
    """Make `toolkit.*` importable. Another package called `toolkit` that is already loaded steps aside until `uninstall()`."""
    if _finder in sys.meta_path:
        return
    _hidden.update(_take_away())
    sys.meta_path.insert(0, _finder)
    _mend()


def uninstall() -> None:
    """Undo `install()`. Modules that were imported in between keep what they took."""
    if _finder in sys.meta_path:
        sys.meta_path.remove(_finder)
        _take_away()
        sys.modules.update(_hidden)
        _hidden.clear()


@contextlib.contextmanager
def installed() -> Iterator[None]:
    """`install()` for a while; nested uses are fine."""
    outermost = _finder not in sys.meta_path
    install()
    try:
        yield
    finally:
        if outermost:
            uninstall()


def _take_away() -> dict[str, ModuleType]:
    names = [name for name in sys.modules if name == ROOT or name.startswith(ROOT + ".")]
    return {name: sys.modules.pop(name) for name in names}
