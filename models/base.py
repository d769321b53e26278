"""BaseModel, the contract of an architecture: the loops call these methods and ask nothing else.

Method names, argument names, shapes and conventions are those of ai-toolkit's example model.

Shapes: B batch, C latent channels, h w latent size, H W pixel size, L tokens, D features.
    pixels      (B, 3, H, W) in [-1, 1]; control images in [0, 1]
    latents     (B, C, h, w)
    timesteps   (B,) float on 0..1000; 1000 is pure noise, 0 is clean
    target      noise - clean
"""

import inspect
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import torch
from PIL import Image
from torch import nn

from models import flow
from models.prompt_embeds import AdvancedPromptEmbeds
from models.weights import DTYPES, save_tensors


@dataclass
class Batch:
    """What a training step sees. `tensor` holds the pixels and is None where latents were cached."""

    latents: torch.Tensor
    captions: list[str]
    tensor: torch.Tensor | None = None


@dataclass
class GenerateConfig:
    """One picture to make. Sizes in pixels; `guidance_scale` 1 means no guidance."""

    prompt: str
    negative_prompt: str = ""
    width: int = 512
    height: int = 512
    seed: int = 42
    guidance_scale: float = 4.0
    num_inference_steps: int = 25
    extra: dict[str, Any] = field(default_factory=dict)


