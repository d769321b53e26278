"""What a job can ask for. Every key a user may write stands here once, with its unit, range, default and help.

The same declarations validate a POST, draw the browser's form (through the `ui` hints in the JSON Schema) and are read by the
worker. Key names follow ai-toolkit's config sections where the meaning is the same. Types are strict: the text "16" is not the
number 16, so a quoting slip in a YAML file is an error at submission and never a surprise at step 900.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import pydantic
from pydantic import ConfigDict, Field

SPEC_VERSION = 1


class Spec(pydantic.BaseModel):
    """Base of all declarations: unknown keys are errors, values are frozen, NaN and infinity are refused."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, allow_inf_nan=False, protected_namespaces=(), validate_default=True
    )


Section = Literal["What", "Dataset", "Training", "Previews", "Advanced"]


def entry(
    default: Any = ...,
    *,
    title: str,
    help: str,
    section: Section,
    order: int,
    unit: str | None = None,
    basic: bool = False,
    widget: str | None = None,
    needs: str | None = None,
    **limits: Any,
) -> Any:
    """A field with what a form needs to draw it. `basic` inputs are open on a preset (at most 10 of them); the others are
    folded by section. A field that `needs` a capability is hidden, and refused, for an arch whose card does not name it.
    `limits` are pydantic's (ge, gt, le, lt, min_length, max_length, pattern)."""
    ui: dict[str, Any] = {"section": section, "order": order, "basic": basic}
    ui |= {"unit": unit} if unit else {}
    ui |= {"widget": widget} if widget else {}
    ui |= {"needs": needs} if needs else {}
    return Field(default, title=title, description=help, json_schema_extra={"ui": ui}, **limits)


def _fixed(default: Any = ...) -> Any:
    """A field that a form never draws."""
    return Field(default, json_schema_extra={"ui": {"section": "What", "order": 0, "basic": False, "hidden": True}})


class NoOptions(Spec):
    """`model_kwargs` of an arch that has none."""


class ModelSpec(Spec):
    """Which weights, in which precision."""

    arch: str = _fixed()
    name_or_path: str = entry(
        title="Model",
        section="What",
        order=10,
        basic=True,
        widget="path",
        min_length=1,
        max_length=1000,
        help="A folder or .safetensors file under the models folder, job:ID/file, org/name on a hub, or random.",
    )
    te_name_or_path: str | None = entry(
        None,
        title="Text encoder",
        section="Advanced",
        order=20,
        widget="path",
        min_length=1,
        max_length=1000,
        help="Where the text encoder comes from, if not from the model.",
    )
    vae_path: str | None = entry(
        None,
        title="VAE",
        section="Advanced",
        order=21,
        widget="path",
        needs="vae",
        min_length=1,
        max_length=1000,
        help="Where the VAE comes from, if not from the model.",
    )
    assistant_lora_path: str | None = entry(
        None,
        title="Training adapter",
        section="Advanced",
        order=22,
        widget="path",
        needs="training_adapter",
        min_length=1,
        max_length=1000,
        help="A LoRA that undoes a distilled model's distillation while it trains; previews are made without it.",
    )
    attention_backend: Literal["native", "flash"] = entry(
        "native", title="Attention", section="Advanced", order=31, help="Attention kernel; flash needs the package flash-attn."
    )
    dtype: Literal["fp32", "bf16", "fp16"] = entry(
        "bf16", title="Precision", section="Advanced", order=30, help="Precision of the frozen weights and activations."
    )
    model_kwargs: NoOptions = Field(default_factory=NoOptions, title="Architecture options", json_schema_extra={"ui": {}})


