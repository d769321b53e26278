"""The weights of one part of a base model: its safetensors files, read whole or refused with the file and the keys.

Names, shapes and number formats are compared before any number is read, so files stay mapped. Weights in 8 bits become ordinary
numbers here, with the scales that lie beside them.
"""

import contextlib
import logging
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn

from models.errors import UserError
from models.weightfiles import INDEX, WEIGHTS_OF_PART, other_names, shards
from models.weights import opened
from models.words import named

AnyModule = TypeVar("AnyModule", bound=nn.Module)
IN_8_BITS = ("F8_E4M3", "F8_E5M2")
FLOATING = ("F64", "F32", "F16", "BF16", *IN_8_BITS)
SCALES = ("scale_weight", "weight_scale")  # beside `weight`: what its numbers are to be multiplied by
SCALES_NOT_READ = ("weight_scale_inv", "scale_inv")  # beside `weight`: one for each block of its numbers
ONLY_FOR_8_BIT_KERNELS = ("scale_input", "input_scale", "comfy_quant")  # beside a scale; they change no weight
MARK = "scaled_fp8"  # an empty tensor by which some tools know such a file
COUNTERS = (r"(^|\.)num_batches_tracked$",)  # of batch norms; nothing that is frozen reads them
MOST_NAMED = 3

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Stored:
    """One tensor of an open file. `shape` and `dtype` (safetensors' name) are those in the file."""

    file: Path
    source: Any
    name: str
    shape: tuple[int, ...]
    dtype: str
    scale: "Stored | None" = None

    def read(self) -> torch.Tensor:
        """The numbers: as they lie in the file and mapped from it, or multiplied by their scale, in fp32."""
        tensor: torch.Tensor = self.source.get_tensor(self.name)
        if self.scale is None:
            return tensor
        scale = self.scale.read().float()
        return tensor.float() * scale.reshape([-1, *[1] * (tensor.ndim - 1)] if prod(self.scale.shape) > 1 else [])

    def __getitem__(self, index: Any) -> torch.Tensor:
        """What transformers calls to read a tensor."""
        return self.read()[index]


@dataclass(frozen=True)
class Weights:
    """All tensors of a part by name; `where` is its file, or the index of its files."""

    where: Path
    tensors: Mapping[str, Stored] = field(default_factory=dict)

    def check(
        self,
        owner: str,
        missing: Iterable[str] = (),
        surplus: Iterable[str] = (),
        reshaped: Mapping[str, tuple[Sequence[int], Sequence[int]]] | None = None,
    ) -> None:
        """Refuse weights that are not those of the class `owner`: keys that are not in the file, keys that the class does not have, and
        keys with the shape in the file and the shape that is needed. Raises UserError naming the file and three keys of each kind."""
        lacking, extra = sorted(missing), sorted(self._in_file(name) for name in surplus)
        other = [
            f"{name} ({_shape(given)}, needed {_shape(needed)})" for name, (given, needed) in sorted((reshaped or {}).items())
        ]
        faults = [
            some_keys(keys, said)
            for keys, said in ((lacking, "missing"), (extra, "too many"), (other, "of another shape"))
            if keys
        ]
        if faults:
            raise UserError(
                f"{self.where} does not fit {owner}: {'; '.join(faults)}",
                code="bad_weights",
                hint="give the weights that belong to this model, and download them again if they are",
            )

    def say_formats(self, used: Collection[Stored]) -> None:
        """Log which of the tensors that are used are not read as they lie in the file."""
        if scaled := sum(stored.scale is not None for stored in used):
            log.warning("%s: %d of %d weights are read with the scales beside them", self.where, scaled, len(used))
        if plain := sum(stored.scale is None and stored.dtype in IN_8_BITS for stored in used):
            log.warning(
                "%s: %d of %d weights are stored in 8 bits without scales and cast; pictures differ a little from the original's",
                self.where, plain, len(used),
            )  # fmt: skip

    def _in_file(self, name: str) -> str:
        """A key as it stands in the file, of one that was renamed by adding or removing what comes first."""
        alike = (key for key in self.tensors if key.endswith(f".{name}") or name.endswith(f".{key}"))
        key = name if name in self.tensors else next(alike, None)
        return self.tensors[key].name if key else name


@contextlib.contextmanager
def open_weights(place: Path, prefix: str = "") -> Iterator[Weights]:
    """The weights in `place`, a file or the folder of a part, without the `prefix` that their names may have; they can be read as long
    as the context is open. Raises UserError where there are none, or files that are not safetensors, or formats that are not read."""
    where = place if place.is_file() else _weights_file(place)
    tensors: dict[str, Stored] = {}
    with contextlib.ExitStack() as stack:
        for file in shards(where) if where.name.endswith(INDEX) else [where]:
            source = stack.enter_context(opened(file))
            for name in source.keys():  # noqa: SIM118 - not a dict
                about = source.get_slice(name)
                stored = Stored(file, source, name, tuple(about.get_shape()), str(about.get_dtype()))
                tensors[name.removeprefix(prefix)] = stored
        yield Weights(where, _with_scales(tensors))


