"""`toolkit.models.base_model`: our contract with the helpers that ai-toolkit's folders call on `self`."""

import logging
from collections.abc import Callable, Sequence
from typing import Any

import torch
from PIL import Image

from models import base
from models.base import Embeds
from models.batch import Audio, Clip, GenerateImageConfig, Made
from models.toolkit.config_modules import ModelConfig
from models.toolkit.helpers import get_accelerator, unwrap_model
from models.toolkit.reported import reporting
from models.weights import DTYPES

log = logging.getLogger("toolkit")

DTYPE_NAMES = {
    "float": "fp32", "single": "fp32", "float32": "fp32", "half": "fp16", "float16": "fp16", "bfloat16": "bf16"
}  # fmt: skip


BLOCK_LISTS = (("single_blocks", "double_blocks"), ("transformer_blocks",), ("blocks",))


def as_clip(made: Any, config: GenerateImageConfig) -> Any:
    """A clip with its sound as ai-toolkit's folders hand it to diffusers' `encode_video`: {"video": (T, H, W, 3) in 0..255, or pictures,
    "fps", "audio": (channels, samples) or None, "audio_sample_rate": Hz}. Anything else comes back as it is."""
    if not isinstance(made, dict) or "video" not in made:
        return made
    video, audio = made["video"], made.get("audio")
    frames = [
        frame if isinstance(frame, Image.Image) else Image.fromarray(torch.as_tensor(frame).to("cpu", torch.uint8).numpy())
        for frame in video
    ]
    sound = None if audio is None else Audio(torch.as_tensor(audio), int(made["audio_sample_rate"]))
    return Clip(frames, made.get("fps") or config.fps, sound)


class BaseModel(base.BaseModel):
    """A folder's model class derives from this one, under the name `toolkit.models.base_model.BaseModel`."""

    arch: Any = None  # type: ignore[misc]  # on the class it names the architecture; an instance has the one that its job asks for

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "load_model" in vars(cls):
            cls.load_model = reporting(cls.load_model)  # type: ignore[method-assign]

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

    def convert_lora_weights_before_save(self, state_dict: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """A class that converts nothing keeps the names of its own layers."""
        return state_dict

    def convert_lora_weights_before_load(self, state_dict: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return state_dict

    def get_transformer_block_names(self) -> list[str] | None:
        """For a class that names none, ai-toolkit's rule: adapters go into the lists of blocks that the adapted module has by these
        names, and everywhere if it has none."""
        root = self.get_model_to_train()
        named = [module for module in root.modules() if type(module).__name__ in self.target_lora_modules]
        for lists in BLOCK_LISTS:
            if any(hasattr(module, lists[0]) for module in named or [root]):
                return [name for name in lists if any(hasattr(module, name) for module in named or [root])]
        return None

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
        """As ours; clips may also come as a dict. A training adapter, which rests while training, is switched on meanwhile."""
        resting = self.assistant_lora is not None and hasattr(self.assistant_lora, "is_active")
        if resting:
            self.assistant_lora.is_active = True  # type: ignore[union-attr]
        try:
            made = super().generate_group(pipeline, image_configs, embeds)
            return [as_clip(each, config) for each, config in zip(made, image_configs, strict=True)]
        finally:
            if resting:
                self.assistant_lora.is_active = False  # type: ignore[union-attr]

    # -- kinds of model that this class never is -----------------------------------------------------------------------------

    is_xl = is_v2 = is_v3 = is_ssd = is_vega = is_pixart = is_auraflow = is_flux = is_lumina2 = False
