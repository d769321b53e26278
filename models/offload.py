"""Blocks whose frozen weights lie outside the device and come just before their turn.

On a GPU they lie in pinned memory of the computer, and while one block computes the next is copied on a stream of its own. On a CPU
they lie in a file that is mapped into memory, so what is allocated falls in the same way. The numbers do not change: the kernels are
the same and see the same bits. At most two blocks of a module are on the device at a time.

Autograd would keep every frozen weight that a linear layer needs for its input's gradient. While a block computes, such a weight is
therefore kept as a note of where it lies, and is fetched again in the backward pass. Under gradient checkpointing the block, or a
part of it, runs again there, so nothing needs a note: whichever part is called first has the whole block fetched.
"""

import contextlib
import functools
import itertools
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, cast

import numpy as np
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

MARK = "_streams_blocks"
ALIGNED = 64  # bytes; every dtype fits
Rebuild = Callable[[Sequence[torch.Tensor]], torch.Tensor]


def offload_blocks(
    root: nn.Module, device: torch.device | str, share: float = 1.0, keep: Iterable[nn.Module | torch.Tensor] = ()
) -> "Streamer | None":
    """Stream `share` (0..1) of the blocks of `root`, spread evenly; the rest of it goes to `device`. Blocks are the members of its
    module lists. Weights in `keep`, or inside its modules, stay on the device. None where there is nothing to stream.

    Frozen weights only: raises ValueError for one that wants a gradient.
    """
    blocks = list(find_blocks(root))
    count = round(share * len(blocks))
    picked = [blocks[i * len(blocks) // count] for i in range(count)]
    kept = {id(weight) for each in keep for weight in (each.parameters() if isinstance(each, nn.Module) else [each])}
    streamer = Streamer(picked, torch.device(device), kept) if picked else None
    root.to(device)
    if streamer is not None:
        setattr(root, MARK, streamer)
    return streamer


def is_offloaded(module: Any) -> bool:
    """Whether blocks inside are streamed."""
    return isinstance(module, nn.Module) and any(hasattr(part, MARK) for part in module.modules())


def find_blocks(root: nn.Module) -> Iterator[nn.Module]:
    """The members of the outermost module lists, in order."""
    for child in root.children():
        if isinstance(child, nn.ModuleList):
            yield from child
        else:
            yield from find_blocks(child)


class Streamer:
    """The store of several blocks, and the few that are on the device now."""

    def __init__(self, blocks: Sequence[nn.Module], device: torch.device, kept: set[int]) -> None:
        self.device = device
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self.stores = [_Store(block, device, kept) for block in blocks]
        self._here: dict[int, list[torch.Tensor]] = {}
        self._events: dict[int, Any] = {}
        self._places: dict[int, tuple[int, int]] = {}  # address of a weight on the device: (block, its number)
        self._last, self._direction = 0, 1
        for number, block in enumerate(blocks):
            for part in block.modules():
                part.forward = self._streamed(self.stores[number], number, part.forward)

    @property
    def num_bytes(self) -> int:
        """What lies outside the device."""
        return sum(store.num_bytes for store in self.stores)

    def fetch(self, number: int) -> list[torch.Tensor]:
        """The plain tensors of a block, on the device. Its neighbour in the direction of travel is under way afterwards; others go."""
        if number != self._last:
            self._direction = 1 if number > self._last else -1
            self._last = number
        ahead = number + self._direction
        for other in [n for n in self._here if n not in (number, ahead)]:
            self._let_go(other)
        self._copy(number)
        if (event := self._events.pop(number, None)) is not None:
            torch.cuda.current_stream(self.device).wait_event(event)
            for tensor in self._here[number]:
                tensor.record_stream(torch.cuda.current_stream(self.device))
        if self.stream is not None and 0 <= ahead < len(self.stores):
            self._copy(ahead)
        return self._here[number]

    def clear(self) -> None:
        """Nothing of the blocks stays on the device."""
        for number in list(self._here):
            self._let_go(number)

    def _copy(self, number: int) -> None:
        if number in self._here:
            return
        if self.stream is None:
            made = self.stores[number].read()
        else:
            self.stream.wait_stream(torch.cuda.current_stream(self.device))
            with torch.cuda.stream(self.stream):
                made = self.stores[number].read()
                self._events[number] = self.stream.record_event()
        self._here[number] = made
        self._places |= {_address(tensor): (number, place) for place, tensor in enumerate(made)}

    def _let_go(self, number: int) -> None:
        for tensor in self._here.pop(number):
            self._places.pop(_address(tensor), None)
        self._events.pop(number, None)

    def _streamed(self, store: "_Store", number: int, forward: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(forward)
        def run(*args: Any, **kwargs: Any) -> Any:
            if store.is_filled:
                return forward(*args, **kwargs)
            with store.filled(self.fetch(number)), self._notes():
                return forward(*args, **kwargs)

        return run

    def _notes(self) -> contextlib.AbstractContextManager[Any]:
        """Under checkpointing, whose own hooks then stand outermost, nothing: see the module's text."""
        if not torch.is_grad_enabled() or torch._C._autograd._top_saved_tensors_default_hooks(False) is not None:
            return contextlib.nullcontext()
        return torch.autograd.graph.saved_tensors_hooks(self._note, self._look_up)

    def _note(self, saved: torch.Tensor) -> Any:
        parts, rebuild = take_apart(saved)
        places = [self._places.get(_address(part)) for part in parts]
        if None in places:
            return saved
        views = [(part.size(), part.stride(), part.storage_offset()) for part in parts]
        return _Note([place for place in places if place is not None], views, rebuild)

    def _look_up(self, kept: Any) -> torch.Tensor:
        if not isinstance(kept, _Note):
            return kept  # type: ignore[no-any-return]
        parts = [
            self.fetch(number)[place].as_strided(*view) for (number, place), view in zip(kept.places, kept.views, strict=True)
        ]
        return kept.rebuild(parts)


class _Note:
    """Where the plain tensors of a saved weight lie, and how to see them as it saw them."""

    def __init__(self, places: list[tuple[int, int]], views: list[Any], rebuild: Rebuild) -> None:
        self.places, self.views, self.rebuild = places, views, rebuild


class _Store:
    """The frozen weights of one block. In the block itself stand empty ones with the right shape, dtype and device, and no numbers: code
    that uses them past a module's call gets NaN, which no run overlooks."""

    def __init__(self, block: nn.Module, device: torch.device, kept: set[int]) -> None:
        self.device, self.is_filled = device, False
        self.slots: list[tuple[nn.Module, str, int, Rebuild]] = []
        parts: list[torch.Tensor] = []
        for module in block.modules():
            for name, param in module.named_parameters(recurse=False):
                if id(param) in kept:
                    continue
                if param.requires_grad:
                    raise ValueError(f"{type(module).__name__}.{name} is trained; only frozen weights can be offloaded")
                plain, rebuild = take_apart(param.data)
                self.slots.append((module, name, len(plain), rebuild))
                parts += plain
        self.empty = [self._empty(module._parameters[name]) for module, name, _, _ in self.slots]
        self.num_bytes = sum(part.numel() * part.element_size() for part in parts)
        self.held = _hold(parts, device)
        self._fill(self.empty)

    def _empty(self, param: Any) -> nn.Parameter:
        """Costs one element: adapters and pipelines ask only for shape, dtype and device."""
        none = torch.nan if param.dtype.is_floating_point else 0
        blank = torch.full((), none, dtype=param.dtype, device=self.device).expand(param.shape)
        return nn.Parameter(blank, requires_grad=False)

    def read(self) -> list[torch.Tensor]:
        """Copies on the device."""
        if self.device.type == "cuda":
            return [part.to(self.device, non_blocking=True) for part in self.held]
        return [part.clone() for part in self.held]

    @contextlib.contextmanager
    def filled(self, parts: Sequence[torch.Tensor]) -> Iterator[None]:
        """Inside, the block has its weights."""
        whole, start = [], 0
        for _, _, count, rebuild in self.slots:
            whole.append(nn.Parameter(rebuild(parts[start : start + count]), requires_grad=False))
            start += count
        self._fill(whole)
        self.is_filled = True
        try:
            yield
        finally:
            self.is_filled = False
            self._fill(self.empty)

    def _fill(self, params: Sequence[nn.Parameter]) -> None:
        for (module, name, _, _), param in zip(self.slots, params, strict=True):
            module._parameters[name] = param


def take_apart(tensor: torch.Tensor) -> tuple[list[torch.Tensor], Rebuild]:
    """The plain tensors inside (a quantized weight has two or three) and a function that makes the same of others."""
    if not is_traceable_wrapper_subclass(tensor) or isinstance(tensor, FakeTensor):
        return [tensor], _only
    names, about = tensor.__tensor_flatten__()
    inner = [take_apart(getattr(tensor, name)) for name in names]
    counts = [len(parts) for parts, _ in inner]
    cls, size, stride = cast(Any, type(tensor)), tensor.size(), tensor.stride()

    def rebuild(parts: Sequence[torch.Tensor]) -> torch.Tensor:
        made, start = {}, 0
        for name, count, (_, build) in zip(names, counts, inner, strict=True):
            made[name] = build(parts[start : start + count])
            start += count
        return cast(torch.Tensor, cls.__tensor_unflatten__(made, about, size, stride))

    return [part for parts, _ in inner for part in parts], rebuild


def _only(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    return parts[0]


def _address(tensor: torch.Tensor) -> int:
    storage = tensor.untyped_storage()
    return storage._cdata if isinstance(tensor, FakeTensor) else storage.data_ptr()


def _hold(parts: Sequence[torch.Tensor], device: torch.device) -> list[torch.Tensor]:
    """Pinned copies for a GPU; for a CPU the pages of a file that nobody else sees, and that ends with the last tensor."""
    if any(isinstance(part, FakeTensor) for part in parts):  # a plan's blank tensors: there is nothing to hold
        return list(parts)
    plain = [part.detach().to("cpu", copy=True).contiguous() for part in parts]
    if device.type == "cuda":
        return [part.pin_memory() for part in plain]
    return _mapped(plain)


def _mapped(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The same, as pages of a file without a name: read when they are needed, and dropped by the system when others need the memory."""
    sizes = [tensor.numel() * tensor.element_size() for tensor in tensors]
    starts = [0, *itertools.accumulate(-(-size // ALIGNED) * ALIGNED for size in sizes)]
    with tempfile.TemporaryFile(prefix="safelight-blocks-") as file:
        file.truncate(max(starts[-1], ALIGNED))
        pages = np.memmap(file, np.uint8, "r+")
        for tensor, start, size in zip(tensors, starts, sizes, strict=False):
            pages[start : start + size] = tensor.flatten().view(torch.uint8).numpy()
        whole = torch.from_numpy(pages)
    return [
        whole[start : start + size].view(tensor.dtype).reshape(tensor.shape)
        for tensor, start, size in zip(tensors, starts, sizes, strict=False)
    ]
