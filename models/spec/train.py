"""How a job trains, and what it keeps on disk."""

from typing import Annotated, Literal, get_args

from pydantic import Field

from models.spec.data import DatasetSpec
from models.spec.fields import Dtype, Spec, entry, part
from models.spec.optim import OPTIMIZERS, OptimizerParams, SchedulerParams
from models.words import OPTIMIZER

TimestepType = Literal[
    "sigmoid", "linear", "weighted", "shift", "lognorm_blend", "one_step", "two_step", "four_step", "eight_step"
]
FEW_STEPS = {"one_step": 1, "two_step": 2, "four_step": 4, "eight_step": 8}  # how many noise levels these train at
MOST_SKIPPED = 10  # steps in a row without a finite loss: more is no single bad sample


class EmaSpec(Spec):
    """Exponential moving average of the trained weights; previews and saves use it."""

    use_ema: bool = entry(
        False, title="EMA", section="Training", order=70, help="Keep a moving average of the weights, and save and preview that."
    )
    ema_decay: float = entry(
        0.99,
        title="EMA decay",
        section="Training",
        order=71,
        ge=0,
        lt=1,
        when={"use_ema": [True]},
        help="Share of the average kept at each step.",
    )


class TrainSettings(Spec):
    """The loop."""

    steps: int = entry(
        1000,
        title="Steps",
        section="Training",
        order=20,
        basic=True,
        ge=1,
        le=10_000_000,
        unit="steps",
        help="Optimizer steps in all.",
    )
    batch_size: int = entry(
        1,
        title="Batch size",
        section="Training",
        order=30,
        basic=True,
        ge=1,
        le=1024,
        unit="pictures",
        help="Pictures in one forward pass.",
    )
    gradient_accumulation: int = entry(
        1,
        title="Accumulation",
        section="Training",
        order=31,
        ge=1,
        le=1024,
        unit="batches",
        help="Batches averaged into one optimizer step.",
    )
    lr: float = entry(
        1e-4, title="Learning rate", section="Training", order=40, basic=True, gt=0, le=100, help="Peak learning rate."
    )
    optimizer: str = entry(
        "adamw",
        title="Optimizer",
        section="Training",
        order=41,
        pattern=OPTIMIZER,
        max_length=200,
        suggest=OPTIMIZERS,
        help="Which optimizer; package:Class names one that is installed beside the worker.",
    )
    optimizer_kwargs: dict[str, bool | int | float | str | list[float]] = entry(
        {}, title="Arguments", section="Advanced", order=57, help="Keyword arguments of a package:Class optimizer."
    )
    optimizer_params: OptimizerParams = Field(
        default_factory=OptimizerParams, title="Optimizer options", json_schema_extra={"ui": {}}
    )
    lr_scheduler: Literal["constant", "linear", "cosine", "cosine_with_restarts", "polynomial", "step"] = entry(
        "constant",
        title="Schedule",
        section="Training",
        order=42,
        help="How the rate falls after lr_warmup_steps, over all steps.",
    )
    lr_scheduler_params: SchedulerParams = part(SchedulerParams, "Schedule")
    lr_warmup_steps: int = entry(
        0,
        title="Warm-up",
        section="Training",
        order=43,
        ge=0,
        le=1_000_000,
        unit="steps",
        help="Steps over which the rate rises from zero.",
    )
    timestep_type: TimestepType = entry(
        "sigmoid",
        title="Timesteps",
        section="Training",
        order=50,
        help="How noise levels are drawn: sigmoid favours the middle, linear is even, weighted is even with a weighted loss, "
        "shift follows the model's own schedule.",
    )
    content_or_style: Literal["balanced", "content", "style"] = entry(
        "balanced",
        title="Emphasis",
        section="Training",
        order=51,
        when={"timestep_type": [kind for kind in get_args(TimestepType) if kind not in FEW_STEPS]},
        help="content favours high noise levels, style low ones; those that draw a few levels draw them evenly.",
    )
    min_denoising_steps: int = entry(
        0,
        title="First noise level",
        section="Advanced",
        order=54,
        ge=0,
        le=999,
        help="Of 1000 noise levels, 0 being pure noise; with as_in_ai_toolkit, places in its grid.",
    )
    max_denoising_steps: int = entry(
        1000,
        title="Last noise level",
        section="Advanced",
        order=55,
        ge=1,
        le=1000,
        help="Train levels below this one of 1000 only; with as_in_ai_toolkit, places in its grid. 999 reproduces ai-toolkit.",
    )
    loss_type: Literal["mse", "mae", "huber"] = entry(
        "mse", title="Loss", section="Training", order=52, help="mse: squared error; mae: absolute; huber: between the two."
    )
    huber_c: float = entry(
        0.01,
        title="Huber bend",
        section="Advanced",
        order=53,
        gt=0,
        le=100,
        when={"loss_type": ["huber"]},
        help="Errors well below it count squared, above it absolute.",
    )
    min_snr_gamma: float | None = entry(
        None,
        title="Min-SNR gamma",
        section="Advanced",
        order=58,
        gt=0,
        le=1000,
        needs="epsilon",
        help="Evens out noise levels of models that predict noise; 5 is usual.",
    )
    noise_offset: float = entry(
        0.0,
        title="Noise offset",
        section="Advanced",
        order=58,
        ge=0,
        le=1,
        help="Noise shared by a whole channel, for darker darks.",
    )
    reg_weight: float = entry(
        1.0, title="Regularisation weight", section="Advanced", order=58, ge=0, le=100, help="Weight of regularisation steps."
    )
    diff_output_preservation: bool = entry(
        False,
        title="Keep the class as it was",
        section="Advanced",
        order=63,
        help="Also train that a caption with the class in place of the trigger word looks as without the adapter. Two more passes a step.",
    )
    diff_output_preservation_multiplier: float = entry(
        1.0,
        title="Its weight",
        section="Advanced",
        order=64,
        gt=0,
        le=1000,
        when={"diff_output_preservation": [True]},
        help="Weight of that loss.",
    )
    diff_output_preservation_class: str = entry(
        "",
        title="Its class",
        section="Advanced",
        order=65,
        max_length=200,
        when={"diff_output_preservation": [True]},
        help="The general word for what the trigger word names.",
    )
    blank_prompt_preservation: bool = entry(
        False,
        title="Keep the empty prompt as it was",
        section="Advanced",
        order=66,
        help="Also train that an empty caption looks as without the adapter. Two more passes a step.",
    )
    blank_prompt_preservation_multiplier: float = entry(
        1.0,
        title="Its weight",
        section="Advanced",
        order=67,
        gt=0,
        le=1000,
        when={"blank_prompt_preservation": [True]},
        help="Weight of that loss.",
    )
    audio_loss_multiplier: float = entry(
        1.0,
        title="Sound's weight",
        section="Advanced",
        order=68,
        ge=0,
        le=1000,
        needs="audio",
        help="Weight of the sound's loss.",
    )
    cache_text_embeddings: bool = entry(
        True,
        title="Captions encoded first",
        section="Advanced",
        order=69,
        help="Encode every caption before training and let the text encoder go; off: it stays loaded and encodes at every step.",
    )
    as_in_ai_toolkit: bool = entry(
        False,
        title="As in ai-toolkit",
        section="Advanced",
        order=70,
        help="Its numbers, to compare: accumulated batches add up, alpha counts as the rank, timesteps come from its grids.",
    )
    switch_boundary_every: int = entry(
        1,
        title="Switch experts every",
        section="Advanced",
        order=59,
        ge=1,
        le=1_000_000,
        unit="steps",
        needs="multistage",
        help="How many steps an expert trains before the next one does.",
    )
    gradient_checkpointing: bool = entry(
        True,
        title="Gradient checkpointing",
        section="Advanced",
        order=60,
        help="Recompute activations in the backward pass: less memory, more time.",
    )
    max_grad_norm: float = entry(
        1.0, title="Gradient clip", section="Advanced", order=61, gt=0, le=1e6, help="Gradients are scaled down to this norm."
    )
    on_non_finite: Literal["stop", "skip"] = entry(
        "stop",
        title="Loss that is not finite",
        section="Advanced",
        order=61,
        help="What a step does whose loss or gradient is NaN or infinite: stop ends the job before anything bad is saved; skip passes over "
        f"that step, changes nothing and goes on, and ends the job after {MOST_SKIPPED} in a row. skip waits for the device at every step.",
    )
    seed: int = entry(
        42,
        title="Seed",
        section="Advanced",
        order=62,
        ge=0,
        le=2**32 - 1,
        help="Fixes noise, timesteps, order and initial weights.",
    )
    ema_config: EmaSpec = Field(default_factory=EmaSpec, title="EMA", json_schema_extra={"ui": {}})
    skip_first_sample: bool = entry(
        False, title="Skip first preview", section="Previews", order=60, help="Do not make previews before step 1."
    )
    disable_sampling: bool = entry(False, title="No previews", section="Previews", order=61, help="Make no previews at all.")


