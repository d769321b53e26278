"""What was encoded, on disk and in memory: one file per item, named by a digest of all that decides its content.

A file appears whole or not at all, and carries a checksum; whoever writes the same name writes the same bytes, so that jobs and processes
share the folder without locks. A file that is damaged is removed, said so once, and made again.
"""

import contextlib
import hashlib
import json
import logging
import os
import struct
import tempfile
import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save

from models import prompt_embeds
from models.data.fileindex import FileIndex, Stamp, stamp_of
from models.precise import not_finite
from models.toolkit.embeds import PromptEmbeds as ForeignEmbeds
from worker.data.fingerprint import tensor_bytes

log = logging.getLogger("safelight")

CHECKSUM = "safelight_checksum"
FINITE: Mapping[str, Any] = {"finite": True}  # what the index knows of an entry that was looked at for values that are not
MEMORY_BYTES = 1 << 30  # what is kept of text embeds; older ones are read from disk again

Tensors = Mapping[str, torch.Tensor]

_as_json = json.JSONEncoder(sort_keys=True).encode


def key_of(*facts: Any) -> str:
    """A name for whatever these facts decide; they are JSON."""
    return hashlib.sha256(_as_json(facts).encode()).hexdigest()


class DiskCache:
    """Tensors by key under `folder`, in two levels of folders (4096 in all) by how a key begins. Reading and writing may happen in any
    thread."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lamented: set[str] = set()
        self._written: list[str] = []

    def path(self, key: str) -> Path:
        return Path(self._file(key))

    def _file(self, key: str) -> str:
        return f"{self.folder}/{key[:2]}/{key[2]}/{key}.safetensors"

    def read(self, key: str) -> tuple[dict[str, torch.Tensor], dict[str, str]] | None:
        """The tensors and the header of an entry, or None if there is none, or if it was damaged; then it is gone."""
        path = self.path(key)
        try:
            # Read, not mapped: a mapped file that someone cuts short would take the process with it.
            data = path.read_bytes()
            tensors, header = load(data), _header(data)
            whole = header.pop(CHECKSUM, "") == checksum(tensors)
            if whole and not (bad := not_finite(tensors)):
                return tensors, header
            reason = f"values of {', '.join(bad)} are not finite" if whole else "its checksum does not fit"
        except FileNotFoundError:
            return None
        except (OSError, SafetensorError, ValueError, struct.error) as error:
            reason = f"{type(error).__name__}: {error}"
        if key not in self._lamented:
            self._lamented.add(key)
            log.warning("cache entry %s is damaged (%s) and is made again", path, reason)
        path.unlink(missing_ok=True)
        return None

    def write(self, key: str, tensors: Tensors, header: Mapping[str, str] | None = None) -> None:
        """Raises OSError when the disk is full, ValueError for values that are not finite; nothing torn stays behind. The disk is not
        waited for: what a power cut leaves of an entry fails its checksum, and is made again."""
        if bad := not_finite(tensors):
            raise ValueError(f"values of {', '.join(bad)} are not finite, and no cache keeps such")
        path = self.path(key)
        # Cloned, since a view would keep, or share, more than itself.
        whole = {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in tensors.items()}
        data = save(whole, {**(header or {}), CHECKSUM: checksum(whole)})
        try:
            handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        except FileNotFoundError:
            path.parent.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        part = Path(name)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
            part.replace(path)
            self._written.append(str(path))
        finally:
            part.unlink(missing_ok=True)

    def sound(self, keys: Iterable[str], index: FileIndex | None) -> set[str]:
        """Those of the keys whose entries are there and whole. One that is unchanged since it was last found whole is not read again."""
        known = index.known(self.folder) if index else {}
        whole: set[str] = set()
        fresh: list[tuple[str, Stamp, Mapping[str, Any]]] = []
        for key in keys:
            file = self._file(key)
            try:
                stamp = stamp_of(file)
            except OSError:
                continue
            before = known.get(file)
            if before is None or before[0] != stamp or before[1] != FINITE:
                if self.read(key) is None:
                    continue
                fresh.append((file, stamp, FINITE))
            whole.add(key)
        if index:
            index.remember(fresh, own=True)
        return whole

    def remember(self, index: FileIndex) -> None:
        """Note that what was written since the last call is whole."""
        written, self._written = self._written, []
        rows: list[tuple[str, Stamp, Mapping[str, Any]]] = []
        for file in written:
            with contextlib.suppress(OSError):
                rows.append((file, stamp_of(file), FINITE))
        index.remember(rows, own=True)


def _header(data: bytes) -> dict[str, str]:
    """The text header of a safetensors file's bytes: after eight bytes for its length comes JSON."""
    (length,) = struct.unpack("<Q", data[:8])
    header: dict[str, str] = json.loads(data[8 : 8 + length]).get("__metadata__", {})
    return header


def checksum(tensors: Tensors) -> str:
    """A SHA-256 over the names, dtypes, shapes and bytes of all tensors."""
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor_bytes(tensor))
    return digest.hexdigest()


class Recent:
    """The values last used, up to so many bytes of tensors."""

    def __init__(self, max_bytes: int = MEMORY_BYTES) -> None:
        self._max, self._bytes = max_bytes, 0
        self._kept: OrderedDict[str, tuple[Any, int]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: str) -> Any:
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key][0]
        return None

    def put(self, key: str, value: Any, num_bytes: int) -> None:
        with self._lock:
            if key in self._kept:
                self._bytes -= self._kept.pop(key)[1]
            self._kept[key] = (value, num_bytes)
            self._bytes += num_bytes
            while self._bytes > self._max and len(self._kept) > 1:
                self._bytes -= self._kept.popitem(last=False)[1][1]


def embeds_to_tensors(embeds: Any) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """One prompt's embeds, of either class, as named tensors and a header."""
    if isinstance(embeds, prompt_embeds.AdvancedPromptEmbeds):
        header = {"class_name": prompt_embeds.CLASS_NAME, "frozen_dtype_keys": ",".join(embeds.frozen_dtype_keys)}
        return {key: embeds[key][0] for key in embeds.keys()}, header  # noqa: SIM118 - not a dict
    tensors: dict[str, torch.Tensor] = {}
    for name in ("text_embeds", "pooled_embeds", "attention_mask"):
        value = getattr(embeds, name)
        several = {f"{name}.{index}": each for index, each in enumerate(value)} if isinstance(value, list) else {name: value}
        tensors |= {key: each for key, each in several.items() if each is not None}
    return tensors, {"class_name": "foreign" if isinstance(embeds, ForeignEmbeds) else "PromptEmbeds"}


def embeds_from_tensors(tensors: Tensors, header: Mapping[str, str]) -> Any:
    """The inverse of `embeds_to_tensors`."""
    if header["class_name"] == prompt_embeds.CLASS_NAME:
        embeds = prompt_embeds.AdvancedPromptEmbeds(**tensors)
        embeds.frozen_dtype_keys = list(filter(None, header["frozen_dtype_keys"].split(",")))
        return embeds

    def read(name: str) -> Any:
        several = sorted((key for key in tensors if key.startswith(f"{name}.")), key=lambda key: int(key.rpartition(".")[2]))
        return [tensors[key] for key in several] if several else tensors.get(name)

    text, pooled, mask = read("text_embeds"), read("pooled_embeds"), read("attention_mask")
    if header["class_name"] == "foreign":
        return ForeignEmbeds([text, pooled], attention_mask=mask)
    return prompt_embeds.PromptEmbeds(text, pooled, mask)
