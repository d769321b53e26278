"""Reads all that a batch needs of one entry: done in threads, the model is not touched."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from models.base import BaseModel, Embeds
from models.batch import Batch
from models.data.datasets import is_moving
from models.data.entries import Entry
from models.spec import DatasetSpec
from worker.data import decode
from worker.data.cache import Tensors
from worker.data.encode import FIRST_LEVELS, Latents, Texts


@dataclass
class Loaded:
    """What was read of one entry. Without `stored` latents there are the pixels or the sound to make them of; beside them, where the model
    looks at the first frame itself, that frame's pixels."""

    stored: Tensors | None
    pixels: torch.Tensor | None = None
    sound: dict[str, Any] | None = None
    control: torch.Tensor | None = None
    raw_controls: list[torch.Tensor] = field(default_factory=list)
    mask: torch.Tensor | None = None
    embeds: dict[str, Embeds] = field(default_factory=dict)


class PixelBatch(Batch):
    """A batch of cached latents: its pixels are read by `read` when a model looks at `tensor`, since few do."""

    read: Callable[[], torch.Tensor | None] | None = None

    @property
    def tensor(self) -> torch.Tensor | None:
        if self.__dict__["tensor"] is None and self.read is not None:
            self.__dict__["tensor"] = self.read()
        found: torch.Tensor | None = self.__dict__["tensor"]
        return found

    @tensor.setter
    def tensor(self, pixels: torch.Tensor | None) -> None:
        self.__dict__["tensor"] = pixels


class Loader:
    """`clips` says that the architecture takes clips: a picture is then one of a single frame. With `always_pixels` pixels are read beside
    cached latents too: the model has looked at those of an earlier batch."""

    always_pixels = False

    def __init__(self, model: BaseModel, datasets: Sequence[DatasetSpec], clips: bool, latents: Latents, texts: Texts) -> None:
        self.datasets, self.clips, self.latents, self.texts = datasets, clips, latents, texts
        self.raw = model.use_raw_control_images or model.has_multiple_control_images
        self.several = model.has_multiple_control_images

    def __call__(self, entry: Entry, captions: Sequence[str]) -> Loaded:
        item, view = entry.item, entry.view
        loaded = Loaded(self.latents.stored(entry))
        if loaded.stored is None:
            loaded.pixels, loaded.sound = self.media(entry)
        elif FIRST_LEVELS in loaded.stored:
            loaded.pixels = decode.pixels_of(loaded.stored[FIRST_LEVELS])
        elif self.always_pixels:
            loaded.pixels = self.shown(entry)
        if self.raw or len(item.controls) > 1:
            loaded.raw_controls = [decode.raw_control(each, view) for each in item.controls]
        elif item.controls:
            loaded.control = decode.control(item.controls[0], view, item.media)
        loaded.mask = self.mask(entry)
        found = {caption: self.texts.stored(caption, entry) for caption in captions}
        loaded.embeds = {caption: embeds for caption, embeds in found.items() if embeds is not None}
        return loaded

    def media(self, entry: Entry) -> tuple[torch.Tensor | None, dict[str, Any] | None]:
        """(pixels, sound) of the entry, each None where there is none."""
        pixels = self.shown(entry)
        return pixels, self.sound(entry) if pixels is None or self.datasets[entry.dataset].do_audio else None

    def sound(self, entry: Entry) -> dict[str, Any]:
        """The waveform of a sound or of a clip, as `worker.data.audio.sound` gives it."""
        from worker.data import audio  # PyAV is imported for sounds and clips alone

        return audio.sound(entry.item, self.datasets[entry.dataset])

    def shown(self, entry: Entry) -> torch.Tensor | None:
        """The pixels alone; None of a sound."""
        return None if entry.item.media.kind == "sound" else self.pixels(entry)

    def pixels(self, entry: Entry) -> torch.Tensor:
        """(3, H, W), or (T, 3, H, W) where clips are what is trained, in [-1, 1]."""
        dataset, item = self.datasets[entry.dataset], entry.item
        if item.media.kind == "clip":
            from worker.data import video

            return video.clip(item, entry.view, dataset)
        still = decode.picture(item.media, entry.view)
        return still[None] if self.clips or is_moving(dataset) else still

    def mask(self, entry: Entry) -> torch.Tensor | None:
        """(1, H, W) where the dataset has masks; all ones for an item without one."""
        dataset, item, view = self.datasets[entry.dataset], entry.item, entry.view
        if not (dataset.mask_path or dataset.alpha_mask) or item.media.kind == "sound":
            return None
        media = item.mask if dataset.mask_path else item.media
        if media is None or media.kind != "picture":
            return torch.ones(1, view.height, view.width)
        return decode.mask(
            media, view, item.media, alpha=dataset.alpha_mask, invert=dataset.invert_mask, floor=dataset.mask_min_value
        )

    def text_controls(self, entry: Entry) -> Any:
        """The control pictures as the contract hands them to text encoders: (1, 3, H, W) in [0, 1], a list of them for models that
        take several, None if it sees none."""
        if not self.texts.sees(entry):
            return None
        shown = [decode.raw_control(each, entry.view)[None] for each in entry.item.controls]
        return shown if self.several else shown[0]
