"""The card: all that the server, the form and the queue need to know about an architecture, without loading torch."""

from collections.abc import Mapping
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from models.spec import NoOptions, Spec


class Preset(Spec):
    """A named starting job. `spec` is complete but for the dataset's folder; what it leaves out takes the arch's defaults."""

    name: str
    label: str
    description: str
    spec: dict[str, Any]


Capability = Literal[
    "from_scratch", "vae", "edit", "multi_reference", "video", "i2v", "audio", "multistage", "training_adapter", "epsilon",
    "schedule", "old_lokr_names",
]  # fmt: skip


class Arch(Spec):
    """One trainable architecture.

    `code` names the BaseModel subclass as `package.module:Class`; only the worker imports it. `defaults` replaces defaults of
    the job schema for this arch, nested as in a job (`{"sample": {"width": 32}}`; for a list of objects, those of its items).
    `bucket_divisibility` is the pixel multiple of widths and heights and equals the model's `get_bucket_divisibility()`.
    `fixed_size` is the (width, height) of a network that takes no other; buckets, previews and the job's defaults follow it.
    `samplers` are the names that `sample.sampler` may have, the default first; none if the arch samples in one way only.
    `starts_from` is what `name_or_path` may be: a folder of parts (or a hub's repository), a .safetensors file in a layout that the
    model's code knows, or only a file that `save_model` wrote, whose header holds a `config`.
    `capabilities` open the keys of a job that need them. `random_init` allows `name_or_path: random`; `trains_all_weights` is False
    where only adapters can be trained.
    """

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9_.-]*$")
    label: str
    description: str
    kind: Literal["t2i", "edit", "t2v", "i2v", "audio"] = "t2i"
    modality: Literal["image", "video", "audio"] = "image"
    capabilities: tuple[Capability, ...] = ()
    code: str = Field(pattern=r"^[\w.]+:\w+$")
    options: type[Spec] = NoOptions
    adapters: tuple[str, ...] = ("lora", "lokr")
    samplers: tuple[str, ...] = ()
    template_support: bool = False
    bucket_divisibility: int = Field(ge=1)
    fixed_size: tuple[int, int] | None = None
    starts_from: tuple[Literal["folder", "file", "saved"], ...] = ("folder", "file")
    random_init: bool = False
    trains_all_weights: bool = True
    defaults: Mapping[str, Any] = {}
    presets: tuple[Preset, ...] = ()

    @model_validator(mode="after")
    def _whole_sides(self) -> Self:
        if self.fixed_size and any(side < 1 or side % self.bucket_divisibility for side in self.fixed_size):
            raise ValueError(f"fixed_size {self.fixed_size} must be multiples of bucket_divisibility {self.bucket_divisibility}")
        return self
