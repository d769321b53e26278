"""Optimizers by name, and the learning rate of a step."""

import importlib
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from models.errors import UserError
from models.spec import TrainSettings, optimizer_options
from server.store.settings import settings

FUSED_ON = {"adam": ("cpu", "cuda"), "adamw": ("cpu", "cuda"), "sgd": ("cpu", "cuda"), "adagrad": ("cpu",)}  # torch 2.6 and later
TORCH: Mapping[str, Callable[..., torch.optim.Optimizer]] = {
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "adagrad": torch.optim.Adagrad,
    "nadam": torch.optim.NAdam,
    "radam": torch.optim.RAdam,
    "rmsprop": torch.optim.RMSprop,
    "sgd": torch.optim.SGD,
}
EPS = 1e-6  # of AdamW, and as in ai-toolkit of these others; else they keep their own
EPS_TOO = ("adam", "prodigy")
LATER = {"adafactor": ("transformers.optimization", "Adafactor"), "prodigy": ("prodigyopt", "Prodigy")}


def make_optimizer(params: Iterable[torch.nn.Parameter], train: TrainSettings) -> torch.optim.Optimizer:
    """The optimizer that the job names, with its options; what is not given is the optimizer's own default, but for the epsilon of
    adamw and adamw8bit (1e-6), with `as_in_ai_toolkit` also of adam and prodigy. Adafactor steps by the job's rate unless
    `relative_step` makes it choose its own.

    Raises UserError when a package is missing, is not trusted, or does not take the arguments.
    """
    params = list(params)
    if ":" in train.optimizer:
        return foreign(params, train)
    options: dict[str, Any] = {"lr": train.lr, **options_of(train)}
    if train.optimizer in TORCH:
        if params and params[0].device.type in FUSED_ON.get(train.optimizer, ()):
            options["fused"] = True
        return TORCH[train.optimizer](params, **options)
    if train.optimizer == "adamw8bit":
        return _eight_bit(params, options)
    if train.optimizer == "adafactor":
        own = {"scale_parameter": False, "relative_step": False, "warmup_init": False}
        options = {**own, **options}
        if options["relative_step"]:
            options["lr"] = None
    module, name = LATER[train.optimizer]
    made: torch.optim.Optimizer = getattr(importlib.import_module(module), name)(params, **options)
    return made


def options_of(train: TrainSettings) -> dict[str, Any]:
    """`optimizer_params` as the optimizers name them. What this one does not take can only be an arch's default for another."""
    takes = optimizer_options(train.optimizer)
    given = {key: value for key, value in train.optimizer_params if value is not None and key in takes}
    if train.optimizer.startswith("adamw") or (train.as_in_ai_toolkit and train.optimizer in EPS_TOO):
        given.setdefault("eps", EPS)
    if train.optimizer != "adafactor" and ("beta1" in given or "beta2" in given):
        given["betas"] = (given.pop("beta1", 0.9), given.pop("beta2", 0.999))
    return given


def foreign(params: list[torch.nn.Parameter], train: TrainSettings) -> torch.optim.Optimizer:
    """An optimizer from a package that is installed beside the worker, named `package.module:Class`."""
    name = train.optimizer
    module, _, attribute = name.partition(":")
    if not settings().trusts(name):
        raise UserError(f"optimizer '{name}': SAFELIGHT_TRUSTED_PACKAGES does not name its package", code="not_trusted")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except ImportError as error:
        raise UserError(f"optimizer '{name}' cannot be imported: {error}", code="no_optimizer") from None
    except AttributeError:
        raise UserError(f"optimizer '{name}': {module} has no {attribute}", code="no_optimizer") from None
    if not (inspect.isclass(found) and issubclass(found, torch.optim.Optimizer)):
        raise UserError(f"'{name}' is not a subclass of torch.optim.Optimizer", code="no_optimizer")
    if why := _cannot_drive(found):
        raise UserError(f"optimizer '{name}' {why}", code="no_optimizer", hint="Take another optimizer.")
    make: Callable[..., torch.optim.Optimizer] = found
    arguments: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in train.optimizer_kwargs.items()
    }
    try:
        return make(params, lr=train.lr, **arguments)
    except (TypeError, ValueError) as error:
        raise UserError(f"optimizer '{name}' does not take its arguments: {error}", code="bad_optimizer_arguments") from None


def _cannot_drive(found: type[torch.optim.Optimizer]) -> str | None:
    """What the class needs that the training loop does not do."""
    closure = inspect.signature(found.step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        return "needs a closure that computes the loss again, and its step is called without one"
    if callable(getattr(found, "train", None)) and callable(getattr(found, "eval", None)):
        return (
            "keeps other weights for training than for use (it has train() and eval()), and saves and previews do not switch it"
        )
    return None


def _eight_bit(params: list[torch.nn.Parameter], options: dict[str, Any]) -> torch.optim.Optimizer:
    try:
        made: torch.optim.Optimizer = importlib.import_module("bitsandbytes.optim").AdamW8bit(params, **options)
    except (ImportError, RuntimeError, OSError) as error:
        why = str(error).strip().splitlines()[-1]
        raise UserError(
            f"optimizer 'adamw8bit' needs bitsandbytes, which does not run here: {why}",
            code="no_optimizer",
            hint="pip install bitsandbytes beside the worker, or take adamw; adafactor needs about as little memory.",
        ) from None
    return made


def set_rate(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """Before a step. An optimizer that chooses its own rate (Adafactor's relative step) keeps it."""
    for group in optimizer.param_groups:
        if not group.get("relative_step"):
            group["lr"] = lr


def rate_of(optimizer: torch.optim.Optimizer, lr: float) -> float:
    """What a step's rate was in truth: Prodigy steps by d times what it is given, and Adafactor with relative_step by its own number."""
    group = optimizer.param_groups[0]
    if group.get("relative_step"):
        state = optimizer.state.get(group["params"][0])
        return float(optimizer._get_lr(group, state)) if state else 0.0  # type: ignore[attr-defined]
    return lr * float(group["d"]) if isinstance(group.get("d"), float) else lr
