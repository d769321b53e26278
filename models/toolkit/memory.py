"""`toolkit.memory_management`: streaming blocks from the CPU."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from models.offload import is_offloaded, offload_blocks


class MemoryManager:
    """`attach` is called by architecture folders when `model.layer_offloading` is on."""

    @classmethod
    def attach(
        cls,
        module: nn.Module,
        device: torch.device | str,
        offload_percent: float = 1.0,
        ignore_modules: Iterable[Any] | None = None,
    ) -> None:
        """Stream that share (0..1) of the blocks of a frozen module. `ignore_modules`, modules or single weights, stay on the device."""
        if offload_percent > 0 and not is_offloaded(module):
            offload_blocks(module.requires_grad_(False), device, offload_percent, ignore_modules or ())
