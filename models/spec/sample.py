"""The pictures, clips and sounds that a job makes."""

from typing import Annotated, Any

from pydantic import Field

from models.spec.fields import Part, Spec, entry

CONTROLS = ("ctrl_img", "ctrl_img_1", "ctrl_img_2", "ctrl_img_3")


def _control(title: str, order: int) -> Any:
    line = "A picture that conditions this one; relative paths lie under the datasets folder of the server."
    needs = ("edit", "i2v") if order == 19 else ("multi_reference",)
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
    network_multiplier: float | None = entry(
        None, title="Adapter strength", section="Previews", order=23, ge=-10, le=10, help="How strongly adapters act; 1 if empty."
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
    sampler: str | None = entry(
        None,
        title="Sampler",
        section="Previews",
        order=39,
        min_length=1,
        max_length=100,
        help="How noise becomes a picture; the architecture's own way if empty. heun asks the model twice a step.",
    )
    batch_size: int = entry(
        4,
        title="Pictures at once",
        section="Previews",
        order=40,
        ge=1,
        le=64,
        help="At most so many share a pass; fewer if memory runs out. 1: to the bit the same, however many there are.",
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
    sample_start_step: int = entry(
        0,
        title="Previews from",
        section="Previews",
        order=21,
        ge=0,
        le=10_000_000,
        help="No previews before this step, but for those of step 0.",
        unit="steps",
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


class Matrix(Spec):
    """Make every prompt once for each checkpoint at each weight."""

    checkpoints: list[Annotated[Part, Field(max_length=1000)]] = entry(
        title="Checkpoints",
        section="What",
        order=22,
        min_length=1,
        max_length=256,
        help="Adapters to compare: .safetensors files, or job:ID/file.",
    )
    weights: list[Annotated[float, Field(ge=-10, le=10)]] = entry(
        [1.0], title="Weights", section="What", order=23, min_length=1, max_length=32, help="1 is as trained, 0 is off."
    )
