"""The adapter that a job trains."""

from typing import Literal

from models.spec.fields import Part, Spec, entry, path

LORA = {"type": ["lora"]}
LOKR = {"type": ["lokr"]}


class NetworkSpec(Spec):
    """The adapter that is trained. Leave the whole section null for a full fine-tune."""

    type: Literal["lora", "lokr"] = entry(
        "lora",
        title="Kind of adapter",
        section="Training",
        order=5,
        help="lora: two thin matrices a layer. lokr: a Kronecker product, which reaches full rank with few weights.",
    )
    linear: int = entry(
        16, title="Rank", section="Training", order=10, basic=True, ge=1, le=1024, help="Rank of the adapter's matrices."
    )
    linear_alpha: float | None = entry(
        None,
        title="Alpha",
        section="Training",
        order=11,
        gt=0,
        le=4096,
        follows="linear",
        help="The adapter's effect is scaled by alpha / rank. Not set: the rank, so by 1.",
    )
    conv: int | None = entry(
        None,
        title="Convolution rank",
        section="Advanced",
        order=42,
        ge=1,
        le=1024,
        help="Rank on convolutions larger than 1x1; none: they are not trained. 1x1 ones count as linear.",
    )
    conv_alpha: float | None = entry(
        None,
        title="Convolution alpha",
        section="Advanced",
        order=43,
        gt=0,
        le=4096,
        follows="conv",
        help="Not set: the convolution rank.",
    )
    dropout: float = entry(
        0.0, title="Dropout", section="Advanced", order=44, ge=0, lt=1, when=LORA, help="Share of the rank dropped in a step."
    )
    lokr_full_rank: bool = entry(
        True, title="Full rank", section="Advanced", order=45, when=LOKR, help="Do not factor the second matrix; rank is ignored."
    )
    lokr_factor: int = entry(
        -1,
        title="Factor",
        section="Advanced",
        order=46,
        ge=-1,
        le=4096,
        when=LOKR,
        help="Size of the first matrix; -1 is the most even split, which has the fewest weights.",
    )
    old_lokr_format: bool = entry(
        False,
        title="Old key names",
        section="Advanced",
        order=47,
        when=LOKR,
        needs="old_lokr_names",
        help="Save with the lycoris_ names that older tools read.",
    )
    pretrained_lora_path: str | None = path(
        "Start from", "Training", 12, "An adapter of the same kind, rank and layers to start from; a new run begins at step 0."
    )
    split_multistage_loras: bool = entry(
        True,
        title="A file for each expert",
        section="Advanced",
        order=48,
        needs="multistage",
        help="Save the experts' adapters as separate files, as samplers expect them.",
    )
    only_if_contains: list[Part] = entry(
        [],
        title="Only layers containing",
        section="Advanced",
        order=40,
        help="Train only layers whose name contains one of these; empty means all.",
    )
    ignore_if_contains: list[Part] = entry(
        [],
        title="Skip layers containing",
        section="Advanced",
        order=41,
        help="Do not train layers whose name contains one of these.",
    )
