"""Options of the optimizers and of the learning rate's curve. Each says in `when` what it belongs to."""

from collections.abc import Mapping, Sequence
from typing import Any

from models.spec.fields import Spec, entry

OPTIMIZERS = ("adamw", "adamw8bit", "adafactor", "prodigy", "adam", "adagrad", "nadam", "radam", "rmsprop", "sgd")
Condition = Mapping[str, Sequence[str]]
ADAMS = ("adamw", "adamw8bit", "adam", "nadam", "radam")
FALLING = ("linear", "cosine", "cosine_with_restarts", "polynomial")


def _of(*optimizers: str) -> Condition:
    return {"../optimizer": optimizers}


def _on(*schedules: str) -> Condition:
    return {"../lr_scheduler": schedules}


class OptimizerParams(Spec):
    """Options of the optimizer; none: its own default. One that the chosen optimizer does not have is refused."""

    beta1: float | None = entry(
        None,
        title="Beta 1",
        section="Advanced",
        order=50,
        ge=0,
        lt=1,
        when=_of(*ADAMS, "adafactor", "prodigy"),
        help="Decay of the gradient's average.",
    )
    beta2: float | None = entry(
        None,
        title="Beta 2",
        section="Advanced",
        order=51,
        ge=0,
        lt=1,
        when=_of(*ADAMS, "prodigy"),
        help="Decay of the squared gradient's average.",
    )
    beta3: float | None = entry(
        None,
        title="Beta 3",
        section="Advanced",
        order=51,
        ge=0,
        lt=1,
        when=_of("prodigy"),
        help="Prodigy's: decay of its step size.",
    )
    eps: float | None = entry(
        None,
        title="Epsilon",
        section="Advanced",
        order=52,
        gt=0,
        le=1,
        when=_of(*ADAMS, "prodigy", "adagrad", "rmsprop"),
        help="Added to the denominator. None: 1e-6 for adamw and adamw8bit, as in ai-toolkit; else the optimizer's own.",
    )
    weight_decay: float | None = entry(
        None,
        title="Weight decay",
        section="Advanced",
        order=53,
        ge=0,
        le=1,
        when=_of(*OPTIMIZERS),
        help="Pull of the weights towards zero.",
    )
    momentum: float | None = entry(
        None,
        title="Momentum",
        section="Advanced",
        order=54,
        ge=0,
        lt=1,
        when=_of("rmsprop", "sgd"),
        help="Of SGD and RMSprop.",
    )
    nesterov: bool | None = entry(None, title="Nesterov", section="Advanced", order=54, when=_of("sgd"), help="SGD's look ahead.")
    alpha: float | None = entry(
        None, title="Smoothing", section="Advanced", order=54, ge=0, lt=1, when=_of("rmsprop"), help="RMSprop's decay."
    )
    scale_parameter: bool | None = entry(
        None,
        title="Scale by parameter",
        section="Advanced",
        order=55,
        when=_of("adafactor"),
        help="Adafactor: steps in proportion to a weight's size.",
    )
    relative_step: bool | None = entry(
        None,
        title="Relative step",
        section="Advanced",
        order=55,
        when=_of("adafactor"),
        help="Adafactor chooses its own rate; the learning rate is not used.",
    )
    warmup_init: bool | None = entry(
        None, title="Slow start", section="Advanced", order=55, when=_of("adafactor"), help="Adafactor, with relative step."
    )
    clip_threshold: float | None = entry(
        None,
        title="Update clip",
        section="Advanced",
        order=55,
        gt=0,
        le=1e6,
        when=_of("adafactor"),
        help="Adafactor: largest size of an update.",
    )
    decay_rate: float | None = entry(
        None,
        title="Decay exponent",
        section="Advanced",
        order=55,
        ge=-1,
        le=0,
        when=_of("adafactor"),
        help="Adafactor: how fast averages forget.",
    )
    d_coef: float | None = entry(
        None,
        title="D coefficient",
        section="Advanced",
        order=56,
        gt=0,
        le=100,
        when=_of("prodigy"),
        help="Prodigy: scales its rate.",
    )
    d0: float | None = entry(
        None, title="First D", section="Advanced", order=56, gt=0, le=1, when=_of("prodigy"), help="Prodigy: its first guess."
    )
    growth_rate: float | None = entry(
        None,
        title="Growth",
        section="Advanced",
        order=56,
        gt=1,
        when=_of("prodigy"),
        help="Prodigy: largest growth of its rate in a step; none: no limit.",
    )
    use_bias_correction: bool | None = entry(
        None, title="Bias correction", section="Advanced", order=56, when=_of("prodigy"), help="Prodigy."
    )
    safeguard_warmup: bool | None = entry(
        None,
        title="Safe warm-up",
        section="Advanced",
        order=56,
        when=_of("prodigy"),
        help="Prodigy: do not overestimate while the rate warms up.",
    )


class SchedulerParams(Spec):
    """The shape of the learning rate's curve."""

    num_cycles: int = entry(
        1,
        title="Restarts",
        section="Training",
        order=44,
        ge=1,
        le=1000,
        when=_on("cosine_with_restarts"),
        help="cosine_with_restarts: how many falls in all.",
    )
    min_lr_ratio: float = entry(
        0.0,
        title="Lowest rate",
        section="Training",
        order=45,
        ge=0,
        le=1,
        when=_on(*FALLING),
        help="Where falling schedules end, as a share of the rate.",
    )
    power: float = entry(
        1.0,
        title="Power",
        section="Training",
        order=46,
        gt=0,
        le=10,
        when=_on("polynomial"),
        help="polynomial: 1 is a line, 2 a parabola.",
    )
    step_size: int = entry(
        1000,
        title="Drop every",
        section="Training",
        order=47,
        ge=1,
        le=10_000_000,
        unit="steps",
        when=_on("step"),
        help="step: steps between drops.",
    )
    gamma: float = entry(
        0.5,
        title="Drop to",
        section="Training",
        order=48,
        gt=0,
        le=1,
        when=_on("step"),
        help="step: the rate after a drop, as a share.",
    )


def optimizer_options(optimizer: str) -> list[str]:
    """The keys of `OptimizerParams` that this optimizer takes; none for a package:Class."""
    hints: dict[str, Any] = {key: info.json_schema_extra for key, info in OptimizerParams.model_fields.items()}
    return [key for key, hint in hints.items() if optimizer in hint["ui"]["when"]["../optimizer"]]
