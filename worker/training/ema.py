"""Exponential moving average of the trained weights (Polyak & Juditsky 1992)."""

import contextlib
from collections.abc import Iterator, Mapping

import torch


class Ema:
    """`shadow` holds the averages by parameter name."""

    def __init__(self, params: Mapping[str, torch.nn.Parameter], decay: float) -> None:
        self.params, self.decay = dict(params), decay
        self.shadow = {name: param.detach().clone() for name, param in params.items()}

    @torch.no_grad()
    def update(self) -> None:
        """shadow <- decay * shadow + (1 - decay) * weight, after an optimizer step."""
        torch._foreach_lerp_(list(self.shadow.values()), [p.detach() for p in self.params.values()], 1 - self.decay)

    @contextlib.contextmanager
    def applied(self) -> Iterator[None]:
        """Inside, the model has the averaged weights; afterwards its own again, bit for bit."""
        own = {name: param.detach().clone() for name, param in self.params.items()}
        try:
            self._write(self.shadow)
            yield
        finally:
            self._write(own)

    @torch.no_grad()
    def _write(self, values: Mapping[str, torch.Tensor]) -> None:
        for name, param in self.params.items():
            param.copy_(values[name])
