"""`toolkit.models.base_model`: our contract with the helpers that ai-toolkit's folders call on `self`."""

import logging
from collections.abc import Callable, Sequence
from typing import Any

import torch

from models import base
from models.base import Embeds
from models.batch import GenerateImageConfig, Made
from models.toolkit.config_modules import ModelConfig
from models.toolkit.helpers import get_accelerator, unwrap_model
from models.weights import DTYPES

log = logging.getLogger("toolkit")

DTYPE_NAMES = {
    "float": "fp32", "single": "fp32", "float32": "fp32", "half": "fp16", "float16": "fp16", "bfloat16": "bf16"
}  # fmt: skip


class BaseModel(base.BaseModel):
    """A folder's model class derives from this one, under the name `toolkit.models.base_model.BaseModel`."""

    arch: Any = None  # type: ignore[misc]  # on the class it names the architecture; an instance has the one that its job asks for

    def __init__(
        self,
        device: str | torch.device,
        model_config: Any,
        dtype: str | torch.dtype = "fp16",
        custom_pipeline: Any = None,
        noise_scheduler: Any = None,
        **kwargs: Any,
    ) -> None:
        config = ModelConfig.of(model_config)
        dtype = DTYPE_NAMES.get(dtype, dtype) if isinstance(dtype, str) else dtype
        super().__init__(device, config, dtype, custom_pipeline, noise_scheduler, **kwargs)
        self.arch = config.arch or type(self).arch
        self.low_vram = config.low_vram
        self.quantize_device = self.device_torch
        self.use_vae_tiling = config.low_vram
        self.prediction_type = "v_prediction" if config.is_v_pred else "epsilon"
        self.invert_assistant_lora = False
        self.adapter: Any = None
        self.is_loaded = False
        self.sample_prompts_cache: Any = None
        self._status_hooks: list[Callable[[str], None]] = []

    @classmethod
    def configure(cls, model_config: Any) -> ModelConfig:
        return ModelConfig.of(model_config)

    def _dtype_of(self, model_config: Any, key: str) -> torch.dtype:
        given = getattr(model_config, key, None)
        return DTYPES.get(DTYPE_NAMES.get(given, given), self.torch_dtype) if given else self.torch_dtype

    # -- helpers that folders call -------------------------------------------------------------------------------------------

    def print_and_status_update(self, status: str) -> None:
        log.info(status)
        for hook in self._status_hooks:
            hook(status)

    def add_status_update_hook(self, func: Callable[[str], None]) -> None:
        self._status_hooks.append(func)

    @property
    def accelerator(self) -> Any:
        return get_accelerator()

    @property
    def unet_unwrapped(self) -> Any:
        return unwrap_model(self.model)

    @property
    def model_unwrapped(self) -> Any:
        return unwrap_model(self.model)

    def text_encoder_to(self, *args: Any, **kwargs: Any) -> None:
        """Move the text encoder, or all of them."""
        for encoder in self.text_encoder if isinstance(self.text_encoder, list) else [self.text_encoder]:
            encoder.to(*args, **kwargs)

    # -- what folders override beyond our contract ---------------------------------------------------------------------------

    def get_model_has_grad(self) -> bool:
        return False

    def get_te_has_grad(self) -> bool:
        return False

    # -- noise and previews --------------------------------------------------------------------------------------------------

    def add_noise(self, original_samples: torch.Tensor, noise: torch.Tensor, timesteps: torch.Tensor, **_: Any) -> torch.Tensor:
        """Through the scheduler, one item at a time: a folder's scheduler may mix in its own way."""
        if self.noise_scheduler is None:
            return super().add_noise(original_samples, noise, timesteps)
        each = timesteps.reshape(-1).expand(original_samples.shape[0])
        parts = [
            self.noise_scheduler.add_noise(original_samples[i : i + 1], noise[i : i + 1], each[i : i + 1])
            for i in range(original_samples.shape[0])
        ]
        return torch.cat(parts)

    def generate_group(
        self,
        pipeline: Any,
        image_configs: Sequence[GenerateImageConfig],
        embeds: Callable[[GenerateImageConfig], tuple[Embeds, Embeds]],
    ) -> list[Made]:
        """As ours. A training adapter, which rests while training, is switched on meanwhile."""
        resting = self.assistant_lora is not None and hasattr(self.assistant_lora, "is_active")
        if resting:
            self.assistant_lora.is_active = True  # type: ignore[union-attr]
        try:
            return super().generate_group(pipeline, image_configs, embeds)
        finally:
            if resting:
                self.assistant_lora.is_active = False  # type: ignore[union-attr]

    # -- kinds of model that this class never is -----------------------------------------------------------------------------

    is_xl = is_v2 = is_v3 = is_ssd = is_vega = is_pixart = is_auraflow = is_flux = is_lumina2 = False
