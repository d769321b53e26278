"""optimum-quanto without kernels of its own. Imported here alone, so that no code of ours quantizes with those.

Its C++ and CUDA kernels are compiled at first use, which needs a compiler, ninja, often nvcc, and a writable installation. They are
chosen by the class of a quantized weight: as soon as CUDA is there, `WeightQBytesTensor.create` gives a Marlin weight, whose forward
leaves out the bias, and `WeightQBitsTensor.create` a TinyGemm one, whose layout differs by device and does not survive a copy. Here
both always give the plain weight: the same class and the same numbers whether computed, read from the cache, moved or streamed.
"""

import warnings
from functools import partial
from typing import Any

import torch
from optimum import quanto
from optimum.quanto.library.extensions import extension
from optimum.quanto.library.qbytes_mm import qbytes_mm_impl_cpu
from optimum.quanto.nn import QModuleMixin, quantize_module
from optimum.quanto.tensor.packed import PackedTensor
from optimum.quanto.tensor.weights.qbits import WeightQBitsTensor
from optimum.quanto.tensor.weights.qbytes import WeightQBytesTensor

__all__ = [
    "PackedTensor",
    "QModuleMixin",
    "WeightQBitsTensor",
    "WeightQBytesTensor",
    "qbytes_mm_impl_cpu",
    "quantize_module",
    "quanto",
    "unpack",
]

DEVICES = ("CPU", "CUDA", "MPS")  # dispatch keys for which quanto has a compiled `unpack`


def unpack(packed: torch.Tensor, bits: int) -> torch.Tensor:
    """uint8 values that hold 8 / bits numbers each, to one number each, along the first axis."""
    mask = 2**bits - 1
    return torch.cat([(packed >> (bits * place)) & mask for place in range(8 // bits)]).to(torch.uint8)


def _plain(cls: type, *args: Any, **kwargs: Any) -> Any:
    return cls(*args, **kwargs)


_kernels = torch.library.Library("quanto", "IMPL")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # it says that a kernel is replaced, which is what is wanted
    for _key in DEVICES:
        _kernels.impl("unpack", unpack, _key, allow_override=True)
WeightQBitsTensor.create = staticmethod(partial(_plain, WeightQBitsTensor))
WeightQBytesTensor.create = staticmethod(partial(_plain, WeightQBytesTensor))
extension._extensions.pop("quanto_cuda", None)  # nothing of quanto's own may find it either
