"""What is examined: an architecture on its tiny checkpoint, and inputs that fit what its card claims."""

import importlib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional as F

from models.arch import Arch
from models.base import BaseModel
from models.batch import Batch
from models.declared import call_declared

PROMPTS = ("red", "a rather longer caption about something blue")
FRAMES = 5


class Broken(Exception):
    """A rule does not hold; the text says what was seen."""


@dataclass
class Subject:
    """What is examined: a way to build the model from a config, on the CPU in fp32. `options` are its model_kwargs."""

    card: Arch
    build: Callable[..., BaseModel]  # build(**changes of the model config) -> a loaded model
    checkpoint: Path
    options: dict[str, Any] = field(default_factory=dict)

    @cached_property
    def model(self) -> BaseModel:
        model = self.build()
        model.get_model_to_train().requires_grad_(True)
        return model

    @cached_property
    def size(self) -> tuple[int, int]:
        """(width, height) in pixels: the card's, or the smallest legal square whose latents are at least 4 wide."""
        side = self.card.bucket_divisibility
        frames = (FRAMES,) if self.has("video") else ()
        if self.card.fixed_size is not None:
            return self.card.fixed_size
        with torch.no_grad():
            while self.model.encode_images([torch.zeros(*frames, 3, side, side)]).shape[-1] < 4:
                side *= 2
        return side, side

    def has(self, capability: str) -> bool:
        return capability in self.card.capabilities

    def pixels(self, count: int = 2) -> torch.Tensor:
        """(count, 3, H, W), for video (count, T, 3, H, W), in [-1, 1]: smooth, and different from each other."""
        generator = torch.Generator().manual_seed(5)
        frames = (FRAMES,) if self.has("video") else ()
        coarse = torch.rand(count, *frames, 3, 2, 2, generator=generator) * 2 - 1
        width, height = self.size
        flat = F.interpolate(coarse.reshape(-1, 3, 2, 2), size=(height, width), mode="bilinear", align_corners=True)
        return flat.reshape(count, *frames, 3, height, width)

    @cached_property
    def latents(self) -> torch.Tensor:
        with torch.no_grad():
            return self.model.encode_images(list(self.pixels()), dtype=torch.float32)

    def batch(self, latents: torch.Tensor, seed: int = 1) -> Batch:
        """A training batch with whatever the card says the arch takes."""
        count = latents.shape[0]
        generator = torch.Generator().manual_seed(seed)
        width, height = self.size
        control = torch.rand(count, 3, height, width, generator=generator)
        listed = [[image, 1 - image] if self.has("multi_reference") else [image] for image in control]
        edits = self.has("edit")
        return Batch(
            latents=latents,
            captions=list(PROMPTS[:count]),
            tensor=self.pixels(count) if self.has("i2v") or self.has("video") else None,
            control_tensor=control if edits else None,
            control_tensor_list=listed if edits and self.model.has_multiple_control_images else None,
            num_frames=FRAMES if self.has("video") else 1,
        )

    def embeds(self, *prompts: str, batch: Batch | None = None) -> Any:
        control = None
        if self.model.encode_control_in_text_embeddings and batch is not None and batch.control_tensor is not None:
            control = [batch.control_tensor[:1]] if self.model.has_multiple_control_images else batch.control_tensor[:1]
        return self.model.encode_prompt(list(prompts), control_images=control)

    def predict(self, model: BaseModel, seed: int = 1) -> torch.Tensor:
        """A prediction of two items at two timesteps, through conditioning, as a training step makes it."""
        batch = self.batch(self.latents, seed)
        noise = torch.randn(self.latents.shape, generator=torch.Generator().manual_seed(3))
        t = torch.tensor([300.0, 800.0])
        noisy = model.condition_noisy_latents(model.add_noise(self.latents, noise, t), batch)
        return model.predict_noise(noisy, text_embeddings=self.embeds(*PROMPTS, batch=batch), timestep=t, batch=batch)


def subject_for(card: Arch, folder: Path, build_class: type[BaseModel] | None = None) -> Subject:
    """The subject of a bundled arch: its own tiny checkpoint, written into `folder`. The module may name `TINY_OPTIONS`, model_kwargs
    that keep the tiny model quick (shorter texts, say)."""
    module_name, _, class_name = card.code.partition(":")
    module = importlib.import_module(module_name)
    module.write_tiny(folder)
    cls: type[BaseModel] = build_class or getattr(module, class_name)
    files = sorted(folder.iterdir())
    checkpoint = files[0] if len(files) == 1 and files[0].is_file() else folder

    options: dict[str, Any] = getattr(module, "TINY_OPTIONS", {})

    def build(**changes: Any) -> BaseModel:
        config = _Config(
            name_or_path=str(checkpoint),
            model_kwargs=card.options(**options),
            **{k: v for k, v in changes.items() if k != "name_or_path"},
        )
        if "name_or_path" in changes:
            config.name_or_path = changes["name_or_path"]
        model = cls("cpu", config, dtype="fp32", noise_scheduler=call_declared(cls.get_train_scheduler))
        model.load_model()
        return model

    return Subject(card, build, checkpoint, options)


@dataclass
class _Config:
    """The `model` section as load_model reads it."""

    name_or_path: str
    model_kwargs: Any
    te_name_or_path: str | None = None
    vae_path: str | None = None
    assistant_lora_path: str | None = None
    dtype: str = "fp32"
    te_dtype: str | None = None
    vae_dtype: str | None = None
