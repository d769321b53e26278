"""What quantization computed, kept on disk: a file for each outcome, named by all that decides it, the least recently used removed first.

A name is a digest of the weights that went in. Making one means reading them all, so beside a file lies a note of where its weights came
from: while that has the same inodes, sizes and times, the name is taken from the note, and weights that are only mapped are never read.
"""

import contextlib
import fcntl
import hashlib
import json
import logging
import os
import time
import weakref
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache as once
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import nn

import models
from models.data.fileindex import Stamp, is_settled, stamp_of
from models.errors import UserError
from models.weights import json_metadata, load_tensors, read_metadata, replacing, save_tensors

log = logging.getLogger(__name__)

FILES = ("name_or_path", "te_name_or_path", "vae_path", "assistant_lora_path", "accuracy_recovery_adapter")
COMPUTED_BY = ("optimum-quanto", "torch", "diffusers", "transformers", "safetensors")
FOLDER = "quantized"  # within a cache
OURS = "*.safetensors"
NOTE = ".source"
GLANCE = 64  # numbers of each tensor
LEFT_OVER_SECONDS = 86_400.0  # older unfinished files are those of processes that died


def source_of(config: Mapping[str, Any], code: str) -> str | None:
    """What stands for the weights that a job's `model` section `config` leads to, without reading them: their files' stamps, the section,
    and the code that loads them (`code` is that of an arch from elsewhere). Take it before loading. None where it cannot be told: random
    weights, a hub's name, a file that was changed just now."""
    stamps: list[tuple[str, Stamp]] = []
    for place in [config[key] for key in FILES if config.get(key)]:
        path = Path(place)
        if not path.exists():
            return None
        files = sorted(path.rglob("*")) if path.is_dir() else [path]
        stamps += [(str(file), stamp_of(file)) for file in files if file.is_file()]
    if not all(is_settled(stamp) for _, stamp in stamps):
        return None
    return _hash([dict(config), stamps, code, _own_code(), [version(each) for each in COMPUTED_BY]])


@once
def _own_code() -> str:
    """Of all that lies beside this file, as it was when it was first asked for."""
    folder = Path(models.__path__[0])
    return _hash([[str(path), hashlib.sha256(path.read_bytes()).hexdigest()] for path in sorted(folder.rglob("*.py"))])


class Kept:
    """One outcome's place in `folder`: what `root`, not quantized yet, becomes as `wanted` says. With a known `source` (`source_of`) the
    weights of `root` are not read. `file` is there or not; `prune` leaves it alone for as long as `root` lives."""

    def __init__(self, folder: Path, root: nn.Module, wanted: Mapping[str, str], source: str | None) -> None:
        self._note: Path | None = None
        self._root = root
        if source is not None:
            # A glance at each tensor tells parts of one model apart that have the same layers, two experts say.
            glances = {path: weight.flatten()[:GLANCE] for path, weight in _weights(root, wanted).items()}
            self._note = folder / f"{_hash([source, dict(wanted), digest(glances)])}{NOTE}"
        self.file = self._noted(folder) or folder / f"{fingerprint(root, wanted)}.safetensors"
        self._hold()

    def _noted(self, folder: Path) -> Path | None:
        if self._note is None or not self._note.is_file():
            return None
        file = folder / self._note.read_text()
        return file if file.is_file() else None

    def read(self) -> dict[str, torch.Tensor] | None:
        """The tensors, or None where there are none, or damaged ones. They count as used now."""
        try:
            with contextlib.suppress(OSError):
                os.utime(self.file)
            tensors = load_tensors(self.file)
            if read_metadata(self.file).get("digest") == digest(tensors):
                self._remember()
                return tensors
        except UserError as error:
            if not self.file.exists():
                return None
            log.debug("%s: %s", self.file, error)
        log.warning("%s is damaged and is made again", self.file)
        return None

    def write(self, tensors: Mapping[str, torch.Tensor], wanted: Mapping[str, str]) -> None:
        """A disk that is full costs the cache, not the job."""
        try:
            save_tensors(tensors, self.file, json_metadata(digest=digest(tensors), layers=dict(wanted)))
            self._hold()
            self._remember()
        except OSError as error:
            log.warning("the quantized weights are not kept in %s: %s", self.file.parent, error)

    def _hold(self) -> None:
        with contextlib.suppress(OSError):
            handle = os.open(self.file, os.O_RDONLY)
            fcntl.flock(handle, fcntl.LOCK_SH)
            weakref.finalize(self._root, os.close, handle)

    def _remember(self) -> None:
        if self._note is not None and not (self._note.is_file() and self._note.read_text() == self.file.name):
            with contextlib.suppress(OSError), replacing(self._note) as part:
                part.write_text(self.file.name)


def fingerprint(root: nn.Module, wanted: Mapping[str, str]) -> str:
    """What tells one outcome from another: the weights, the formats, and the code that computes."""
    return _hash([dict(wanted), version("optimum-quanto"), torch.__version__, digest(_weights(root, wanted))])


def _weights(root: nn.Module, wanted: Mapping[str, str]) -> dict[str, torch.Tensor]:
    return {path: root.get_submodule(path).weight for path in wanted}  # type: ignore[misc]


def prune(folder: Path, max_bytes: float) -> None:
    """Remove files until at most `max_bytes` are left, the least recently used first, but none that any process holds."""
    for path, about in _entries(folder, ".*"):
        if time.time() - about.st_mtime > LEFT_OVER_SECONDS:
            path.unlink(missing_ok=True)
    entries = sorted(_entries(folder, OURS), key=lambda entry: entry[1].st_mtime_ns)
    total = sum(about.st_size for _, about in entries)
    for file, about in entries:
        if total > max_bytes and _remove(file):
            total -= about.st_size
            log.info("removed %s, not used since %s", file, time.strftime("%Y-%m-%d", time.localtime(about.st_mtime)))
    for note, _ in _entries(folder, f"*{NOTE}"):
        with contextlib.suppress(OSError):
            if not (folder / note.read_text()).exists():
                note.unlink()


def _entries(folder: Path, pattern: str) -> Iterator[tuple[Path, os.stat_result]]:
    for path in folder.glob(pattern):
        with contextlib.suppress(OSError):
            yield path, path.stat()


def _remove(file: Path) -> bool:
    """False if someone holds it."""
    try:
        with file.open("rb") as handle:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            file.unlink()
    except OSError:
        return False
    return True


def digest(tensors: Mapping[str, torch.Tensor]) -> str:
    """SHA-256 over names, dtypes, shapes and bytes, several tensors at a time."""

    def one(tensor: torch.Tensor) -> str:
        flat = tensor.detach().cpu().contiguous().flatten()
        return hashlib.sha256(flat.view(torch.uint8).numpy().data).hexdigest()

    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        digests = list(pool.map(one, tensors.values()))
    about = [[n, str(t.dtype), list(t.shape), d] for (n, t), d in zip(tensors.items(), digests, strict=True)]
    return _hash(sorted(about))


def _hash(facts: Any) -> str:
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
