"""Optimizer and learning rate. The rate is a function of the step alone, so a resume has nothing to restore."""

import math
from collections.abc import Iterable

import torch

from models.spec import TrainSettings


def make_optimizer(params: Iterable[torch.nn.Parameter], train: TrainSettings) -> torch.optim.Optimizer:
    given = train.optimizer_params
    return torch.optim.AdamW(
        params, lr=train.lr, betas=(given.beta1, given.beta2), eps=given.eps, weight_decay=given.weight_decay, fused=True
    )


def lr_at(step: int, train: TrainSettings) -> float:
    """The learning rate of optimizer step `step` (counted from 0): a linear warm-up, then constant, or falling to zero at
    `train.steps` along a line or half a cosine. Extending a job moves the end of the fall."""
    warmup = train.lr_warmup_steps
    if step < warmup:
        return train.lr * step / warmup
    done = (step - warmup) / max(1, train.steps - warmup)
    if train.lr_scheduler == "linear":
        return train.lr * max(0.0, 1 - done)
    if train.lr_scheduler == "cosine":
        return train.lr * 0.5 * (1 + math.cos(math.pi * min(1.0, done)))
    return train.lr
