"""FLUX.2 klein: a flow transformer over packed latents, a Qwen3 text encoder, and reference pictures as further tokens.

Latents are the VAE's 32 channels in 2x2 patches, (B, 128, H / 16, W / 16), normalised by the VAE's batch statistics: one latent pixel
is one token. Captions are always the same number of tokens, padding included, for the transformer attends to the padding too.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
from diffusers import AutoencoderKLFlux2, FlowMatchEulerDiscreteScheduler, Flux2Transformer2DModel
from PIL import Image
from transformers import Qwen3Model

from models.archs.flux2_klein import lokr_keys, lora_keys, references
from models.archs.flux2_klein.latents import normalise, pack, positions, restore, sigmas, text_positions, unpack
from models.archs.flux2_klein.tiny import write_tiny as write_tiny
from models.base import BaseModel
from models.base_weights import load_module, open_weights
from models.batch import Batch, GenerateImageConfig
from models.components import (
    check_prompts,
    load_part,
    load_scheduler,
    load_text_encoder,
    load_tokenizer,
    part_folder,
    pipeline_index,
)
from models.data.pictures import open_picture
from models.errors import UserError
from models.flow import NUM_TIMESTEPS
from models.memo import TensorMemo
from models.precise import finite
from models.prompt_embeds import AdvancedPromptEmbeds
from models.samplers import euler
from models.weightfiles import read_header, read_json, saved_config
from models.weights import json_metadata, save_tensors

PIXELS_PER_LATENT = 16
SCHEDULER = "scheduler_config.json"
TINY_OPTIONS = {"max_text_length": 64}  # every caption is padded to this length, which is most of a tiny model's work
TEXT_LAYERS = (9, 18, 27)  # outputs of these decoder layers, side by side, are a token's features
NUM_TEXT_LAYERS = 28  # one more than is read, for the last layer's output carries the final norm


class Flux2KleinModel(BaseModel):
    """See README.md for what it loads and saves."""

    arch: ClassVar[str] = "flux2_klein_4b"
    use_old_lokr_format = False
    is_flow_matching = True
    is_transformer = True
    has_multiple_control_images = True
    use_raw_control_images = True

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.is_distilled = False
        self._references = TensorMemo()

    # -- loading ------------------------------------------------------------------------------------------------------------

    def load_model(self) -> None:
        """From a pipeline's folder or hub id; or the transformer from a file that `save_model` wrote and the rest from where
        te_name_or_path and vae_path say."""
        where = str(self.model_config.name_or_path)
        from_file = Path(where).is_file()
        encoder = self.model_config.te_name_or_path or (None if from_file else where)
        vae = self.model_config.vae_path or (None if from_file else where)
        if encoder is None or vae is None:
            raise UserError(
                f"{Path(where).name} holds only the transformer: te_name_or_path and vae_path must say where the text encoder and the "
                "VAE are, for example in the folder that it was trained from",
                code="missing_part",
            )
        self.model, about = load_file(Path(where), self.torch_dtype) if from_file else self._load_folder(where)
        self.model.to(self.load_device_torch)
        at = Path(where) if from_file else part_folder(where, "scheduler", SCHEDULER) / SCHEDULER
        self.noise_scheduler = load_scheduler(FlowMatchEulerDiscreteScheduler, about["scheduler"], at)
        self.is_distilled = about["is_distilled"]
        self.vae = load_part(AutoencoderKLFlux2, part_folder(str(vae), "vae"), self.vae_torch_dtype).to(self.vae_device_torch)
        self.tokenizer = load_tokenizer(str(encoder))
        self.text_encoder = load_text_encoder(
            str(encoder), "text_encoder", Qwen3Model, self.te_torch_dtype, num_layers=NUM_TEXT_LAYERS
        ).to(self.te_device_torch)
        check_fit(self.model, self.vae, self.text_encoder)
        check_prompts(self.tokenizer, self.text_encoder, self._tokens)

    def _load_folder(self, where: str) -> tuple[Any, dict[str, Any]]:
        index = read_json(pipeline_index(where))
        scheduler = part_folder(where, "scheduler", SCHEDULER) / SCHEDULER
        model = load_part(Flux2Transformer2DModel, part_folder(where, "transformer"), self.torch_dtype)
        return model, {
            "scheduler": read_json(scheduler),
            "is_distilled": bool(index.get("is_distilled", False)),
        }

    def get_bucket_divisibility(self) -> int:
        return PIXELS_PER_LATENT

    def get_transformer_block_names(self) -> list[str]:
        return ["transformer_blocks", "single_transformer_blocks"]

    # -- before training ----------------------------------------------------------------------------------------------------

    def encode_images(self, image_list: Any, device: Any = None, dtype: torch.dtype | None = None) -> torch.Tensor:
        pixels = image_list if isinstance(image_list, torch.Tensor) else torch.stack(list(image_list))
        vae = self.vae.to(self.vae_device_torch)
        mode = vae.encode(pixels.to(self.vae_device_torch, vae.dtype)).latent_dist.mode()
        return normalise(mode, vae).to(device or self.device_torch, dtype or self.torch_dtype)

    def decode_latents(self, latents: torch.Tensor, device: Any = None, dtype: torch.dtype | None = None) -> torch.Tensor:
        vae = self.vae.to(self.vae_device_torch)
        pixels: torch.Tensor = vae.decode(restore(latents.to(self.vae_device_torch), vae).to(vae.dtype)).sample
        return pixels.to(device or self.device_torch, dtype or self.torch_dtype)

    def get_prompt_embeds(self, prompt: list[str], control_images: Any = None) -> AdvancedPromptEmbeds:
        """(max_text_length, 3 x the encoder's width) per prompt: the prompt as a user's message, padded, and three layers' outputs side
        by side. The encoder masks the padding; its outputs there are features like any other. Longer prompts are cut."""
        embeds = []
        for text in prompt:
            tokens = self._tokens(text).to(self.te_device_torch)
            hidden = self.text_encoder(**tokens, output_hidden_states=True, use_cache=False).hidden_states
            embeds.append(torch.cat([hidden[layer][0] for layer in TEXT_LAYERS], dim=-1))
        return AdvancedPromptEmbeds(text_embeds=embeds)

    def _tokens(self, text: str) -> Any:
        length = self.model_config.model_kwargs.max_text_length
        said = self.tokenizer.apply_chat_template(
            [{"role": "user", "content": text}], tokenize=False, add_generation_prompt=True, enable_thinking=False
        )
        return self.tokenizer(said, return_tensors="pt", padding="max_length", truncation=True, max_length=length)

    @property
    def text_embedding_space_version(self) -> str:
        return f"flux2_klein_qwen3_{self.model_config.model_kwargs.max_text_length}_1"

    @property
    def latent_space_version(self) -> str:
        return "flux2_vae_1"

    # -- a training step ----------------------------------------------------------------------------------------------------

    def get_noise_prediction(
        self,
        latent_model_input: torch.Tensor,
        timestep: torch.Tensor,
        text_embeddings: AdvancedPromptEmbeds,
        batch: Batch | None = None,
        **kwargs: Any,
    ) -> torch.Tensor:
        height, width = latent_model_input.shape[-2:]
        with torch.no_grad():
            encoded = [
                [self._reference(picture, height, width) for picture in pictures]
                for pictures in references.of_batch(batch, latent_model_input.shape[0])
            ]
        return self.velocity(latent_model_input, timestep, text_embeddings.text_embeds, encoded)

    def velocity(
        self,
        latents: torch.Tensor,
        timesteps: torch.Tensor,
        texts: Sequence[torch.Tensor],
        encoded: Sequence[Sequence[torch.Tensor]],
    ) -> torch.Tensor:
        """The prediction for latents (B, 128, h, w), timesteps (B,) on 0..1000, per item a text (L, D) and reference latents
        (128, h_i, w_i). Items with equal lengths and reference sizes share a forward pass: the transformer has one set of positions
        for a batch and no mask, so nothing can be padded."""
        groups: dict[Any, list[int]] = defaultdict(list)
        for item, (text, pictures) in enumerate(zip(texts, encoded, strict=True)):
            groups[text.shape[0], tuple(picture.shape[-2:] for picture in pictures)].append(item)
        parts = [
            self._forward(
                latents[members],
                timesteps[members],
                torch.stack([texts[item] for item in members]),
                [torch.stack(same) for same in zip(*(encoded[item] for item in members), strict=True)],
            )
            for members in groups.values()
        ]
        order = [item for members in groups.values() for item in members]
        return torch.cat(parts)[torch.tensor(order, device=latents.device).argsort()]

    def _forward(
        self, latents: torch.Tensor, timesteps: torch.Tensor, text_BLD: torch.Tensor, pictures: list[torch.Tensor]
    ) -> torch.Tensor:
        height, width = latents.shape[-2:]
        tokens = torch.cat([pack(latents), *(pack(picture) for picture in pictures)], dim=1)
        sizes = [(height, width), *((picture.shape[-2], picture.shape[-1]) for picture in pictures)]
        predicted = self.model(
            hidden_states=tokens.to(self.torch_dtype),
            timestep=timesteps / NUM_TIMESTEPS,
            encoder_hidden_states=text_BLD.to(self.torch_dtype),
            img_ids=positions(sizes).to(latents.device),
            txt_ids=text_positions(text_BLD.shape[1]).to(latents.device),
            return_dict=False,
        )[0]
        return unpack(predicted[:, : height * width], height, width)

    def _reference(self, pixels_CHW: torch.Tensor, height: int, width: int) -> torch.Tensor:
        """A picture in [0, 1] as latents (128, h_i, w_i); height and width are those of the target's latents."""
        matched = height * width * PIXELS_PER_LATENT**2 if self.model_config.model_kwargs.match_target_res else None

        def encoded() -> torch.Tensor:
            fitted = references.fit(pixels_CHW, matched)[None] * 2 - 1
            latents = finite(
                self, "latents", lambda: self.encode_images(fitted, dtype=torch.float32), "the latents of a control picture"
            )
            return latents[0]

        return self._references.get(pixels_CHW, matched, encoded)

    # -- previews -----------------------------------------------------------------------------------------------------------

    def get_generation_pipeline(self) -> Callable[..., torch.Tensor]:
        """The Euler sampler over the guided velocity, on the schedule of diffusers' Flux2KleinPipeline."""

        def sample(
            noise: torch.Tensor,
            num_steps: int,
            scale: float,
            conditional: Sequence[torch.Tensor],
            unconditional: Sequence[torch.Tensor],
            encoded: Sequence[Sequence[torch.Tensor]],
        ) -> torch.Tensor:
            guided = scale > 1 and not self.is_distilled

            def velocity(x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
                t = t.to(x.device).expand(x.shape[0])
                with_prompt = self.velocity(x, t, conditional, encoded).to(x)
                if not guided:
                    return with_prompt
                without = self.velocity(x, t, unconditional, encoded).to(x)
                return without + scale * (with_prompt - without)

            times = sigmas(self.noise_scheduler, num_steps, noise.shape[-2] * noise.shape[-1]) * NUM_TIMESTEPS
            return euler(velocity, noise, times)

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
        """Guidance above 1 costs a second pass; a distilled model takes none. Control images are the references, in order."""
        return self.generate_batch(pipeline, [gen_config], conditional_embeds, unconditional_embeds, [generator])[0]

    def generate_batch(
        self,
        pipeline: Any,
        gen_configs: Sequence[GenerateImageConfig],
        conditional_embeds: AdvancedPromptEmbeds,
        unconditional_embeds: AdvancedPromptEmbeds,
        generators: Sequence[torch.Generator],
    ) -> list[Image.Image]:
        height, width = (side // PIXELS_PER_LATENT for side in (gen_configs[0].height, gen_configs[0].width))
        noises, encoded = [], []
        for config, generator in zip(gen_configs, generators, strict=True):
            drawn = torch.randn(1, self.model.config.in_channels, height, width, generator=generator)
            noises.append(drawn if config.latents is None else config.latents)
            pictures = (references.unit_pixels(open_picture(path)) for path in config.control_images)
            encoded.append([self._reference(picture, height, width) for picture in pictures])
        conditional, unconditional = (
            embeds.to(self.device_torch, self.torch_dtype).text_embeds for embeds in (conditional_embeds, unconditional_embeds)
        )
        steps, scale = gen_configs[0].num_inference_steps, gen_configs[0].guidance_scale
        noise = torch.cat(noises).to(self.device_torch, torch.float32)
        latents = pipeline(noise, steps, scale, conditional, unconditional, encoded)
        pixels_BCHW = self.decode_latents(latents, dtype=torch.float32)
        levels_BHWC = ((pixels_BCHW / 2 + 0.5).clamp(0, 1) * 255).round().to(torch.uint8).permute(0, 2, 3, 1).cpu().numpy()
        return [Image.fromarray(levels_HWC) for levels_HWC in levels_BHWC]

    # -- saving -------------------------------------------------------------------------------------------------------------

    def save_model(self, output_path: Path, meta: dict[str, str], save_dtype: torch.dtype) -> None:
        """The transformer under diffusers' names; the header's `config` holds what else `load_file` needs."""
        tensors = {name: tensor.to(save_dtype) for name, tensor in self.model.state_dict().items()}
        about = {
            "transformer": _plain(self.model.config),
            "scheduler": _plain(self.noise_scheduler.config),
            "is_distilled": self.is_distilled,
        }
        save_tensors(tensors, output_path, {**meta, **json_metadata(config=about)})

    def convert_lora_weights_before_save(self, state_dict: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return lokr_keys.to_public(state_dict) if lokr_keys.is_lokr(state_dict) else lora_keys.to_public(state_dict)

    def convert_lora_weights_before_load(self, state_dict: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return lokr_keys.to_ours(state_dict) if lokr_keys.is_lokr(state_dict) else lora_keys.to_ours(state_dict)


def load_file(path: Path, dtype: torch.dtype) -> tuple[Any, dict[str, Any]]:
    """The transformer that `save_model` wrote, frozen, and what the header says beside it. Raises UserError if the file is another
    model's."""
    about = saved_config(read_header(path), ("transformer", "scheduler", "is_distilled"))
    with open_weights(path) as weights:
        model: Any = load_module(lambda: Flux2Transformer2DModel.from_config(about["transformer"]), weights, dtype)
    return model.eval().requires_grad_(False), about


def check_fit(model: Any, vae: Any, text_encoder: Any) -> None:
    """Raises UserError if the parts are not of one model."""
    if model.config.guidance_embeds:
        raise UserError("the transformer embeds guidance: it is FLUX.2 dev, not klein", code="bad_weights")
    width = len(TEXT_LAYERS) * text_encoder.config.hidden_size
    if width != model.config.joint_attention_dim:
        raise UserError(
            f"the text encoder gives {width} features a token; this transformer takes {model.config.joint_attention_dim}",
            code="bad_weights",
        )
    if 4 * vae.config.latent_channels != model.config.in_channels:
        raise UserError(
            f"the VAE's {vae.config.latent_channels} channels pack to {4 * vae.config.latent_channels}; this transformer takes "
            f"{model.config.in_channels}",
            code="bad_weights",
        )


def _plain(config: Any) -> dict[str, Any]:
    return {key: value for key, value in config.items() if not key.startswith("_")}
