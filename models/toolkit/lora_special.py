"""`toolkit.lora_special`: the frozen adapters that folders put on a model while they load it, on our LoRA."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from models.adapters.attach import AdapterNetwork, merge_into_base
from models.adapters.files import check_numbers
from models.adapters.load import network_from_state
from models.errors import UserError
from models.weightfiles import check_adapter_file
from models.weights import load_tensors


class LoRASpecialNetwork:
    """A LoRA on `unet`. Its layers are those that `load_weights` names; before that there are none.

    `multiplier` acts only while `is_active`; inside `with network:` it is active too. Raises UserError for another adapter type.
    """

    LORA_PREFIX_UNET = "lora_unet"

    def __init__(
        self,
        text_encoder: Any = None,
        unet: nn.Module | None = None,
        multiplier: float = 1.0,
        network_type: str = "lora",
        **_: Any,
    ) -> None:
        if network_type != "lora":
            raise UserError(f"an adapter of type {network_type!r} cannot be put on while loading; only lora", code="bad_adapter")
        self.unet = unet
        self.network: AdapterNetwork | None = None
        self._multiplier, self._active = multiplier, False
        self.is_merged_in = False
        self.can_merge_in = True

    @property
    def multiplier(self) -> float:
        return self._multiplier

    @multiplier.setter
    def multiplier(self, value: float) -> None:
        self._multiplier = value
        self._update_torch_multiplier()

    @property
    def is_active(self) -> bool:
        return self._active

    @is_active.setter
    def is_active(self, value: bool) -> None:
        self._active = value
        self._update_torch_multiplier()

    def apply_to(self, text_encoder: Any, unet: nn.Module, apply_text_encoder: bool = False, apply_unet: bool = True) -> None:
        self.unet = unet

    def load_weights(self, weights: Mapping[str, torch.Tensor] | str | Path) -> None:
        """From a state dict in our keys, or a file. Raises UserError for a key that fits no layer."""
        if self.unet is None:
            raise UserError("the adapter has no model to go on: call apply_to first", code="bad_adapter")
        if isinstance(weights, str | Path):
            check_adapter_file(Path(weights))
            weights = load_tensors(Path(weights))
        check_numbers(weights)
        if self.network is not None:
            self.network.detach()
        self.network = network_from_state(self.unet, weights)
        self.network.requires_grad_(False)
        self._update_torch_multiplier()

    def merge_in(self, merge_weight: float = 1.0) -> None:
        if self.network is not None:
            merge_into_base(self.network, merge_weight)
        self.is_merged_in = True

    def merge_out(self, merge_weight: float = 1.0) -> None:
        if self.network is not None:
            merge_into_base(self.network, -merge_weight)
        self.is_merged_in = False

    def _update_torch_multiplier(self) -> None:
        if self.network is not None:
            self.network.multiplier = self._multiplier if self._active and not self.is_merged_in else 0.0

    def force_to(self, device: Any, dtype: Any = None) -> None:
        """Our adapters lie beside their layers, in fp32; only the device matters."""
        if self.network is not None:
            self.network.to(device)

    def parameters(self) -> list[nn.Parameter]:
        return [] if self.network is None else list(self.network.parameters())

    def requires_grad_(self, wanted: bool = True) -> "LoRASpecialNetwork":
        if self.network is not None:
            self.network.requires_grad_(wanted)
        return self

    def eval(self) -> "LoRASpecialNetwork":
        return self

    def train(self, _mode: bool = True) -> "LoRASpecialNetwork":
        return self

    def __enter__(self) -> "LoRASpecialNetwork":
        self.is_active = True
        return self

    def __exit__(self, *_: object) -> None:
        self.is_active = False
