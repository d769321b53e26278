"""The template turned into other kinds of model, each the way its README says, at tiny size. Used by the contract's tests."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from diffusers import DDPMScheduler
from PIL import Image

from models import flow
from models.arch import Arch
from models.archs.example.card import ARCHS
from models.archs.example.model import ExampleModel, load_network
from models.archs.example.network import ExampleTransformer2DModel
from models.base import BaseModel
from models.batch import Audio, Batch, Clip, GenerateImageConfig
from models.conform import Subject, subject_for
from models.data.frames import snap_frames
from models.prompt_embeds import AdvancedPromptEmbeds
from models.weights import json_metadata, save_tensors
from worker.data.decode import pixels

CHANNELS = 4


def card(*capabilities: str, modality: str = "image") -> Arch:
    return ARCHS[0].model_copy(update={"capabilities": ("vae", *capabilities), "modality": modality})


def subject(cls: type[BaseModel], folder: Path, *capabilities: str, in_channels: int = CHANNELS) -> Subject:
    """The template's checkpoint with a network of `in_channels`, examined as `cls`."""
    made = subject_for(card(*capabilities), folder, cls)
    torch.manual_seed(0)
    network = ExampleTransformer2DModel(
        in_channels=in_channels, out_channels=CHANNELS, text_features=32, width=64, depth=2, heads=4
    )
    save_tensors(network.state_dict(), folder / "transformer" / "model.safetensors", json_metadata(config=network.config))
    made.card = made.card.model_copy(update={"code": f"{cls.__module__}:{cls.__name__}"})
    return made


class EditModel(ExampleModel):
    """One control image, on further channels."""

    def condition_noisy_latents(self, latents: torch.Tensor, batch: Batch) -> torch.Tensor:
        assert batch.control_tensor is not None
        return torch.cat([latents, self.encode_images(batch.control_tensor * 2 - 1)], dim=1).detach()

    def preview_batch(self, gen_config: GenerateImageConfig, latents: torch.Tensor) -> Batch:
        batch = super().preview_batch(gen_config, latents)
        batch.control_tensor = self.control(gen_config.control_images[0], gen_config)
        return batch

    def control(self, path: Path, gen_config: GenerateImageConfig) -> torch.Tensor:
        return (pixels(path, gen_config.width, gen_config.height)[None] + 1) / 2


class MultiReferenceModel(EditModel):
    """Several control images, their latents averaged on further channels."""

    has_multiple_control_images = True
    use_raw_control_images = True

    def condition_noisy_latents(self, latents: torch.Tensor, batch: Batch) -> torch.Tensor:
        assert batch.control_tensor_list is not None
        references = [self.encode_images([image * 2 - 1 for image in images]).mean(dim=0) for images in batch.control_tensor_list]
        return torch.cat([latents, torch.stack(references)], dim=1).detach()

    def preview_batch(self, gen_config: GenerateImageConfig, latents: torch.Tensor) -> Batch:
        batch = super().preview_batch(gen_config, latents)
        batch.control_tensor_list = [[self.control(path, gen_config)[0] for path in gen_config.control_images]]
        return batch


class SeeingModel(EditModel):
    """The text encoder sees the control image: its mean colour becomes one more token."""

    encode_control_in_text_embeddings = True

    def get_prompt_embeds(self, prompt: list[str], control_images: Any = None) -> AdvancedPromptEmbeds:
        embeds = super().get_prompt_embeds(prompt)
        if control_images is None:
            return embeds
        colour = control_images.mean(dim=(0, 2, 3))
        token = colour.repeat(11)[:32][None].to(self.torch_dtype)
        return AdvancedPromptEmbeds(text_embeds=[torch.cat([item, token]) for item in embeds.text_embeds])


