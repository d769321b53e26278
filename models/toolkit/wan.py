"""`toolkit.models.wan21.wan21`: the video model that later folders derive from, on diffusers' parts."""

from pathlib import Path
from typing import Any

import torch
from diffusers import AutoencoderKLWan, WanPipeline, WanTransformer3DModel
from transformers import UMT5EncoderModel

from models.components import load_part, load_text_encoder, load_tokenizer, part_folder
from models.quanto import quanto
from models.toolkit import quantize
from models.toolkit.base_model import BaseModel
from models.toolkit.embeds import PromptEmbeds
from models.toolkit.samplers import CustomFlowMatchEulerDiscreteScheduler
from models.toolkit.wan_frames import normalised, original

MAX_TOKENS = 512
LORA_NAMES = (
    (".attn1.", ".self_attn."),
    (".attn2.", ".cross_attn."),
    (".to_out.0.", ".o."),
    (".to_q.", ".q."),
    (".to_k.", ".k."),
    (".to_v.", ".v."),
    (".add_k_proj.", ".k_img."),
    (".add_v_proj.", ".v_img."),
    (".ffn.net.0.proj.", ".ffn.0."),
    (".ffn.net.2.", ".ffn.2."),
)

AggressiveWanUnloadPipeline = WanPipeline


class Wan21(BaseModel):
    """Text to video: transformer, VAE (4 frames a latent frame, all but the first) and UMT5."""

    arch = "wan21"  # type: ignore[misc]
    _wan_vae_path: str | None = None

    def __init__(self, device: Any, model_config: Any, dtype: Any = "bf16", *args: Any, **kwargs: Any) -> None:
        super().__init__(device, model_config, dtype, *args, **kwargs)
        self.is_flow_matching = self.is_transformer = True
        self.target_lora_modules = ["WanTransformer3DModel"]

    @staticmethod
    def get_train_scheduler() -> Any:
        return CustomFlowMatchEulerDiscreteScheduler(num_train_timesteps=1000, shift=3.0, use_dynamic_shifting=False)  # type: ignore[no-untyped-call]

    def get_bucket_divisibility(self) -> int:
        return 16

    def load_wan_transformer(self, transformer_path: str, subfolder: str | None = None) -> Any:
        folder = part_folder(str(transformer_path), subfolder or "transformer")
        made = load_part(WanTransformer3DModel, folder, self.torch_dtype)
        if self.model_config.quantize:
            quantize.quantize_model(self, made)
        return made.to(self.device_torch)

    def load_model(self) -> None:
        """From a diffusers folder; VAE, text encoder and tokenizer from `extras_name_or_path`."""
        config, dtype = self.model_config, self.torch_dtype
        path, extras = config.name_or_path, config.extras_name_or_path
        self.print_and_status_update("Loading transformer")
        local = Path(path) / "transformer"
        found = (str(local), None) if local.is_dir() else (path, "transformer")
        self.model = self.load_wan_transformer(*found)
        self.print_and_status_update("Loading text encoder")
        self.tokenizer = load_tokenizer(extras)
        encoder = load_text_encoder(extras, "text_encoder", UMT5EncoderModel, dtype)
        if config.quantize_te:
            quantize.quantize(encoder, weights=quantize.get_qtype(config.qtype_te))
            quanto.freeze(encoder)
        self.text_encoder = encoder.to(self.te_device_torch)
        self.print_and_status_update("Loading VAE")
        vae_path = config.vae_path or (extras if (Path(extras) / "vae").is_dir() else self._wan_vae_path or extras)
        vae = load_part(AutoencoderKLWan, part_folder(vae_path, "vae"), self.vae_torch_dtype)
        self.vae = vae.to(self.vae_device_torch)
        self.noise_scheduler = type(self).get_train_scheduler()
        self.pipeline = WanPipeline(
            tokenizer=self.tokenizer,
            text_encoder=self.text_encoder,
            transformer=self.model if isinstance(self.model, WanTransformer3DModel) else None,
            vae=self.vae,
            scheduler=self.noise_scheduler,
        )

    def get_prompt_embeds(self, prompt: list[str], control_images: Any = None) -> Any:
        """(B, 512, D) features of UMT5, zero behind each prompt's end."""
        texts = [prompt] if isinstance(prompt, str) else prompt
        inputs = self.tokenizer(texts, padding="max_length", max_length=MAX_TOKENS, truncation=True, return_tensors="pt")
        inputs = inputs.to(self.text_encoder.device)
        features = self.text_encoder(inputs.input_ids, inputs.attention_mask).last_hidden_state
        return PromptEmbeds((features * inputs.attention_mask[..., None]).to(self.torch_dtype))

    def encode_images(self, image_list: Any, device: Any = None, dtype: Any = None) -> torch.Tensor:
        """Pictures (3, H, W) as one frame, clips (T, 3, H, W): latents (B, C, F, h, w), normalised per channel."""
        pixels = torch.stack(list(image_list)).to(self.vae.device, self.vae.dtype)
        clips = pixels[:, :, None] if pixels.ndim == 4 else pixels.transpose(1, 2)
        latents = normalised(self.vae, self.vae.encode(clips).latent_dist.mode())
        return latents.to(device or self.vae_device_torch, dtype or self.vae_torch_dtype)

    def decode_latents(self, latents: torch.Tensor, device: Any = None, dtype: Any = None) -> torch.Tensor:
        pixels: torch.Tensor = self.vae.decode(original(self.vae, latents.to(self.vae.device, self.vae.dtype))).sample
        return pixels.to(device or self.device_torch, dtype or self.torch_dtype)

    def get_noise_prediction(
        self, latent_model_input: torch.Tensor, timestep: torch.Tensor, text_embeddings: Any, **kwargs: Any
    ) -> torch.Tensor:
        kwargs.pop("batch", None)
        prediction: torch.Tensor = self.model(
            hidden_states=latent_model_input,
            timestep=timestep,
            encoder_hidden_states=text_embeddings.text_embeds,
            return_dict=False,
            **kwargs,
        )[0]
        return prediction

    def get_generation_pipeline(self) -> Any:
        return WanPipeline(
            tokenizer=self.tokenizer,
            text_encoder=self.text_encoder,
            transformer=self.model,
            vae=self.vae,
            scheduler=type(self).get_train_scheduler(),
        )

    def generate_single_image(
        self, pipeline: Any, gen_config: Any, conditional_embeds: Any, unconditional_embeds: Any, generator: Any, extra: Any
    ) -> Any:
        frames = pipeline(
            prompt_embeds=conditional_embeds.text_embeds.to(self.device_torch, self.torch_dtype),
            negative_prompt_embeds=unconditional_embeds.text_embeds.to(self.device_torch, self.torch_dtype),
            height=gen_config.height,
            width=gen_config.width,
            num_frames=gen_config.num_frames,
            num_inference_steps=gen_config.num_inference_steps,
            guidance_scale=gen_config.guidance_scale,
            latents=gen_config.latents,
            generator=generator,
            output_type="pil",
            return_dict=False,
            **extra,
        )[0][0]
        return frames if gen_config.num_frames > 1 else frames[0]

    def get_transformer_block_names(self) -> list[str]:
        return ["blocks"]

    def convert_lora_weights_before_save(self, state_dict: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {_renamed(key.replace("transformer.", "diffusion_model.", 1), 0, 1): t for key, t in state_dict.items()}

    def convert_lora_weights_before_load(self, state_dict: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {_renamed(key.replace("diffusion_model.", "transformer.", 1), 1, 0): t for key, t in state_dict.items()}


def _renamed(key: str, old: int, new: int) -> str:
    for pair in LORA_NAMES:
        key = key.replace(pair[old], pair[new])
    return key