def load_module(
    make: Callable[[], AnyModule],
    weights: Weights,
    dtype: torch.dtype | None = None,
    leaves_out: Sequence[str] = (),
) -> AnyModule:
    """The module that `make` builds, with `weights`, cast to `dtype` (None: as they are stored). It is built without memory for its
    weights, and weights that need no cast stay mapped. `leaves_out` are regular expressions for keys of the file that it has no use
    for. Raises UserError where weights and module do not fit."""
    with _default_dtype(dtype), _without_weights():
        module = make()
    tensors = dict(weights.tensors)
    if (rename := getattr(module, "_fix_state_dict_keys_on_load", None)) is not None:
        rename(tensors)  # diffusers' names of earlier versions
    wanted = module.state_dict()
    ignored = [*leaves_out, *(getattr(module, "_keys_to_ignore_on_load_unexpected", None) or ())]
    used = {name: stored for name, stored in tensors.items() if name in wanted}
    weights.check(
        type(module).__name__,
        missing=(name for name in wanted if name not in tensors and not matches(name, COUNTERS)),
        surplus=(name for name in tensors if name not in wanted and not matches(name, ignored)),
        reshaped={name: (each.shape, wanted[name].shape) for name, each in used.items() if each.shape != wanted[name].shape},
    )
    weights.say_formats(used.values())
    precise = set(getattr(module, "_keep_in_fp32_modules", None) or ())
    dtypes = {name: torch.float32 if dtype and precise & set(name.split(".")) else dtype for name in used}
    read = {name: _cast(stored.read(), dtypes[name]) for name, stored in used.items()}
    module.load_state_dict(read, strict=False, assign=True)
    return module


def some_keys(keys: Sequence[str], said: str) -> str:
    """How many keys are as `said`, and which the first are."""
    return f"{len(keys)} {'key' if len(keys) == 1 else 'keys'} {said}: {named(keys, MOST_NAMED)}"


def matches(name: str, patterns: Iterable[str]) -> bool:
    return any(re.search(pattern, name) for pattern in patterns)


def _weights_file(folder: Path) -> Path:
    for name in (each for stem in WEIGHTS_OF_PART for each in (stem + INDEX, stem)):
        if (folder / name).is_file():
            return folder / name
    there = sorted(path.name for path in folder.iterdir() if path.is_file()) if folder.is_dir() else []
    raise UserError(
        f"{folder} has no weights: looked for {' and '.join(WEIGHTS_OF_PART)}; there are: {', '.join(there) or 'no files'}",
        code="bad_weights",
        hint=other_names(there) or None,
    )


def _with_scales(tensors: Mapping[str, Stored]) -> dict[str, Stored]:
    """The tensors that are weights, each with its scale. Raises UserError for formats that are not read."""
    made = {name: stored for name, stored in tensors.items() if name.rpartition(".")[2] != MARK}
    for name, scale in tensors.items():
        path, _, leaf = name.rpartition(".")
        if leaf in SCALES and (weight := made.get(f"{path}.weight")) is not None:
            rows = weight.shape[:1]
            fits = prod(scale.shape) == 1 or (prod(scale.shape), scale.shape[:1]) == (prod(rows), rows)
            if not fits or scale.dtype not in FLOATING or weight.scale is not None:
                raise UserError(
                    f"{scale.file}: {name} ({scale.dtype}, {_shape(scale.shape)}) is not a scale that can be read: one number for "
                    f"{path}.weight ({weight.dtype}, {_shape(weight.shape)}), or one for each of its rows",
                    code="bad_weights",
                    hint="give the file in bf16, and save memory with model.quantize",
                )
            made[f"{path}.weight"] = replace(weight, scale=scale)
            for beside in (leaf, *ONLY_FOR_8_BIT_KERNELS):
                made.pop(f"{path}.{beside}", None)
    _refuse_lacking_scales(made, scaled=any(name.rpartition(".")[2] == MARK for name in tensors))
    for name, stored in made.items():
        if name.endswith(".weight") and stored.dtype not in FLOATING:
            raise UserError(
                f"{stored.file}: {name} is stored as {stored.dtype}, a quantized format that is not read",
                code="bad_weights",
                hint="give the file in bf16, and save memory with model.quantize",
            )
    return made


def _refuse_lacking_scales(tensors: Mapping[str, Stored], scaled: bool) -> None:
    """Raises UserError for weights in 8 bits whose scales lie in a layout that is not read, or are missing although the file has
    others, or has the mark of `scaled` ones: without them the numbers are wrong by any factor."""
    hint = "download the file again, or give it in bf16 and save memory with model.quantize"
    for name, scale in tensors.items():
        path, _, leaf = name.rpartition(".")
        if leaf in SCALES_NOT_READ and tensors.keys() & {path, f"{path}.weight"}:
            raise UserError(
                f"{scale.file}: {name}: weights in 8 bits with scales in this layout ({leaf}) are not read",
                code="bad_weights",
                hint=hint,
            )
    in_8_bits = {name: each for name, each in tensors.items() if each.dtype in IN_8_BITS}
    lacking = sorted(name for name, each in in_8_bits.items() if each.scale is None)
    if lacking and (scaled or len(lacking) < len(in_8_bits)):
        raise UserError(
            f"{in_8_bits[lacking[0]].file}: weights in 8 bits without the scales that this file has, or says that it has: "
            f"{named(lacking, MOST_NAMED)}",
            code="bad_weights",
            hint=hint,
        )


@contextlib.contextmanager
def _default_dtype(dtype: torch.dtype | None) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype or before)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _without_weights() -> Any:
    """Inside, parameters have no memory; buffers, which no file may hold, are computed."""
    from accelerate import init_empty_weights

    return init_empty_weights()


def _cast(tensor: torch.Tensor, dtype: torch.dtype | None) -> torch.Tensor:
    return tensor.to(dtype) if dtype is not None and tensor.is_floating_point() else tensor


def _shape(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape)) or "one number"
