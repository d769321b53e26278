"""`toolkit.memory_management`: streaming layers from the CPU, which is not built here."""

from typing import Any

from models.errors import UserError


class MemoryManager:
    """`attach` is called by architecture folders when `model.layer_offloading` is on."""

    @classmethod
    def attach(cls, module: Any, device: Any, offload_percent: float = 1.0, ignore_modules: Any = None) -> None:
        """Nothing for a share of 0. Raises UserError otherwise: nobody should believe that memory is saved."""
        if offload_percent > 0:
            raise UserError(
                f"layer_offloading ({offload_percent:g} of {type(module).__name__}) is not available here; leave it off, or save memory "
                "with quantize",
                code="no_offloading",
            )