class SaveSpec(Spec):
    """What is kept on disk, and when."""

    save_every: int = entry(
        250,
        title="Save every",
        section="Training",
        order=80,
        ge=1,
        le=10_000_000,
        unit="steps",
        help="Steps between kept checkpoints.",
    )
    max_step_saves_to_keep: int = entry(
        4,
        title="Saves to keep",
        section="Training",
        order=81,
        ge=1,
        le=10_000,
        help="Older checkpoints are deleted; the final one never is.",
    )
    dtype: Dtype = entry("bf16", title="Save precision", section="Advanced", order=70, help="Precision of saved weights.")
    recover_every_seconds: float = entry(
        60.0,
        title="Recovery bundle every",
        section="Advanced",
        order=71,
        ge=1,
        le=3600,
        unit="s",
        help="What a crash can cost. Stretched so that saving takes at most 2 % of the time.",
    )


class ValidationSpec(Spec):
    """The loss on pictures that are not trained on, by noise level. Weights are the same with it and without."""

    fraction: float | None = entry(
        None,
        title="Held-out share",
        section="Training",
        order=90,
        gt=0,
        lt=1,
        help="Share of the pictures kept back for this, at least one. Or name a dataset.",
    )
    dataset: DatasetSpec | None = Field(default=None, title="Held-out dataset", json_schema_extra={"ui": {}})
    every: int = entry(
        100, title="Validate every", section="Training", order=91, ge=1, le=10_000_000, unit="steps", help="Steps between them."
    )
    timesteps: list[Annotated[float, Field(gt=0, le=1000)]] = entry(
        [125.0, 375.0, 625.0, 875.0],
        title="Noise levels",
        section="Training",
        order=92,
        min_length=1,
        max_length=32,
        help="Every held-out picture is tried at each of these; 1000 is pure noise.",
    )
    seed: int = entry(0, title="Validation seed", section="Training", order=93, ge=0, le=2**32 - 1, help="Fixes its noise.")
