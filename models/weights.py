"""Weights on disk: safetensors only, written whole or not at all.

A file is judged by its content, never by its extension (`models/weightfiles.py`), so a renamed pickle is refused before anything looks
inside.
"""

import contextlib
import hashlib
import json
import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from models.errors import UserError
from models.weightfiles import read_header

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
MODEL_HASH = "sshs_model_hash"  # the header's SHA-256 of everything behind the header


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
    with opened(path, device) as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict


def read_metadata(path: Path) -> dict[str, str]:
    """The text header of a safetensors file. Raises UserError if it is not one."""
    with opened(path) as file:
        return file.metadata() or {}


def json_metadata(**values: object) -> dict[str, str]:
    """Header values: text as it is, everything else as JSON."""
    return {key: value if isinstance(value, str) else json.dumps(value) for key, value in values.items()}


@dataclass(frozen=True)
class Lost:
    """Values that a dtype cannot hold, by tensor: how many become 0 and how many become infinite. `total` counts all values."""

    zero: Mapping[str, int]
    infinite: Mapping[str, int]
    total: int


def lost_values(tensors: Mapping[str, torch.Tensor], dtype: torch.dtype) -> Lost:
    """What `cast_for_saving` would lose; one tensor at a time, for a whole model may be large."""
    zero: dict[str, int] = {}
    infinite: dict[str, int] = {}
    for name, given in tensors.items():
        saved = _cast(given, dtype)
        if saved.dtype != given.dtype:
            zero[name] = int(((saved == 0) & (given != 0)).sum())
            infinite[name] = int((saved.isinf() & given.isfinite()).sum())
    zero, infinite = ({name: count for name, count in each.items() if count} for each in (zero, infinite))
    return Lost(zero, infinite, sum(tensor.numel() for tensor in tensors.values()))


def cast_for_saving(tensors: Mapping[str, torch.Tensor], dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """The floating-point tensors in `dtype`. A single number (an adapter's alpha) that the dtype would change stays as it is."""
    return {name: _cast(tensor, dtype) for name, tensor in tensors.items()}


def _cast(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    tensor = tensor.detach()
    if not tensor.is_floating_point():
        return tensor
    cast = tensor.to(dtype)
    return tensor if tensor.ndim == 0 and cast != tensor else cast


def write_model_hash(path: Path) -> None:
    """Fill in the header's MODEL_HASH, where it holds 64 zeros, in place, and flush the file to disk. A file without one, or of
    another kind, is only flushed."""
    with path.open("r+b") as file:
        length = int.from_bytes(file.read(8), "little")
        header = file.read(length) if 0 < length < path.stat().st_size else b""
        place = header.find(f'"{MODEL_HASH}":"{"0" * 64}"'.encode())
        if place >= 0:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            file.seek(8 + place + len(MODEL_HASH) + 4)
            file.write(digest.encode())
        file.flush()
        os.fsync(file.fileno())


def _system_error(error: SafetensorError, path: Path) -> Exception:
    """The OSError that the safetensors library wraps when it cannot write."""
    found = re.search(r"os error (\d+)", str(error))
    return OSError(int(found[1]), os.strerror(int(found[1])), str(path)) if found else error


@contextlib.contextmanager
def opened(path: Path, device: str = "cpu") -> Iterator[Any]:
    """A safetensors file, whose tensors can be read inside. Raises UserError if it is missing or of another format."""
    read_header(path)
    try:
        with safe_open(path, framework="pt", device=device) as file:
            yield file
    except SafetensorError as error:
        raise UserError(f"{path} is a damaged safetensors file ({error}); download it again", code="bad_weights") from None