class BaseModel:
    """Subclass it in `archs/NAME/model.py`, set the card's `code` to it, and override what the architecture needs."""

    arch: ClassVar[str | None] = None
    use_old_lokr_format: ClassVar[bool] = True
    te_padding_side: str = "right"

    def __init__(
        self,
        device: str | torch.device,
        model_config: Any,
        dtype: str | torch.dtype = "fp16",
        custom_pipeline: Any = None,
        noise_scheduler: Any = None,
        **kwargs: Any,
    ) -> None:
        """`model_config` is the job's `model` section with its paths resolved; `dtype` is a torch dtype or fp32, bf16, fp16."""
        self.device = str(device)
        self.device_torch = torch.device(device)
        self.torch_dtype = DTYPES[dtype] if isinstance(dtype, str) else dtype
        self.model_config = model_config
        self.pipeline = custom_pipeline
        self.noise_scheduler = noise_scheduler
        self.is_flow_matching = False
        self.model: Any = None
        self.vae: Any = None
        self.text_encoder: Any = None
        self.tokenizer: Any = None
        self.network: Any = None

    # -- loading ------------------------------------------------------------------------------------------------------------

    @staticmethod
    def get_train_scheduler() -> Any:
        """A fresh noise scheduler, for models that sample or add noise through one. Called before construction."""
        return None

    def load_model(self) -> None:
        """Build denoiser, VAE, text encoder and tokenizer and set self.model, .vae, .text_encoder, .tokenizer. Called once."""
        raise NotImplementedError(f"{type(self).__name__} must override load_model")

    def get_bucket_divisibility(self) -> int:
        """The pixel multiple of widths and heights; equals the card's."""
        return 8 if self.vae is None else int(2 ** (len(self.vae.config.block_out_channels) - 1))

    # -- before training ----------------------------------------------------------------------------------------------------

    def encode_images(
        self, image_list: Sequence[torch.Tensor] | torch.Tensor, device: Any = None, dtype: torch.dtype | None = None
    ) -> torch.Tensor:
        """Pixels, as (B, 3, H, W) or a list of (3, H, W), in [-1, 1] to normalised latents (B, C, h, w). The posterior's mode, so
        that a cached latent equals a fresh one. Called once per picture when latents are cached, else every step."""
        pixels = image_list if isinstance(image_list, torch.Tensor) else torch.stack(list(image_list))
        vae = self.vae.to(self.device_torch)
        latents = vae.encode(pixels.to(self.device_torch, vae.dtype)).latent_dist.mode()
        shift = getattr(vae.config, "shift_factor", None) or 0.0
        normalised: torch.Tensor = vae.config.scaling_factor * (latents - shift)
        return normalised.to(device or self.device_torch, dtype or self.torch_dtype)

    def decode_latents(self, latents: torch.Tensor, device: Any = None, dtype: torch.dtype | None = None) -> torch.Tensor:
        """The inverse: latents (B, C, h, w) to pixels (B, 3, H, W) in about [-1, 1]. Called for previews."""
        vae = self.vae.to(self.device_torch)
        shift = getattr(vae.config, "shift_factor", None) or 0.0
        pixels: torch.Tensor = vae.decode(latents.to(self.device_torch, vae.dtype) / vae.config.scaling_factor + shift).sample
        return pixels.to(device or self.device_torch, dtype or self.torch_dtype)

    def get_prompt_embeds(self, prompt: list[str]) -> AdvancedPromptEmbeds:
        """Text to conditioning, one entry per prompt, each at its natural length. Called once per caption and prompt."""
        raise NotImplementedError(f"{type(self).__name__} must override get_prompt_embeds")

    def encode_prompt(self, prompt: str | list[str]) -> AdvancedPromptEmbeds:
        """`get_prompt_embeds` for one prompt or several."""
        with torch.no_grad():
            return self.get_prompt_embeds([prompt] if isinstance(prompt, str) else prompt)

    @property
    def text_embedding_space_version(self) -> str | None:
        """Override with a new value whenever `get_prompt_embeds` gives other numbers, so that caches are made again."""
        return self.arch

    @property
    def latent_space_version(self) -> str | None:
        """The same for `encode_images`."""
        return self.arch

    # -- a training step, in the order of the calls -------------------------------------------------------------------------

    def get_latent_noise_from_latents(self, latents: torch.Tensor, noise_offset: float = 0.0) -> torch.Tensor:
        """Noise shaped like the latents, from torch's generator, which the loop has seeded for this very sample."""
        noise = torch.randn_like(latents)
        if noise_offset:
            noise = noise + noise_offset * torch.randn(*latents.shape[:2], *[1] * (latents.ndim - 2)).to(latents)
        return noise

    def add_noise(self, original_samples: torch.Tensor, noise: torch.Tensor, timesteps: torch.Tensor) -> torch.Tensor:
        """Noisy latents at `timesteps` (B,) or (1,)."""
        if self.is_flow_matching:
            return flow.mix(original_samples, noise, timesteps)
        return self.noise_scheduler.add_noise(original_samples, noise, timesteps)  # type: ignore[no-any-return]

    def condition_noisy_latents(self, latents: torch.Tensor, batch: Batch) -> torch.Tensor:
        """Put control conditioning into the noisy latents (more channels, say). The default adds none."""
        return latents

    def get_noise_prediction(
        self, latent_model_input: torch.Tensor, timestep: torch.Tensor, text_embeddings: AdvancedPromptEmbeds, **kwargs: Any
    ) -> torch.Tensor:
        """The denoiser's forward pass, under autograd in training: noisy latents (B, C, h, w), timesteps (B,) on 0..1000 and
        embeds of B prompts to a prediction with exactly the shape of the target. Declare `batch` to receive it."""
        raise NotImplementedError(f"{type(self).__name__} must override get_noise_prediction")

    def get_loss_target(self, *, noise: torch.Tensor, batch: Batch) -> torch.Tensor:
        """What the prediction is compared with; detached. May also declare `timesteps`."""
        return flow.velocity(batch.latents, noise).detach()

    def predict_noise(
        self,
        latents: torch.Tensor,
        text_embeddings: AdvancedPromptEmbeds | None = None,
        timestep: torch.Tensor | float = 1,
        guidance_scale: float = 1.0,
        conditional_embeddings: AdvancedPromptEmbeds | None = None,
        unconditional_embeddings: AdvancedPromptEmbeds | None = None,
        batch: Batch | None = None,
        **kwargs: Any,
    ) -> torch.Tensor:
        """`get_noise_prediction` with the batch-size rule: embeds of B prompts predict as they are; embeds of 2 B prompts, the
        unconditional ones first, are combined by classifier-free guidance u + s (c - u). Raises ValueError for other counts."""
        if text_embeddings is None:
            parts = [part for part in (unconditional_embeddings, conditional_embeddings) if part is not None]
            text_embeddings = AdvancedPromptEmbeds.concat_prompt_embeds(parts, padding_side=self.te_padding_side)
        num_latents, num_prompts = latents.shape[0], len(text_embeddings)
        if num_prompts not in (num_latents, 2 * num_latents):
            raise ValueError(
                f"{num_prompts} prompt embeds do not fit {num_latents} latents; give as many, or twice as many for guidance"
            )
        guided = num_prompts == 2 * num_latents
        embeds = text_embeddings.to(self.device_torch, self.torch_dtype)
        t = torch.as_tensor(timestep, device=self.device_torch, dtype=torch.float32).reshape(-1).expand(num_latents)
        x = latents.to(self.device_torch, self.torch_dtype)
        if "batch" in inspect.signature(self.get_noise_prediction).parameters:
            kwargs["batch"] = batch
        if not guided:
            return self.get_noise_prediction(x, t, embeds, **kwargs)
        prediction = self.get_noise_prediction(torch.cat([x, x]), torch.cat([t, t]), embeds, **kwargs)
        without, with_prompt = prediction.chunk(2)
        return without + guidance_scale * (with_prompt - without)

    # -- previews -----------------------------------------------------------------------------------------------------------

    def get_generation_pipeline(self) -> Any:
        """Whatever `generate_single_image` samples with; it sees embeds, never text. Called once per round of previews."""
        raise NotImplementedError(f"{type(self).__name__} must override get_generation_pipeline")

    def generate_single_image(
        self,
        pipeline: Any,
        gen_config: GenerateConfig,
        conditional_embeds: AdvancedPromptEmbeds,
        unconditional_embeds: AdvancedPromptEmbeds,
        generator: torch.Generator,
        extra: dict[str, Any],
    ) -> Image.Image:
        """One picture. Starting noise comes from `generator`, a CPU one, so that it is the same on every device."""
        raise NotImplementedError(f"{type(self).__name__} must override generate_single_image")

    # -- saving and adapters ------------------------------------------------------------------------------------------------

    def get_model_to_train(self) -> nn.Module:
        """The module that adapters attach to, or whose weights a full fine-tune trains."""
        root: nn.Module = self.model
        return root

    def save_model(self, output_path: Path, meta: dict[str, str], save_dtype: torch.dtype) -> None:
        """A full fine-tune's weights as a file that `model.name_or_path` can name. `meta` goes into the header."""
        tensors = {name: tensor.to(save_dtype) for name, tensor in self.get_model_to_train().state_dict().items()}
        save_tensors(tensors, output_path, meta)

    def convert_lora_weights_before_save(self, state_dict: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Our keys (`transformer.PATH.lora_A.weight`) to the public convention; undone by `_before_load`."""
        return {key.replace("transformer.", "diffusion_model.", 1): tensor for key, tensor in state_dict.items()}

    def convert_lora_weights_before_load(self, state_dict: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {key.replace("diffusion_model.", "transformer.", 1): tensor for key, tensor in state_dict.items()}

    @property
    def transformer(self) -> Any:
        """Another name of `model`, as is `unet`."""
        return self.model

    @transformer.setter
    def transformer(self, module: Any) -> None:
        self.model = module

    @property
    def unet(self) -> Any:
        return self.model

    @unet.setter
    def unet(self, module: Any) -> None:
        self.model = module


def generate_images(model: BaseModel, configs: Sequence[GenerateConfig], embeds: dict[str, AdvancedPromptEmbeds]) -> Any:
    """Make the pictures one after the other (a generator of PIL images), from embeds of their texts made beforehand.

    Each picture's noise comes from its own seed; torch's global generators are neither read nor changed.
    """
    pipeline = model.get_generation_pipeline()
    for config in configs:
        generator = torch.Generator("cpu").manual_seed(config.seed)
        with torch.random.fork_rng([model.device_torch] if model.device_torch.type == "cuda" else []), torch.no_grad():
            image = model.generate_single_image(
                pipeline, config, embeds[config.prompt], embeds[config.negative_prompt], generator, config.extra
            )
        yield image  # outside, so that who takes it is under neither
