"""Tensors that have a shape but no numbers, and a count of what real ones would take.

A model is loaded with blank weights (no byte of a weights file is read) and the loop's own code runs on them: whatever touches a blank
tensor gives a blank one, while plain numbers such as seeds, timesteps and tokens stay real. `Tracker` sees every operation and adds up the
storages that are alive, which on a device would be its allocated memory.
"""

import contextlib
import os
import sys
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import safetensors
import safetensors.torch
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from models.offload import take_apart
from models.quanto import PackedTensor, WeightQBitsTensor, qbytes_mm_impl_cpu, unpack

DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "I64": torch.int64,
    "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2,
}  # fmt: skip
_reading = ContextVar("reading", default=False)
LOAD_IN_THREADS = "HF_DEACTIVATE_ASYNC_LOAD"  # transformers' switch: blank tensors are for one thread at a time
Op = Callable[..., Any]


def new_mode() -> FakeTensorMode:
    """torch's blank tensors, in whose company real ones are allowed."""
    return FakeTensorMode(allow_non_fake_inputs=True)


def blank(tensor: torch.Tensor, mode: FakeTensorMode) -> torch.Tensor:
    """One of the same shape, strides and dtype; of a quantized weight, with blank parts. A view of one element stays that."""
    parts, rebuild = take_apart(tensor)
    made = []
    for part in parts:
        if not isinstance(part, FakeTensor):
            with mode:
                part = torch.empty_strided(part.shape, part.stride(), dtype=part.dtype, device=part.device)
        made.append(part)
    return rebuild(made)


def blank_module(module: nn.Module, mode: FakeTensorMode) -> None:
    """Replace all weights and buffers by blank ones; shared weights stay shared."""
    known: dict[int, torch.Tensor] = {}
    for part in module.modules():
        for own in _tensors_of(part):
            for name, tensor in own.items():
                if tensor is None or isinstance(tensor, FakeTensor):
                    continue
                if id(tensor) not in known:
                    made = blank(tensor.data, mode)
                    is_param = own is part._parameters
                    known[id(tensor)] = nn.Parameter(made, requires_grad=tensor.requires_grad) if is_param else made
                own[name] = known[id(tensor)]


@contextlib.contextmanager
def with_numbers() -> Iterator[None]:
    """Inside, also within `blank_weights`, files give what they hold."""
    token = _reading.set(True)
    try:
        yield
    finally:
        _reading.reset(token)


@contextlib.contextmanager
def blank_weights(mode: FakeTensorMode) -> Iterator[None]:
    """Inside, safetensors files give blank tensors, modules can move them, and numpy gets zeros of them. Whoever imported safetensors'
    functions by name is served too; files are opened for their headers only, and for single numbers, on which code hangs (alpha)."""
    real_open, real_load, real_apply = safetensors.safe_open, safetensors.torch.load_file, nn.Module._apply
    real_create = WeightQBitsTensor.create

    class Opened:
        """`safe_open`, whose tensors are blank."""

        def __init__(self, path: Any, framework: str = "pt", **_: Any) -> None:
            self._file: Any = real_open(path, framework=framework)

        def __enter__(self) -> "Opened":
            self._file.__enter__()
            return self

        def __exit__(self, *error: Any) -> None:
            self._file.__exit__(*error)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._file, name)

        def get_tensor(self, name: str) -> torch.Tensor:
            about = self._file.get_slice(name)
            if _reading.get() or not about.get_shape():
                return cast(torch.Tensor, self._file.get_tensor(name))
            with mode:
                return torch.empty(about.get_shape(), dtype=DTYPES[about.get_dtype()])

        def get_slice(self, name: str) -> "Slice":
            return Slice(self._file.get_slice(name), self.get_tensor(name))

    class Slice:
        """What `get_slice` gives: a tensor once it is indexed."""

        def __init__(self, about: Any, tensor: torch.Tensor) -> None:
            self.get_shape, self.get_dtype, self._tensor = about.get_shape, about.get_dtype, tensor

        def __getitem__(self, place: Any) -> torch.Tensor:
            return self._tensor[place]

    def load_file(path: str | Path, *_: Any, **__: Any) -> dict[str, torch.Tensor]:
        with Opened(path) as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict

    swapped = {id(real_open): Opened, id(real_load): load_file}
    undo: list[tuple[dict[str, Any], str, Any]] = []
    for module in list(sys.modules.values()):
        names = getattr(module, "__dict__", {})
        for name, value in list(names.items()):
            if id(value) in swapped and (value is real_open or value is real_load):
                undo.append((names, name, value))
                names[name] = swapped[id(value)]
    nn.Module._apply = _apply  # type: ignore[method-assign]
    WeightQBitsTensor.create = staticmethod(partial(_create, real_create))
    FakeTensor.numpy = _zeros  # type: ignore[method-assign, assignment]
    threads = os.environ.get(LOAD_IN_THREADS)
    os.environ[LOAD_IN_THREADS] = "1"
    try:
        yield
    finally:
        os.environ.pop(LOAD_IN_THREADS)
        os.environ.update({LOAD_IN_THREADS: threads} if threads is not None else {})
        nn.Module._apply = real_apply  # type: ignore[method-assign]
        WeightQBitsTensor.create = staticmethod(real_create)
        del FakeTensor.numpy
        for names, name, value in undo:
            names[name] = value