class NetworkSpec(Spec):
    """The adapter that is trained. Leave the whole section null for a full fine-tune."""

    type: Literal["lora"] = entry("lora", title="Adapter", section="Training", order=5, help="Kind of adapter.")
    linear: int = entry(
        16, title="Rank", section="Training", order=10, basic=True, ge=1, le=1024, help="Rank of the adapter's matrices."
    )
    linear_alpha: float = entry(
        16.0, title="Alpha", section="Training", order=11, gt=0, le=4096, help="The adapter's effect is scaled by alpha / rank."
    )
    only_if_contains: list[str] = entry(
        [],
        title="Only layers containing",
        section="Advanced",
        order=40,
        help="Train only layers whose name contains one of these; empty means all.",
    )
    ignore_if_contains: list[str] = entry(
        [],
        title="Skip layers containing",
        section="Advanced",
        order=41,
        help="Do not train layers whose name contains one of these.",
    )


class DatasetSpec(Spec):
    """A folder of pictures with captions beside them."""

    folder_path: str = entry(
        title="Folder",
        section="Dataset",
        order=10,
        basic=True,
        widget="path",
        min_length=1,
        max_length=1000,
        help="Folder of pictures; relative paths lie under the datasets folder of the server.",
    )
    caption_ext: str = entry(
        "txt",
        title="Caption files",
        section="Dataset",
        order=20,
        pattern=r"^\.?[A-Za-z0-9_-]{1,16}$",
        help="Extension of the caption file beside each picture.",
    )
    default_caption: str | None = entry(
        None,
        title="Default caption",
        section="Dataset",
        order=21,
        max_length=10000,
        help="Used where a caption is missing or blank. Without one, a missing caption refuses the job; an empty text allows it.",
    )
    on_bad_file: Literal["stop", "skip"] = entry(
        "stop",
        title="Unreadable pictures",
        section="Dataset",
        order=30,
        help="stop: refuse the job and name them; skip: train without them and say so.",
    )
    resolution: list[Annotated[int, Field(ge=16, le=8192)]] = entry(
        [512],
        title="Resolution",
        section="Dataset",
        order=40,
        unit="px",
        min_length=1,
        max_length=8,
        help="Each value is a square's side whose area the buckets keep; several values train at several sizes.",
    )
    num_repeats: int = entry(
        1, title="Repeats", section="Dataset", order=50, ge=1, le=100000, help="How often an epoch shows each picture."
    )
    caption_dropout_rate: float = entry(
        0.0,
        title="Caption dropout",
        section="Dataset",
        order=60,
        ge=0,
        le=1,
        help="Share of steps that see an empty caption, which teaches guidance.",
    )
    cache_latents: bool = entry(
        True,
        title="Cache latents",
        section="Dataset",
        order=70,
        help="Encode each picture once, before training, and keep the result in memory.",
    )


class EmaSpec(Spec):
    """Exponential moving average of the trained weights; previews and saves use it."""

    use_ema: bool = entry(
        False, title="EMA", section="Training", order=70, help="Keep a moving average of the weights, and save and preview that."
    )
    ema_decay: float = entry(
        0.99, title="EMA decay", section="Training", order=71, ge=0, lt=1, help="Share of the average kept at each step."
    )


