"""Which weights a job uses, in which precision, and how they share the memory."""

from typing import Any, Literal

from pydantic import Field, model_validator

from models.spec.fields import Dtype, NoOptions, Part, Spec, entry, fixed, part, path

Qtype = Literal["qfloat8", "qint8", "qint4", "qint2"]


class QuantizeKwargs(Spec):
    """More about quantization."""

    exclude: list[Part] = entry(
        [],
        title="Keep precise",
        section="Advanced",
        order=37,
        when={"../quantize": [True]},
        help="Layers that are not quantized: their paths, * stands for anything.",
    )


class ModelSpec(Spec):
    """Which weights, in which precision."""

    arch: str = fixed()
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
    te_name_or_path: str | None = path(
        "Text encoder", "Advanced", 20, "Where the text encoder comes from, if not from the model."
    )
    vae_path: str | None = path("VAE", "Advanced", 21, "Where the VAE comes from, if not from the model.", needs="vae")
    assistant_lora_path: str | None = path(
        "Training adapter",
        "Advanced",
        22,
        "A LoRA that undoes a distilled model's distillation while it trains; previews are made without it.",
        needs="training_adapter",
    )
    dtype: Dtype = entry(
        "bf16",
        title="Precision",
        section="Advanced",
        order=30,
        help="Precision of the frozen weights and activations; fp16 is for sampling only, since small gradients are 0 in it.",
    )
    attention_backend: Literal["native", "flash"] = entry(
        "native",
        title="Attention",
        section="Advanced",
        order=31,
        help="Attention kernel; flash needs the package flash-attn, and padded batches are native.",
    )
    te_dtype: Dtype | None = entry(
        None, title="Text encoder's precision", section="Advanced", order=32, help="Precision of the text encoder, if another."
    )
    vae_dtype: Dtype | None = entry(
        None, title="VAE's precision", section="Advanced", order=33, needs="vae", help="Precision of the VAE, if another."
    )
    quantize: bool = entry(
        False,
        title="Quantize",
        section="Advanced",
        order=34,
        help="Keep the frozen model in fewer bits: half the memory or less, for a small error. Adapters only.",
    )
    qtype: Qtype = entry(
        "qfloat8",
        title="Quantized to",
        section="Advanced",
        order=35,
        when={"quantize": [True]},
        help="Kind of quantized weights; 'qint4|file' also names a recovery adapter.",
    )
    accuracy_recovery_adapter: str | None = path(
        "Recovery adapter",
        "Advanced",
        36,
        "A frozen LoRA that makes good for quantization, in training and previews; it is not part of what is saved.",
        when={"quantize": [True]},
    )
    quantize_kwargs: QuantizeKwargs = part(QuantizeKwargs, "Quantization")
    quantize_te: bool = entry(
        False,
        title="Quantize text encoder",
        section="Advanced",
        order=38,
        help="The same for the text encoder.",
    )
    qtype_te: Qtype = entry(
        "qfloat8",
        title="Text encoder quantized to",
        section="Advanced",
        order=39,
        when={"quantize_te": [True]},
        help="Kind of quantized weights.",
    )
    low_vram: bool = entry(
        False,
        title="Low memory",
        section="Advanced",
        order=90,
        help="Keep each part of the model on the device only while it works: less memory, slower starts and previews.",
    )
    layer_offloading: bool = entry(
        False,
        title="Offload blocks",
        section="Advanced",
        order=91,
        help="Keep frozen blocks in the computer's memory and fetch each just before its turn: much less memory, slower steps.",
    )
    layer_offloading_transformer_percent: float = entry(
        1.0,
        title="Offloaded share",
        section="Advanced",
        order=92,
        ge=0,
        le=1,
        when={"layer_offloading": [True]},
        help="Share of the denoiser's blocks that are offloaded.",
    )
    layer_offloading_text_encoder_percent: float = entry(
        1.0,
        title="Offloaded share of the text encoder",
        section="Advanced",
        order=93,
        ge=0,
        le=1,
        when={"layer_offloading": [True]},
        help="The same for the text encoder.",
    )
    model_kwargs: NoOptions = Field(default_factory=NoOptions, title="Architecture options", json_schema_extra={"ui": {}})

    @model_validator(mode="before")
    @classmethod
    def _split_qtype(cls, raw: Any) -> Any:
        """ai-toolkit's `qtype|adapter` is short for two keys."""
        qtype = raw.get("qtype") if isinstance(raw, dict) else None
        if not isinstance(qtype, str) or "|" not in qtype:
            return raw
        if raw.get("accuracy_recovery_adapter") is not None:
            raise ValueError(f"qtype {qtype!r} and accuracy_recovery_adapter both name an adapter; give one of them")
        kind, _, adapter = qtype.partition("|")
        return {**raw, "qtype": kind, "accuracy_recovery_adapter": adapter}
