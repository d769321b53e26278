"""What was worked out from a tensor, kept for as long as that very tensor lives and is not changed."""

from collections.abc import Callable, Hashable

import torch
from torch.utils.weak import WeakTensorKeyDictionary


class TensorMemo:
    """A control image is encoded at every step of a run, although its latents are always the same: an architecture keeps them here.
    A tensor made anew, with equal values or not, is worked out anew, and so is one that was written to in place."""

    def __init__(self) -> None:
        self._known = WeakTensorKeyDictionary()

    def get(self, source: torch.Tensor, about: Hashable, make: Callable[[], torch.Tensor]) -> torch.Tensor:
        """The result of `make()`, which may depend on `source` and `about` only, from memory if it is there."""
        version, results = self._known.get(source, (None, {}))
        if version != source._version:
            version, results = source._version, {}
            self._known[source] = version, results
        if about not in results:
            results[about] = make()
        made: torch.Tensor = results[about]
        return made