class OptimizerParams(Spec):
    """Options of AdamW (Loshchilov & Hutter 2019)."""

    beta1: float = entry(0.9, title="Beta 1", section="Advanced", order=50, ge=0, lt=1, help="Decay of the gradient's average.")
    beta2: float = entry(
        0.999, title="Beta 2", section="Advanced", order=51, ge=0, lt=1, help="Decay of the squared gradient's average."
    )
    eps: float = entry(1e-6, title="Epsilon", section="Advanced", order=52, gt=0, le=1, help="Added to the denominator.")
    weight_decay: float = entry(
        0.01, title="Weight decay", section="Advanced", order=53, ge=0, le=1, help="Decoupled weight decay."
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
    optimizer: Literal["adamw"] = entry("adamw", title="Optimizer", section="Training", order=41, help="Which optimizer.")
    optimizer_params: OptimizerParams = Field(
        default_factory=OptimizerParams, title="Optimizer options", json_schema_extra={"ui": {}}
    )
    lr_scheduler: Literal["constant", "linear", "cosine"] = entry(
        "constant", title="Schedule", section="Training", order=42, help="How the rate falls after the warm-up, over all steps."
    )
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
    timestep_type: Literal["sigmoid", "linear"] = entry(
        "sigmoid",
        title="Timesteps",
        section="Training",
        order=50,
        help="How noise levels are drawn: sigmoid favours the middle, linear is even.",
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
    dtype: Literal["fp32", "bf16", "fp16"] = entry(
        "bf16", title="Save precision", section="Advanced", order=70, help="Precision of saved weights."
    )
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


CONTROLS = ("ctrl_img", "ctrl_img_1", "ctrl_img_2", "ctrl_img_3")


def _control(title: str, order: int) -> Any:
    line = "A picture that conditions this one; relative paths lie under the datasets folder of the server."
    needs = "edit" if order == 19 else "multi_reference"
    return entry(
        None, title=title, section="Previews", order=order, widget="path", needs=needs, min_length=1, max_length=1000, help=line
    )


class PreviewPrompt(Spec):
    """One preview. What is left out comes from the section around it."""

    prompt: str = entry(
        title="Prompt",
        section="Previews",
        order=10,
        basic=True,
        max_length=10000,
        widget="textarea",
        help="What the preview shows.",
    )
    neg: str | None = entry(
        None, title="Negative prompt", section="Previews", order=11, max_length=10000, help="What it should not show."
    )
    width: int | None = entry(
        None, title="Width", section="Previews", order=12, ge=16, le=8192, unit="px", help="If not the section's."
    )
    height: int | None = entry(
        None, title="Height", section="Previews", order=13, ge=16, le=8192, unit="px", help="If not the section's."
    )
    seed: int | None = entry(None, title="Seed", section="Previews", order=14, ge=0, le=2**32 - 1, help="If not the section's.")
    guidance_scale: float | None = entry(
        None, title="Guidance", section="Previews", order=15, ge=0, le=100, help="If not the section's."
    )
    sample_steps: int | None = entry(
        None, title="Sampling steps", section="Previews", order=16, ge=1, le=1000, unit="steps", help="If not the section's."
    )
    num_frames: int | None = entry(
        None,
        title="Frames",
        section="Previews",
        order=17,
        ge=1,
        le=10_000,
        unit="frames",
        needs="video",
        help="If not the section's.",
    )
    fps: int | None = entry(
        None,
        title="Frame rate",
        section="Previews",
        order=18,
        ge=1,
        le=240,
        unit="fps",
        needs="video",
        help="If not the section's.",
    )
    ctrl_img: str | None = _control("Control image", 19)
    ctrl_img_1: str | None = _control("Control image 2", 20)
    ctrl_img_2: str | None = _control("Control image 3", 21)
    ctrl_img_3: str | None = _control("Control image 4", 22)


class SamplingDefaults(Spec):
    """Settings that every picture of a job shares unless it has its own."""

    neg: str = entry(
        "", title="Negative prompt", section="Previews", order=30, max_length=10000, help="What pictures should not show."
    )
    width: int = entry(1024, title="Width", section="Previews", order=31, ge=16, le=8192, unit="px", help="Width of a picture.")
    height: int = entry(
        1024, title="Height", section="Previews", order=32, ge=16, le=8192, unit="px", help="Height of a picture."
    )
    seed: int = entry(42, title="Seed", section="Previews", order=33, ge=0, le=2**32 - 1, help="Fixes the starting noise.")
    walk_seed: bool = entry(True, title="Walk seed", section="Previews", order=34, help="Add the prompt's number to the seed.")
    guidance_scale: float = entry(
        4.0, title="Guidance", section="Previews", order=35, ge=0, le=100, help="How strongly the prompt steers; 1 is off."
    )
    sample_steps: int = entry(
        25,
        title="Sampling steps",
        section="Previews",
        order=36,
        ge=1,
        le=1000,
        unit="steps",
        help="Denoising steps of a picture.",
    )
    num_frames: int = entry(
        1, title="Frames", section="Previews", order=37, ge=1, le=10_000, unit="frames", needs="video", help="Length of a clip."
    )
    fps: int = entry(
        16, title="Frame rate", section="Previews", order=38, ge=1, le=240, unit="fps", needs="video", help="Frames a second."
    )


class PreviewSpec(SamplingDefaults):
    """Pictures made while training."""

    sample_every: int = entry(
        250,
        title="Preview every",
        section="Previews",
        order=20,
        basic=True,
        ge=1,
        le=10_000_000,
        unit="steps",
        help="Steps between previews.",
    )
    samples: list[PreviewPrompt] = Field(
        default_factory=list, max_length=256, title="Preview prompts", json_schema_extra={"ui": {}}
    )


class AdapterRef(Spec):
    """A saved adapter put on the model before sampling."""

    path: str = entry(
        title="Adapter",
        section="What",
        order=20,
        basic=True,
        widget="path",
        min_length=1,
        max_length=1000,
        help="A .safetensors adapter, or job:ID/file.",
    )
    weight: float = entry(1.0, title="Weight", section="What", order=21, ge=-10, le=10, help="1 is as trained, 0 is off.")


Name = Annotated[str, Field(min_length=1, max_length=120, pattern=r"^[^/\\\x00-\x1f]*$")]


class JobSpec(Spec):
    """What every kind of job has."""

    spec_version: Literal[1] = _fixed(SPEC_VERSION)
    name: Name = entry(title="Name", section="What", order=1, basic=True, help="Shown in lists and used in file names.")
    model: ModelSpec = Field(title="Model", json_schema_extra={"ui": {}})


class TrainSpec(JobSpec):
    """Train an adapter (`network`) or all weights (`network: null`)."""

    kind: Literal["train"] = _fixed()
    network: NetworkSpec | None = Field(
        default_factory=NetworkSpec, title="Adapter", json_schema_extra={"ui": {"section": "Training", "order": 4}}
    )
    datasets: list[DatasetSpec] = Field(min_length=1, max_length=32, title="Datasets", json_schema_extra={"ui": {}})
    train: TrainSettings = Field(default_factory=TrainSettings, title="Training", json_schema_extra={"ui": {}})
    save: SaveSpec = Field(default_factory=SaveSpec, title="Saving", json_schema_extra={"ui": {}})
    sample: PreviewSpec = Field(default_factory=PreviewSpec, title="Previews", json_schema_extra={"ui": {}})


class SampleSpec(JobSpec):
    """Make pictures with a model, and adapters on it."""

    kind: Literal["sample"] = _fixed()
    adapters: list[AdapterRef] = Field(default_factory=list, max_length=16, title="Adapters", json_schema_extra={"ui": {}})
    sample: SamplingDefaults = Field(default_factory=SamplingDefaults, title="Settings", json_schema_extra={"ui": {}})
    samples: list[PreviewPrompt] = Field(min_length=1, max_length=4096, title="Pictures", json_schema_extra={"ui": {}})


KINDS: Mapping[str, type[JobSpec]] = {"train": TrainSpec, "sample": SampleSpec}


def control_paths(spec: JobSpec) -> dict[str, str]:
    """The control files that previews name, each with its JSON pointer into the job."""
    if isinstance(spec, TrainSpec):
        samples, at = spec.sample.samples, "/sample/samples"
    else:
        samples, at = (spec.samples if isinstance(spec, SampleSpec) else []), "/samples"
    named = ((f"{at}/{index}/{key}", getattr(sample, key)) for index, sample in enumerate(samples) for key in CONTROLS)
    return {given: pointer for pointer, given in named if given}
