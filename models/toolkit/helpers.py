"""Small helpers: `toolkit.basic`, `.accelerator`, `.print`, `.paths` and `.metadata`."""

import gc
import json
import logging
import os
from collections import OrderedDict
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import torch

log = logging.getLogger("toolkit")

MODELS_PATH = os.environ.get("MODELS_PATH", str(Path("~/safelight/models").expanduser()))


def flush(garbage_collect: bool = True) -> None:
    """Give unused memory back: Python's, then the GPU's."""
    if garbage_collect:
        gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def get_quick_signature_string(path: str | os.PathLike[str]) -> str:
    """What tells one state of a file from another without reading it: size and time of change."""
    about = Path(path).stat()
    return f"{about.st_size}:{about.st_mtime_ns}"


@cache
def get_accelerator() -> Any:
    """One accelerate.Accelerator for the process; a job here runs in one process on one device."""
    from accelerate import Accelerator

    return Accelerator(cpu=not torch.cuda.is_available())


def unwrap_model(model: Any) -> Any:
    """The module inside `torch.compile` and data-parallel wrappers; anything else as it is."""
    while True:
        inner = getattr(model, "_orig_mod", None) or (model.module if type(model).__name__.endswith("DataParallel") else None)
        if inner is None:
            return model
        model = inner


def print_acc(*words: object, **_: Any) -> None:
    """Goes to the log; nothing here prints."""
    log.info(" ".join(map(str, words)))


def get_meta_for_safetensors(meta: Mapping[str, Any], name: str | None = None, add_software_info: bool = True) -> dict[str, str]:
    """`meta` as a safetensors header: every value text, [name] filled in."""
    filled = OrderedDict(json.loads(json.dumps(meta).replace("[name]", name or "[name]")))
    if add_software_info:
        filled["software"] = {"name": "safelight"}
    header = {key: value if isinstance(value, str) else json.dumps(value) for key, value in filled.items()}
    return {**header, "format": "pt"}