def _apply(self: nn.Module, change: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> nn.Module:
    """torch's own swaps tensors in place, which blank ones do not allow."""
    for part in self.modules() if recurse else [self]:
        for own in _tensors_of(part):
            for name, tensor in own.items():
                if tensor is None:
                    continue
                with torch.no_grad():
                    made = change(tensor)
                if made is not tensor:
                    own[name] = nn.Parameter(made, tensor.requires_grad) if own is part._parameters else made
    return self


def _create(real: Op, qtype: Any, axis: Any, group: Any, size: Any, stride: Any, data: Any, *rest: Any, **more: Any) -> Any:
    """quanto packs only plain tensors, several numbers to a byte, and has kernels that ask for plain ones."""
    if not any(isinstance(part, FakeTensor) for part in take_apart(data)[0]):
        return real(qtype, axis, group, size, stride, data, *rest, **more)
    if isinstance(data, FakeTensor):
        rows = -(-len(data) * qtype.bits // 8)
        data = PackedTensor(data[:rows].clone(), qtype.bits, data.size(), data.stride())
    return WeightQBitsTensor(qtype, axis, group, size, stride, data, *rest, **more)


def _zeros(self: torch.Tensor, **_: Any) -> Any:
    """What leaves torch, as a finished picture does."""
    return np.zeros(tuple(self.shape), torch.empty(0, dtype=self.dtype).numpy().dtype)


def _tensors_of(part: nn.Module) -> tuple[dict[str, Any], dict[str, Any]]:
    """A module's own weights and buffers, to be replaced."""
    return part._parameters, part._buffers


def num_bytes(tensors: Any) -> int:
    """What the tensors (of modules and any nesting of containers) take; a storage that several share counts once."""
    seen: dict[int, int] = {}
    for tensor in tree_iter(tensors):
        inner = [*tensor.parameters(), *tensor.buffers()] if isinstance(tensor, nn.Module) else [tensor]
        for part in [plain for each in inner if isinstance(each, torch.Tensor) for plain in take_apart(each.detach())[0]]:
            storage = part.untyped_storage()
            seen[storage._cdata] = storage.nbytes()
    return sum(seen.values())


def _places(index: torch.Tensor | None) -> Sequence[torch.Tensor | None]:
    """Of a mask with numbers (of tokens, say) where it is true: with a mask nobody knows what shape a blank tensor would take."""
    real_mask = index is not None and index.dtype == torch.bool and not isinstance(index, FakeTensor)
    return index.nonzero(as_tuple=True) if index is not None and real_mask else [index]


class Tracker(TorchDispatchMode):
    """Inside, `now` is what lives of the storages that operations made, and `peak` its highest value; both in bytes."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = self.peak = 0
        self._alive: dict[int, Any] = {}

    def __torch_dispatch__(self, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if (inner := INSIDE.get(func)) is not None:
            with self:  # what it makes on the way counts
                return inner(*args, **(kwargs or {}))
        if func is torch.ops.aten.index.Tensor:
            args = args[0], [place for index in args[1] for place in _places(index)]
        for older in tree_iter((args, kwargs)):
            self._see(older, counts=False)
        made = func(*args, **(kwargs or {}))
        for each in tree_iter(made):
            self._see(each, counts=True)
        return made

    def _see(self, tensor: Any, counts: bool) -> None:
        """A storage met for the first time: one that was there before does not count, and neither do its views."""
        for part in take_apart(tensor)[0] if isinstance(tensor, torch.Tensor) else ():
            storage = part.untyped_storage()
            key = storage._cdata
            if key in self._alive or (part.device.type == "meta" and not isinstance(part, FakeTensor)):
                continue
            size = storage.nbytes() if counts else 0
            self._alive[key] = weakref.finalize(storage, self._gone, key, size)
            self.now += size
            self.peak = max(self.peak, self.now)

    def _gone(self, key: int, size: int) -> None:
        self._alive.pop(key, None)
        self.now -= size


# quanto's operations are closed boxes otherwise; what they unpack inside is a large part of a step's memory
INSIDE: dict[Any, Op] = {torch.ops.quanto.qbytes_mm.default: qbytes_mm_impl_cpu, torch.ops.quanto.unpack.default: unpack}
