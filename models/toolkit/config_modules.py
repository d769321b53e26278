"""`toolkit.config_modules` and the batch: what architecture folders read of a job."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from models.batch import Batch, GenerateImageConfig
from models.spec import Spec

__all__ = ["DataLoaderBatchDTO", "GenerateImageConfig", "ModelConfig", "NetworkConfig"]

DataLoaderBatchDTO = Batch


@dataclass
class ModelConfig:
    """A job's `model` section under ai-toolkit's names. `model_kwargs` is a plain dict. Paths are text."""

    name_or_path: str = ""
    arch: str | None = None
    extras_name_or_path: str | None = None
    te_name_or_path: str | None = None
    vae_path: str | None = None
    unet_path: str | None = None
    lora_path: str | None = None
    assistant_lora_path: str | None = None
    inference_lora_path: str | None = None
    unconditional_lora_path: str | None = None
    accuracy_recovery_adapter: str | None = None
    dtype: str = "bf16"
    vae_dtype: str | None = None
    te_dtype: str | None = None
    quantize: bool = False
    quantize_te: bool = False
    qtype: str = "qfloat8"
    qtype_te: str = "qfloat8"
    quantize_kwargs: dict[str, Any] = field(default_factory=dict)
    low_vram: bool = False
    layer_offloading: bool = False
    layer_offloading_transformer_percent: float = 1.0
    layer_offloading_text_encoder_percent: float = 1.0
    attn_masking: bool = False
    use_flux_cfg: bool = False
    split_model_over_gpus: bool = False
    latent_space_version: str | None = None
    compile: bool = False
    is_v_pred: bool = False
    use_text_encoder_1: bool = True
    use_text_encoder_2: bool = True
    model_kwargs: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.extras_name_or_path = self.extras_name_or_path or self.name_or_path

    @classmethod
    def of(cls, section: Any) -> "ModelConfig":
        """From a job's `model` section. Settings of ai-toolkit's that the section leaves at their defaults or has no key for
        (`extras_name_or_path`, ...) are taken from `model_kwargs`, where they stay as well."""
        if isinstance(section, cls):
            return section
        kwargs = getattr(section, "model_kwargs", None) or {}
        options = dict(kwargs) if isinstance(kwargs, Mapping) else kwargs.model_dump()
        known = {each.name for each in fields(cls)} - {"model_kwargs"}
        values = {name: value for name, value in options.items() if name in known}
        given = {name: getattr(section, name) for name in known if getattr(section, name, None) is not None}
        given = {name: value.model_dump() if isinstance(value, Spec) else value for name, value in given.items()}
        defaults = (
            {name: field.default for name, field in type(section).model_fields.items()} if isinstance(section, Spec) else {}
        )
        values |= {name: value for name, value in given.items() if name not in values or value != defaults.get(name)}
        return cls(**values, model_kwargs=options)


class NetworkConfig:
    """An adapter's settings: `rank` and `linear` are the same thing, and so are `alpha` and `linear_alpha`; unknown keys are kept
    as attributes."""

    def __init__(self, **keys: Any) -> None:
        self.type: str = keys.pop("type", "lora")
        self.rank: int = keys.pop("rank", None) or keys.pop("linear", None) or 4
        self.linear: int = keys.pop("linear", self.rank)
        alpha = keys.pop("alpha", 1.0)
        self.linear_alpha: float = keys.pop("linear_alpha", alpha)
        self.alpha = self.linear_alpha
        self.conv: int | None = keys.pop("conv", None)
        self.conv_alpha: float | None = keys.pop("conv_alpha", self.conv)
        self.dropout: float | None = keys.pop("dropout", None)
        self.transformer_only: bool = keys.pop("transformer_only", True)
        self.network_kwargs: dict[str, Any] = keys.pop("network_kwargs", {})
        self.split_multistage_loras: bool = keys.pop("split_multistage_loras", True)
        self.__dict__.update(keys)
