"""ExampleModel: every method that an architecture overrides, with when it is called, what comes in and what must come out.

Read README.md beside this file first. Copy the folder, rename, and replace what is different.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
from diffusers import AutoencoderKL
from PIL import Image
from transformers import Qwen3Model

from models.archs.example.network import ExampleTransformer2DModel
from models.archs.example.pipeline import ExamplePipeline
from models.base import BaseModel
from models.base_weights import load_module, open_weights
from models.batch import Batch, GenerateImageConfig
from models.components import check_prompts, load_part, load_text_encoder, load_tokenizer, part_folder
from models.prompt_embeds import AdvancedPromptEmbeds, pad_prompt_embeds
from models.weightfiles import read_header, saved_config
from models.weights import json_metadata, save_tensors

VAE_FACTOR = 8  # pixels per latent pixel
PATCH = 2  # latent pixels per token


class ExampleModel(BaseModel):
    """A flow-matching text-to-image model."""

    arch: ClassVar[str] = "example"
    is_flow_matching = True
    is_transformer = True
    use_old_lokr_format = False  # so for every new architecture

    def load_model(self) -> None:
        """Called once. In: self.model_config, the job's `model` section with its paths resolved. Out: self.model, .vae,
        .text_encoder and .tokenizer, frozen parts in eval mode without gradients."""
        where = Path(self.model_config.name_or_path)
        base = where if where.is_dir() else where.parent
        network = where / "transformer" / "model.safetensors" if where.is_dir() else where
        self.model = load_network(network, self.torch_dtype).to(self.load_device_torch)
        encoder = str(self.model_config.te_name_or_path or base)
        self.tokenizer = load_tokenizer(encoder)
        self.text_encoder = load_text_encoder(encoder, "text_encoder", Qwen3Model, self.te_torch_dtype).to(self.te_device_torch)
        check_prompts(self.tokenizer, self.text_encoder, self._tokens)
        vae = part_folder(str(self.model_config.vae_path or base), "vae")
        self.vae = load_part(AutoencoderKL, vae, self.vae_torch_dtype).to(self.vae_device_torch)

    def get_bucket_divisibility(self) -> int:
        """Called by the data side. Out: the pixel multiple of widths and heights, as on the card."""
        return VAE_FACTOR * PATCH

    def get_prompt_embeds(self, prompt: list[str], control_images: Any = None) -> AdvancedPromptEmbeds:
        """Called once per caption and prompt, and for "". In: texts. Out: per text a 2-D (L, D) tensor at its natural length. More
        axes (several encoder layers, say) are flattened into D here and restored in get_noise_prediction. The tokenizer cuts what is
        too long (`truncation`, `max_length`): there plans and runs see it and name it."""
        embeds = []
        for text in prompt:
            tokens = self._tokens(text).to(self.te_device_torch)
            hidden = self.text_encoder(input_ids=tokens.input_ids, attention_mask=tokens.attention_mask).last_hidden_state
            embeds.append(hidden[0].to(self.torch_dtype))
        return AdvancedPromptEmbeds(text_embeds=embeds)

    def _tokens(self, text: str) -> Any:
        # An empty text would give no tokens at all; a space gives one, and stands for "no caption".
        return self.tokenizer(
            text or " ", return_tensors="pt", truncation=True, max_length=self.model_config.model_kwargs.max_text_length
        )

    @property
    def text_embedding_space_version(self) -> str:
        """Called for cache keys. Out: a text that changes whenever get_prompt_embeds gives other numbers."""
        return "example_te_1"

    def condition_noisy_latents(self, latents: torch.Tensor, batch: Batch) -> torch.Tensor:
        """Called every step after noise was added, and by the pipeline. In: noisy latents (B, C, h, w). Out: the same, perhaps with
        more channels. An edit model encodes batch.control_tensor here: see the README."""
        return latents

    def get_noise_prediction(
        self, latent_model_input: torch.Tensor, timestep: torch.Tensor, text_embeddings: AdvancedPromptEmbeds, **kwargs: Any
    ) -> torch.Tensor:
        """Called every step under autograd, and by the pipeline without. In: latents (B, C, h, w), timesteps (B,) on 0..1000 with
        1000 pure noise, embeds of B prompts. Out: the velocity noise - clean, (B, C, h, w). A network whose own time runs the
        other way gets 1 - t here, and its output is negated if it points from noise to data."""
        text_BLD, mask_BL = pad_prompt_embeds(
            text_embeddings.text_embeds, self.device_torch, self.torch_dtype, padding_side=self.te_padding_side
        )
        prediction: torch.Tensor = self.model(latent_model_input, timestep / 1000, text_BLD, mask_BL)
        return prediction

    def get_generation_pipeline(self) -> ExamplePipeline:
        """Called once per round of previews."""
        return ExamplePipeline(self)

    def generate_single_image(
        self,
        pipeline: ExamplePipeline,
        gen_config: GenerateImageConfig,
        conditional_embeds: AdvancedPromptEmbeds,
        unconditional_embeds: AdvancedPromptEmbeds,
        generator: torch.Generator,
        extra: dict[str, Any],
    ) -> Image.Image:
        """Called per preview. In: embeds made beforehand, a CPU generator seeded for this picture. Out: a PIL image."""
        return self.generate_batch(pipeline, [gen_config], conditional_embeds, unconditional_embeds, [generator])[0]

    def generate_batch(
        self,
        pipeline: ExamplePipeline,
        gen_configs: Sequence[GenerateImageConfig],
        conditional_embeds: AdvancedPromptEmbeds,
        unconditional_embeds: AdvancedPromptEmbeds,
        generators: Sequence[torch.Generator],
    ) -> list[Image.Image]:
        """Optional; called for several previews with one size, steps, guidance and sampler, and no control images. In: embeds of all
        prompts, a generator for each. Out: a PIL image for each, equal to the one that is made alone."""
        pairs = zip(gen_configs, generators, strict=True)
        latents = torch.cat([self.starting_noise(config, generator) for config, generator in pairs])
        batch = self.preview_batch(gen_configs[0], latents)
        latents = pipeline(latents, gen_configs[0], conditional_embeds, unconditional_embeds, batch)
        pixels_BCHW = self.decode_latents(latents, dtype=torch.float32).clamp(-1, 1)
        levels_BHWC = ((pixels_BCHW + 1) * 127.5).round().to(torch.uint8).permute(0, 2, 3, 1).cpu().numpy()
        return [Image.fromarray(levels_HWC) for levels_HWC in levels_BHWC]

    def starting_noise(self, gen_config: GenerateImageConfig, generator: torch.Generator) -> torch.Tensor:
        """(1, C, h, w), or the latents that the config brings."""
        if gen_config.latents is not None:
            return gen_config.latents.to(self.device_torch, self.torch_dtype)
        shape = (1, self.model.config["out_channels"], gen_config.height // VAE_FACTOR, gen_config.width // VAE_FACTOR)
        return torch.randn(shape, generator=generator).to(self.device_torch, self.torch_dtype)

    def preview_batch(self, gen_config: GenerateImageConfig, latents: torch.Tensor) -> Batch:
        """What a training batch would bring to condition_noisy_latents; an edit model puts its control images in."""
        return Batch(latents, [gen_config.prompt])

    def save_model(self, output_path: Path, meta: dict[str, str], save_dtype: torch.dtype) -> None:
        """Called for a full fine-tune. Out: one file that `model.name_or_path` can name; the other parts are then looked for beside
        it, or where te_name_or_path and vae_path say."""
        tensors = {name: tensor.to(save_dtype) for name, tensor in self.model.state_dict().items()}
        save_tensors(tensors, output_path, {**meta, **json_metadata(config=self.model.config)})


def load_network(path: Path, dtype: torch.dtype) -> ExampleTransformer2DModel:
    """The network from its file. `load_module` builds it without memory for weights, refuses a file with missing, surplus or reshaped
    keys, and reads 8-bit weights with their scales; `leaves_out` would name keys that the network has no use for."""
    config = saved_config(read_header(path), ("text_features", "depth"))
    with open_weights(path) as weights:
        return load_module(lambda: ExampleTransformer2DModel(**config), weights, dtype)


def write_tiny(folder: Path) -> None:
    """A tiny random checkpoint in the real layout, tokenizer included, made without a download."""
    from transformers import Qwen3Config, Qwen3Model

    from models.tiny import byte_tokenizer, tiny_vae

    torch.manual_seed(0)
    tokenizer = byte_tokenizer()
    tokenizer.save_pretrained(folder / "tokenizer")
    encoder = Qwen3Config(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, head_dim=16, max_position_embeddings=1024,
    )  # fmt: skip
    Qwen3Model(encoder).save_pretrained(folder / "text_encoder")
    tiny_vae(latent_channels=4).save_pretrained(folder / "vae")
    network = ExampleTransformer2DModel(in_channels=4, out_channels=4, text_features=32, width=64, depth=2, heads=4)
    save_tensors(network.state_dict(), folder / "transformer" / "model.safetensors", json_metadata(config=network.config))
