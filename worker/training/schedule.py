"""The learning rate: a function of the step and the job alone, so a resume has nothing to restore."""

import math

from models.spec import TrainSettings


def lr_at(step: int, train: TrainSettings) -> float:
    """The learning rate of optimizer step `step`, counted from 0.

    It rises from zero along a line over `lr_warmup_steps`. Then x runs from 0 to 1 at `train.steps`, and the rate stays (`constant`) or
    falls to min_lr_ratio of itself, along 1 - x (`linear`), half a cosine (`cosine`), `num_cycles` of them, each from the top
    (`cosine_with_restarts`), or (1 - x)^power (`polynomial`). `step` multiplies by gamma every step_size steps after the warm-up.
    Extending a job moves the end of the fall, and never warms up a second time.
    """
    warmup, shape = train.lr_warmup_steps, train.lr_scheduler_params
    if step < warmup:
        return train.lr * step / warmup
    if train.lr_scheduler == "constant":
        return train.lr
    if train.lr_scheduler == "step":
        return train.lr * float(shape.gamma ** ((step - warmup) // shape.step_size))
    # Counted in whole steps: as floats, 58/100 of 50 cycles is 28.999999999999996 of them, and a restart becomes an end.
    over = max(1, train.steps - warmup)
    done = min(over, step - warmup)
    if train.lr_scheduler == "linear":
        left = (over - done) / over
    elif train.lr_scheduler == "polynomial":
        left = float(((over - done) / over) ** shape.power)
    else:
        cycles = shape.num_cycles if train.lr_scheduler == "cosine_with_restarts" else 1
        left = math.cos(math.pi / 2 * (done * cycles % over) / over) ** 2 if done < over else 0.0
    return train.lr * (shape.min_lr_ratio + (1 - shape.min_lr_ratio) * left)
