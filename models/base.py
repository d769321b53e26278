"""BaseModel, the contract of an architecture: the loops call these methods and ask nothing else.

Method names, argument names, shapes and conventions are those of ai-toolkit's example model.

Shapes: B batch, C latent channels, h w latent size, H W pixel size, F latent frames, T pixel frames, L tokens, D features.
    pixels      (B, 3, H, W) or (B, T, 3, H, W) in [-1, 1]; control images in [0, 1]
    latents     (B, C, h, w) or (B, C, F, h, w)
    timesteps   (B,) float on 0..1000; 1000 is pure noise, 0 is clean
    target      noise - clean
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import nn

from models import flow, groups, memory
from models.adapters import files
from models.adapters.attach import AdapterNetwork
from models.attention import set_attention_backend
from models.batch import Batch, GenerateImageConfig, Made
from models.data import frames
from models.declared import call_declared, declares
from models.prompt_embeds import AdvancedPromptEmbeds, PromptEmbeds, concat_prompt_embeds
from models.spaces import SpaceVersion
from models.weights import DTYPES, save_tensors

Embeds = AdvancedPromptEmbeds | PromptEmbeds


class BaseModel:
    """Subclass it in `archs/NAME/model.py`, set the card's `code` to it, and override what the architecture needs.

    Flags, set on the class or in `__init__` after `super().__init__`:

    is_transformer                      a flag of the original that its folders set; nothing here asks for it
    supports_video_control_images       the same
    is_flow_matching                    noise, target and weighting follow models.flow
    is_multistage                       several experts, each for a range of timesteps: see multistage_boundaries
    multistage_boundaries               lower bounds in 0..1, highest first; stage k covers b[k-1] >= t / 1000 > b[k], b[-1] being 1
    trainable_multistage_boundaries     the stages that may be trained
    encode_control_in_text_embeddings   get_prompt_embeds gets the control images
    has_multiple_control_images         control images are a list per item (batch.control_tensor_list)
    use_raw_control_images              control images keep their own size
    te_padding_side                     where embeds are padded at the model call: right or left
    use_old_lokr_format                 True only for architectures whose LoKr files predate the new format
    target_lora_modules                 class names of the modules that adapters attach within; empty: get_model_to_train() itself
    """

    arch: ClassVar[str | None] = None
    use_old_lokr_format: bool = True
    te_padding_side: str = "right"
    is_flow_matching: bool = False
    is_transformer: bool = False
    is_multistage: bool = False
    encode_control_in_text_embeddings: bool = False
    has_multiple_control_images: bool = False
    use_raw_control_images: bool = False
    supports_video_control_images: bool = False

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
        self.dtype = dtype
        self.vae_device_torch = self.te_device_torch = self.device_torch
        self.load_device_torch = memory.load_device(model_config, self.device_torch)  # where load_model puts the denoiser
        self.vae_torch_dtype = self._dtype_of(model_config, "vae_dtype")
        self.te_torch_dtype = self._dtype_of(model_config, "te_dtype")
        self.model_config = model_config
        self.pipeline = custom_pipeline
        self.noise_scheduler = noise_scheduler
        self.multistage_boundaries: list[float] = [0.0]
        self.trainable_multistage_boundaries: list[int] = [0]
        self.target_lora_modules: list[str] = []
        self.model: Any = None
        self.vae: Any = None
        self.text_encoder: Any = None
        self.tokenizer: Any = None
        self.network: AdapterNetwork | None = None
        self.assistant_lora: AdapterNetwork | None = None
        self.recovery_adapter: AdapterNetwork | None = None
        self.cache_folder: Path | None = None
        self.source: str | None = None  # stands for where the weights come from: quantized.source_of
        self.absent: set[str] = set()

    def _dtype_of(self, model_config: Any, key: str) -> torch.dtype:
        return DTYPES.get(getattr(model_config, key, None) or "", self.torch_dtype)

    # -- loading ------------------------------------------------------------------------------------------------------------

    @classmethod
    def configure(cls, model_config: Any) -> Any:
        """What the constructor gets as `model_config`, of the job's `model` section."""
        return model_config

    @staticmethod
    def get_train_scheduler() -> Any:
        """A fresh noise scheduler, for models that sample or add noise through one. Called before construction."""
        return None

    def load_model(self) -> None:
        """Build denoiser, VAE, text encoder and tokenizer and set self.model, .vae, .text_encoder, .tokenizer. Called once."""
        raise NotImplementedError(f"{type(self).__name__} must override load_model")

    def unload_text_encoder(self) -> None:
        """Everything is encoded and the text encoder is not needed again: its memory is given back."""
        memory.drop(self, "text_encoder")

    def get_bucket_divisibility(self) -> int:
        """The pixel multiple of widths and heights; equals the card's."""
        return 8 if self.vae is None else int(2 ** (len(self.vae.config.block_out_channels) - 1))

    def get_quantization_exclude_modules(self) -> list[str]:
        """Shell patterns of module paths within the denoiser that stay in full precision when a job quantizes it."""
        return []

    # -- before training ----------------------------------------------------------------------------------------------------

    def encode_images(
        self, image_list: Sequence[torch.Tensor] | torch.Tensor, device: Any = None, dtype: torch.dtype | None = None
    ) -> torch.Tensor:
        """Pixels, as (B, 3, H, W) or a list of (3, H, W), in [-1, 1] to normalised latents (B, C, h, w); a video model overrides it
        for (T, 3, H, W). The posterior's mode, so that a cached latent equals a fresh one. Called once per picture when latents are
        cached, else every step; also for control images."""
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

    def encode_audio(self, audio_data_list: Sequence[Mapping[str, Any]]) -> torch.Tensor:
        """Sounds, each {"waveform": (channels, samples), "sample_rate": Hz}, to latents with a leading batch axis."""
        raise NotImplementedError(f"{type(self).__name__} does not take audio; override encode_audio if it should")

    def get_prompt_embeds(self, prompt: list[str], control_images: Any = None) -> Embeds:
        """Text to conditioning, one entry per prompt, each at its natural length. Called once per caption and prompt. Declare
        `control_images` only together with `encode_control_in_text_embeddings`: (1, 3, H, W) in [0, 1], or a list of them with
        `has_multiple_control_images`."""
        raise NotImplementedError(f"{type(self).__name__} must override get_prompt_embeds")

    def encode_prompt(self, prompt: str | list[str], control_images: Any = None) -> Embeds:
        """`get_prompt_embeds` for one prompt or several, with control images if the architecture's text encoder sees them."""
        texts = [prompt] if isinstance(prompt, str) else prompt
        with torch.no_grad():
            if self.encode_control_in_text_embeddings:
                return self.get_prompt_embeds(texts, control_images=control_images)
            return self.get_prompt_embeds(texts)

    def get_frame_count_snapper(self) -> Callable[[int], int]:
        """A function that rounds a number of frames down to one that the model can take; picklable. The default gives 1 + n c frames,
        c being the denoiser's temporal_compression_ratio, else the VAE's scale_factor_temporal, else 8."""
        return frames.snapper(self.model, self.vae)

    # Give these new values, on the class or in `__init__`, whenever `get_prompt_embeds` or `encode_images` gives other numbers, so that
    # caches are made again.
    text_embedding_space_version: Any = SpaceVersion()
    latent_space_version: Any = SpaceVersion()

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
        if self.noise_scheduler is None:
            message = "cannot add noise: set is_flow_matching, or return a scheduler from get_train_scheduler"
            raise ValueError(f"{type(self).__name__} {message}")
        return self.noise_scheduler.add_noise(original_samples, noise, timesteps)  # type: ignore[no-any-return]

    def condition_noisy_latents(self, latents: torch.Tensor, batch: Batch) -> torch.Tensor:
        """Put control conditioning into the noisy latents (more channels, say). The default adds none."""
        return latents

    def get_noise_prediction(
        self, latent_model_input: torch.Tensor, timestep: torch.Tensor, text_embeddings: Any, **kwargs: Any
    ) -> torch.Tensor:
        """The denoiser's forward pass, under autograd in training: noisy latents (B, C, h, w), timesteps (B,) on 0..1000 and
        embeds of B prompts to a prediction with exactly the shape of the target: slice off what condition_noisy_latents added.
        Declare `batch`, `guidance_embedding_scale` or `bypass_guidance_embedding` to receive them."""
        raise NotImplementedError(f"{type(self).__name__} must override get_noise_prediction")

    def get_loss_target(self, *, noise: torch.Tensor, batch: Batch) -> torch.Tensor:
        """What the prediction is compared with; detached. Declare `timesteps` to receive them. The default is flow matching's velocity,
        and the noise for a model that is trained with a DDPM scheduler; such a model's timesteps are its scheduler's whole numbers."""
        ddpm = not self.is_flow_matching and hasattr(self.noise_scheduler, "alphas_cumprod")
        return noise if ddpm else flow.velocity(batch.latents, noise).detach()

    def loss_target(self, noise: torch.Tensor, batch: Batch, timesteps: torch.Tensor) -> torch.Tensor:
        """`get_loss_target`, with the arguments that it declares."""
        return call_declared(self.get_loss_target, noise=noise, batch=batch, timesteps=timesteps)  # type: ignore[no-any-return]

    def scale_loss(self, loss: torch.Tensor) -> torch.Tensor:
        """The elementwise loss, shaped like the target, before its mean is taken. A model that is given part of its latents (a first
        frame, say) zeroes the loss there. The default changes nothing."""
        return loss

    def get_additional_loss(self, pred: torch.Tensor, target: torch.Tensor) -> torch.Tensor | None:
        """A scalar, under autograd, that is added to the step's loss; both arguments are shaped like the latents. None adds nothing."""
        return None

    def predict_noise(
        self,
        latents: torch.Tensor,
        text_embeddings: Embeds | None = None,
        timestep: torch.Tensor | float = 1,
        guidance_scale: float = 1.0,
        conditional_embeddings: Embeds | None = None,
        unconditional_embeddings: Embeds | None = None,
        batch: Batch | None = None,
        guidance_embedding_scale: float = 1.0,
        bypass_guidance_embedding: bool = False,
        **kwargs: Any,
    ) -> torch.Tensor:
        """`get_noise_prediction` with the batch-size rule: embeds of B prompts predict as they are; embeds of 2 B prompts, the
        unconditional ones first, are combined by classifier-free guidance u + s (c - u). Raises ValueError for other counts."""
        if text_embeddings is None:
            parts = [part for part in (unconditional_embeddings, conditional_embeddings) if part is not None]
            text_embeddings = concat_prompt_embeds(parts, padding_side=self.te_padding_side)
        num_latents, num_prompts = latents.shape[0], len(text_embeddings)
        if num_prompts not in (num_latents, 2 * num_latents):
            raise ValueError(
                f"{num_prompts} prompt embeds do not fit {num_latents} latents; give as many, or twice as many for guidance"
            )
        guided = num_prompts == 2 * num_latents
        embeds = text_embeddings.to(self.device_torch, self.torch_dtype)
        t = torch.as_tensor(timestep, device=self.device_torch, dtype=torch.float32).reshape(-1).expand(num_latents)
        x = latents.to(self.device_torch, self.torch_dtype)
        declared = {
            "batch": batch,
            "guidance_embedding_scale": guidance_embedding_scale,
            "bypass_guidance_embedding": bypass_guidance_embedding,
        }
        kwargs |= {name: value for name, value in declared.items() if declares(self.get_noise_prediction, name)}
        if not guided:
            return self.get_noise_prediction(x, t, embeds, **kwargs)
        without, with_prompt = self.get_noise_prediction(torch.cat([x, x]), torch.cat([t, t]), embeds, **kwargs).chunk(2)
        return without + guidance_scale * (with_prompt - without)

    def multistage_range(self, stage: int) -> tuple[float, float]:
        """(low, high) of stage number `stage` in timesteps: it covers low < t <= high."""
        bounds = [1.0, *self.multistage_boundaries]
        return bounds[stage + 1] * flow.NUM_TIMESTEPS, bounds[stage] * flow.NUM_TIMESTEPS

    # -- previews -----------------------------------------------------------------------------------------------------------

    def prepare_sample_prompt_context(self, gen_config: GenerateImageConfig) -> None:
        """Called right before a preview's prompts are encoded, for models whose embeds depend on the picture to be made."""

    def get_generation_pipeline(self) -> Any:
        """Whatever `generate_single_image` samples with; it sees embeds, never text. Called once per round of previews."""
        raise NotImplementedError(f"{type(self).__name__} must override get_generation_pipeline")

    def generate_single_image(
        self,
        pipeline: Any,
        gen_config: GenerateImageConfig,
        conditional_embeds: Any,
        unconditional_embeds: Any,
        generator: torch.Generator,
        extra: dict[str, Any],
    ) -> Any:
        """One picture (a PIL image), clip (a list of PIL frames, or models.batch.Clip with sound) or sound (models.batch.Audio).
        Starting noise comes from `generator`, a CPU one, so that it is the same on every device."""
        raise NotImplementedError(f"{type(self).__name__} must override generate_single_image")

    def generate_batch(
        self,
        pipeline: Any,
        gen_configs: Sequence[GenerateImageConfig],
        conditional_embeds: Any,
        unconditional_embeds: Any,
        generators: Sequence[torch.Generator],
    ) -> list[Any]:
        """Optional: several in one forward pass, each as `generate_single_image` makes it alone, with its own generator. They have
        size, steps, guidance and sampler in common and no control images; the embeds are those of all prompts, joined."""
        raise NotImplementedError(f"{type(self).__name__} makes one picture at a time")

    def generate_group(
        self,
        pipeline: Any,
        image_configs: Sequence[GenerateImageConfig],
        embeds: Callable[[GenerateImageConfig], tuple[Embeds, Embeds]],
    ) -> list[Made]:
        """Pictures that may share a pass, in order; `embeds` gives the (conditional, unconditional) ones of each. See groups.make."""
        return groups.make(self, pipeline, image_configs, embeds)

    def generate_images(
        self,
        image_configs: Sequence[GenerateImageConfig],
        embeds: Callable[[GenerateImageConfig], tuple[Embeds, Embeds]],
        batch_size: int = 1,
    ) -> Iterator[Made]:
        """One round, in order: at most `batch_size` pictures at a time, where the architecture offers that."""
        pipeline = self.get_generation_pipeline()
        for places in groups.groups(image_configs, batch_size):
            yield from self.generate_group(pipeline, [image_configs[place] for place in places], embeds)

    # -- saving and adapters ------------------------------------------------------------------------------------------------

    def get_model_to_train(self) -> nn.Module:
        """The module that adapters attach to, or whose weights a full fine-tune trains."""
        return self.model  # type: ignore[no-any-return]

    def get_transformer_block_names(self) -> list[str] | None:
        """Adapters attach only to layers whose path contains one of these; None: to all. A job's `network` may say otherwise."""
        return None

    def enable_gradient_checkpointing(self) -> None:
        """Recompute activations in the backward pass: the network's own method, or its flag `gradient_checkpointing`, which its
        forward must test under torch.is_grad_enabled() and never under self.training."""
        root = self.get_model_to_train()
        if callable(enable := getattr(root, "enable_gradient_checkpointing", None)):
            enable()
        else:
            root.gradient_checkpointing = True  # type: ignore[assignment]

    def set_attention_backend(self, name: str) -> None:
        """Choose the attention kernel of every module that has the flag. Raises UserError for an unknown name and for a kernel that
        is not installed."""
        set_attention_backend(self.get_model_to_train(), name)

    def load_training_adapter(self, path: Path) -> None:
        """The pattern for distilled models: a LoRA that undoes the distillation is merged into the frozen weights while training,
        and taken off again in previews, which then show the distilled model with what was learned. Call it in load_model, before
        quantization."""
        self.assistant_lora = files.put_training_adapter(self, path)

    def get_base_model_version(self) -> str:
        """What saved files say they were trained on (`ss_base_model_version` in the header)."""
        return self.arch or "unknown"

    def save_model(self, output_path: Path, meta: dict[str, str], save_dtype: torch.dtype) -> None:
        """A full fine-tune's weights as a file that `model.name_or_path` can name. `meta` goes into the header."""
        tensors = {name: tensor.to(save_dtype) for name, tensor in self.get_model_to_train().state_dict().items()}
        save_tensors(tensors, output_path, meta)

    def save_lora(self, state_dict: dict[str, torch.Tensor], output_path: str, metadata: dict[str, str]) -> None:
        """Write an adapter, under public keys and in its dtype, as this file or as several of the same stem: by default one for each
        expert of a model that has two, NAME_high_noise and NAME_low_noise."""
        files.save_lora(self, state_dict, Path(output_path), metadata)

    def load_lora(self, file: str) -> dict[str, torch.Tensor]:
        """What `save_lora` wrote, under public keys; of a pair, either name is enough."""
        return files.load_lora(self, Path(file))

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
