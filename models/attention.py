"""Attention kernels that are chosen at run time. Modules branch on their own flag `attention_backend`; nothing optional is imported
at import time, so a model loads where no kernel is installed.
"""

import contextlib
import logging
import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from models.errors import UserError

try:
    from flash_attn import flash_attn_func
except ImportError:  # the native kernel does not need it
    flash_attn_func = None

BACKENDS = ("native", "flash")
log = logging.getLogger(__name__)

DISPATCH = "diffusers.models.attention_dispatch"

_warned = False  # that the chosen kernel is not the one that computes, once for each choice

# diffusers warns at every choice, also of its default, that choosing is new
logging.getLogger("diffusers.models.modeling_utils").addFilter(
    lambda record: not str(record.msg).startswith("Attention backends")
)


@contextlib.contextmanager
def kept_to_this_job() -> Iterator[None]:
    """diffusers keeps the kernel that a model chose for the whole process; at the end it is again the one of a fresh process."""
    try:
        yield
    finally:
        if (dispatch := sys.modules.get(DISPATCH)) is not None:
            fresh = dispatch.AttentionBackendName(dispatch.DIFFUSERS_ATTN_BACKEND)
            dispatch._AttentionBackendRegistry.set_active_backend(fresh)


def set_attention_backend(root: nn.Module, name: str) -> None:
    """Set the flag on every module of `root` that has it; a diffusers model is asked by its own method.

    Raises UserError for an unknown name, a kernel that is not installed, and a model that offers no choice.
    """
    global _warned
    _warned = False
    if name not in BACKENDS:
        raise UserError(f"attention backend {name!r} is unknown; known: {', '.join(BACKENDS)}", code="unknown_backend")
    if name == "flash" and flash_attn_func is None:
        raise UserError(
            "attention backend 'flash' needs the package flash-attn, which is not installed; use native", code="no_kernel"
        )
    flagged = [module for module in root.modules() if isinstance(getattr(module, "attention_backend", None), str)]
    for module in flagged:
        module.attention_backend = name  # type: ignore[assignment]
    if not flagged and callable(choose := getattr(root, "set_attention_backend", None)):
        choose(name)
    elif not flagged and name != "native":
        raise UserError(f"{type(root).__name__} offers no choice of attention backend; use native", code="no_kernel")


def attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None, backend: str
) -> torch.Tensor:
    """Softmax attention over (B, heads, L, D), `mask` (B, 1, 1, L) true where a key counts. The flash kernel has no mask: a batch
    with padding is computed by the native one, which is warned of once."""
    if backend == "flash" and mask is None and flash_attn_func is not None:
        made: Any = flash_attn_func(*(part.transpose(1, 2) for part in (query, key, value)))
        return made.transpose(1, 2)  # type: ignore[no-any-return]
    if backend == "flash":
        _warn_of_native()
    return F.scaled_dot_product_attention(query, key, value, attn_mask=mask)


def _warn_of_native() -> None:
    global _warned
    if not _warned:
        log.warning(
            "attention backend 'flash' has no mask: batches whose captions are padded to one length are computed by 'native'"
        )
    _warned = True