class VideoModel(ExampleModel):
    """Clips: a picture VAE frame by frame, and frames folded into rows for the denoiser."""

    def encode_images(self, image_list: Any, device: Any = None, dtype: torch.dtype | None = None) -> torch.Tensor:
        clips = image_list if isinstance(image_list, torch.Tensor) else torch.stack(list(image_list))
        frames = super().encode_images(clips.flatten(0, 1), device, dtype)
        return frames.unflatten(0, clips.shape[:2]).transpose(1, 2)

    def decode_latents(self, latents: torch.Tensor, device: Any = None, dtype: torch.dtype | None = None) -> torch.Tensor:
        frames = super().decode_latents(latents.transpose(1, 2).flatten(0, 1), device, dtype)
        return frames.unflatten(0, (latents.shape[0], latents.shape[2]))

    def get_noise_prediction(
        self, latent_model_input: torch.Tensor, timestep: Any, text_embeddings: Any, **kwargs: Any
    ) -> torch.Tensor:
        count = latent_model_input.shape[2]
        rows = latent_model_input.transpose(1, 2).flatten(1, 1).transpose(1, 2).flatten(2, 3)
        folded = super().get_noise_prediction(rows, timestep, text_embeddings, **kwargs)
        return folded.unflatten(2, (count, -1))

    def starting_noise(self, gen_config: GenerateImageConfig, generator: torch.Generator) -> torch.Tensor:
        shape = (1, CHANNELS, gen_config.num_frames, gen_config.height // 8, gen_config.width // 8)
        return torch.randn(shape, generator=generator)

    def generate_single_image(
        self, pipeline: Any, gen_config: Any, conditional_embeds: Any, unconditional_embeds: Any, generator: Any, extra: Any
    ) -> Any:
        latents = self.starting_noise(gen_config, generator)
        batch = self.preview_batch(gen_config, latents)
        latents = pipeline(latents, gen_config, conditional_embeds, unconditional_embeds, batch)
        clip = ((self.decode_latents(latents)[0].clamp(-1, 1) + 1) * 127.5).round().to(torch.uint8)
        return [Image.fromarray(frame.permute(1, 2, 0).numpy()) for frame in clip]


class ShortenedVideoModel(VideoModel):
    """A VAE that compresses time: the first frame has a latent of its own, and so has every further group of four."""

    def encode_images(self, image_list: Any, device: Any = None, dtype: torch.dtype | None = None) -> torch.Tensor:
        latents = super().encode_images(image_list, device, dtype)
        groups = latents[:, :, 1:].unflatten(2, (-1, 4)).mean(dim=3)
        return torch.cat([latents[:, :, :1], groups], dim=2)

    def decode_latents(self, latents: torch.Tensor, device: Any = None, dtype: torch.dtype | None = None) -> torch.Tensor:
        frames = torch.cat([latents[:, :, :1], latents[:, :, 1:].repeat_interleave(4, dim=2)], dim=2)
        return super().decode_latents(frames, device, dtype)

    def get_frame_count_snapper(self) -> Any:
        return partial(snap_frames, stride=4)

    def starting_noise(self, gen_config: GenerateImageConfig, generator: torch.Generator) -> torch.Tensor:
        return super().starting_noise(replace(gen_config, num_frames=(gen_config.num_frames - 1) // 4 + 1), generator)


class LeftPaddedModel(ExampleModel):
    """Texts end at the same place, as language models want them; `masks` are those of its predictions."""

    te_padding_side = "left"

    def load_model(self) -> None:
        super().load_model()
        self.masks: list[torch.Tensor] = []
        self.model.register_forward_pre_hook(lambda _, args: self.masks.append(args[3]))


class DistilledModel(ExampleModel):
    """Trains with an adapter that undoes its distillation."""

    def load_model(self) -> None:
        super().load_model()
        if self.model_config.assistant_lora_path:
            self.load_training_adapter(Path(self.model_config.assistant_lora_path))


class ImageToVideoModel(VideoModel):
    """Clips whose first frame is given: its latent, repeated, on further channels."""

    def condition_noisy_latents(self, latents: torch.Tensor, batch: Batch) -> torch.Tensor:
        assert batch.tensor is not None
        first = self.encode_images(batch.tensor[:, :1]).expand(-1, -1, latents.shape[2], -1, -1)
        return torch.cat([latents, first], dim=1).detach()

    def preview_batch(self, gen_config: GenerateImageConfig, latents: torch.Tensor) -> Batch:
        batch = super().preview_batch(gen_config, latents)
        assert gen_config.ctrl_img is not None
        batch.tensor = pixels(gen_config.ctrl_img, gen_config.width, gen_config.height)[None, None]
        return batch


class Experts(torch.nn.Module):
    """Two networks; the mean timestep says which one answers."""

    def __init__(self, high: ExampleTransformer2DModel, low: ExampleTransformer2DModel, boundary: float) -> None:
        super().__init__()
        self.transformer_1, self.transformer_2, self.boundary = high, low, boundary

    @property
    def config(self) -> dict[str, Any]:
        return self.transformer_1.config

    def enable_gradient_checkpointing(self) -> None:
        self.transformer_1.gradient_checkpointing = self.transformer_2.gradient_checkpointing = True

    def forward(self, latents: torch.Tensor, time: torch.Tensor, *text: torch.Tensor) -> torch.Tensor:
        parts = [(self.transformer_1 if t > self.boundary else self.transformer_2) for t in time.tolist()]
        rows = [part(latents[i : i + 1], time[i : i + 1], *(item[i : i + 1] for item in text)) for i, part in enumerate(parts)]
        return torch.cat(rows)


class MultistageModel(ExampleModel):
    """Two experts by timestep range."""

    is_multistage = True

    def load_model(self) -> None:
        super().load_model()
        self.multistage_boundaries = [0.6, 0.0]
        self.trainable_multistage_boundaries = [0, 1]
        where = Path(self.model_config.name_or_path)
        file = where / "transformer" / "model.safetensors" if where.is_dir() else where.with_suffix(".low")
        self.model = Experts(self.model, load_network(file, self.torch_dtype), 0.6)

    def save_model(self, output_path: Path, meta: dict[str, str], save_dtype: torch.dtype) -> None:
        for expert, path in (
            (self.model.transformer_1, output_path),
            (self.model.transformer_2, output_path.with_suffix(".low")),
        ):
            tensors = {name: tensor.to(save_dtype) for name, tensor in expert.state_dict().items()}
            save_tensors(tensors, path, {**meta, **json_metadata(config=expert.config)})


class EpsilonModel(ExampleModel):
    """Predicts the noise at the whole timesteps of a DDPM scheduler, or the velocity v if the scheduler says so."""

    is_flow_matching = False

    @staticmethod
    def get_train_scheduler() -> Any:
        return DDPMScheduler(beta_schedule="scaled_linear", beta_start=0.00085, beta_end=0.012)

    def get_loss_target(self, *, noise: torch.Tensor, batch: Batch, timesteps: Any = None) -> torch.Tensor:
        if self.noise_scheduler.config.prediction_type == "v_prediction":
            return self.noise_scheduler.get_velocity(batch.latents, noise, timesteps)
        return super().get_loss_target(noise=noise, batch=batch)


class AudioModel(VideoModel):
    """Clips with a sound made from the first latents, sounds as latents (B, samples), and a prediction of their velocity."""

    def encode_audio(self, audio_data_list: Any) -> torch.Tensor:
        return torch.stack([sound["waveform"].mean(dim=0).unfold(0, 100, 100).mean(dim=1) for sound in audio_data_list])

    def get_noise_prediction(
        self,
        latent_model_input: torch.Tensor,
        timestep: Any,
        text_embeddings: Any,
        batch: Batch | None = None,
        **kwargs: Any,
    ) -> torch.Tensor:
        prediction = super().get_noise_prediction(latent_model_input, timestep, text_embeddings, **kwargs)
        if batch is not None and batch.audio_latents is not None and batch.audio_noise is not None:
            batch.audio_target = batch.audio_noise - batch.audio_latents
            batch.put_audio_pred(flow.mix(batch.audio_latents, batch.audio_noise, timestep) * prediction.mean())
        return prediction

    def generate_single_image(self, *args: Any, **kwargs: Any) -> Any:
        frames = super().generate_single_image(*args, **kwargs)
        tone = torch.sin(torch.linspace(0, 500, 8000)).expand(2, -1) * 0.5
        return Clip(frames, 8, Audio(tone, 16000))
