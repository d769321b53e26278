"""Weights on disk: safetensors only, written whole or not at all.

A file is judged by its content, never by its extension, so a renamed pickle is refused before anything looks inside.
"""

import contextlib
import json
import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from models.errors import UserError

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary name to write; afterwards it is flushed to disk and becomes `path` in one step. On an exception nothing of it
    remains and `path` is as it was."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    os.close(handle)
    part = Path(name)
    try:
        yield part
        with part.open("rb") as file:
            os.fsync(file.fileno())
        part.chmod(0o644)
        part.replace(path)
        sync_folder(path.parent)
    finally:
        part.unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    """Make renames inside `folder` survive a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def save_tensors(tensors: Mapping[str, torch.Tensor], path: Path, metadata: Mapping[str, str] | None = None) -> None:
    """Write a safetensors file. Header values must be text. Raises OSError when the disk is full; `path` is then as it was."""
    whole = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    with replacing(path) as part:
        try:
            save_file(whole, part, dict(metadata or {}))
        except SafetensorError as error:
            raise _system_error(error, path) from None


def load_tensors(path: Path, device: str = "cpu") -> dict[str, torch.Tensor]:
    """All tensors of a safetensors file. Raises UserError if it is not one."""
    with _opened(path, device) as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict


def read_metadata(path: Path) -> dict[str, str]:
    """The text header of a safetensors file. Raises UserError if it is not one."""
    with _opened(path) as file:
        return file.metadata() or {}


def json_metadata(**values: object) -> dict[str, str]:
    """Header values: text as it is, everything else as JSON."""
    return {key: value if isinstance(value, str) else json.dumps(value) for key, value in values.items()}


def _system_error(error: SafetensorError, path: Path) -> Exception:
    """The OSError that the safetensors library wraps when it cannot write."""
    found = re.search(r"os error (\d+)", str(error))
    return OSError(int(found[1]), os.strerror(int(found[1])), str(path)) if found else error


@contextlib.contextmanager
def _opened(path: Path, device: str = "cpu") -> Iterator[Any]:
    try:
        with safe_open(path, framework="pt", device=device) as file:
            yield file
    except FileNotFoundError:
        raise UserError(f"{path} is missing", code="missing_file") from None
    except SafetensorError as error:
        raise UserError(
            f"{path} is not a safetensors file ({error}); other formats can run code and are not loaded", code="bad_weights"
        ) from None
