"""An optimizer in whose second step the device fails for good, as a worker imports it by name."""

from typing import Any

import torch


class Breaks(torch.optim.SGD):
    count = 0

    def step(self, closure: Any = None) -> None:
        self.count += 1
        if self.count == 2:
            raise torch.AcceleratorError("CUDA error: an illegal memory access was encountered")
        super().step()
