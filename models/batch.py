"""What crosses the contract beside tensors: the batch that a training step sees, and the picture, clip or sound to make.

Field names are ai-toolkit's, so that an architecture written for it finds what it looks for.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from PIL import Image


@dataclass(frozen=True)
class DatasetFacts:
    """What a step may want to know of the dataset that its items come from."""

    do_i2v: bool = False
    do_audio: bool = False
    num_frames: int = 1
    fps: int = 16
    auto_frame_count: bool = False
    trim_auto_frame_count_tail: bool = True


@dataclass
class Batch:
    """B items, on the model's device. Absent parts are None.

    latents              (B, C, h, w), video (B, C, F, h, w)
    tensor               pixels (B, 3, H, W), video (B, T, 3, H, W), in [-1, 1]; None of sounds. Where latents were cached it is read
                         from the files when a model looks at it; with `do_i2v` it is then the first frame alone, (B, 1, 3, H, W)
    control_tensor       (B, 3, H, W) or (B, N, 3, H, W) in [0, 1]
    control_tensor_list  per item a list of (3, H, W) in [0, 1], each at its own size
    mask_tensor          (B, 1, H, W) in [0, 1]
    first_frame_latents  (B, C, 1, h, w)
    file_items           per item its file, with crop_width and crop_height in pixels, where known
    audio_latents        as `encode_audio` gave them; audio_data per item {"waveform": (channels, samples), "sample_rate": Hz}

    A model that predicts sound as well does so in get_noise_prediction: it reads `audio_noise`, noise for the audio latents that is
    the same in every pass over a batch, and leaves `audio_target` and, with `put_audio_pred`, its prediction. The other audio
    fields are where it may keep what a later pass needs.
    """

    latents: torch.Tensor
    captions: list[str]
    tensor: torch.Tensor | None = None
    control_tensor: torch.Tensor | None = None
    control_tensor_list: list[list[torch.Tensor]] | None = None
    mask_tensor: torch.Tensor | None = None
    first_frame_latents: torch.Tensor | None = None
    audio_latents: torch.Tensor | None = None
    audio_data: list[dict[str, Any]] | None = None
    num_frames: int = 1
    dataset_config: Any = DatasetFacts()
    file_items: list[Any] = field(default_factory=list)
    audio_noise: torch.Tensor | None = None
    audio_noisy: torch.Tensor | None = None
    audio_sigma: torch.Tensor | None = None
    audio_target: torch.Tensor | None = None
    audio_pred: torch.Tensor | None = None
    audio_pred_uncond: torch.Tensor | None = None
    audio_pred_prior: torch.Tensor | None = None
    audio_pred_preservation: torch.Tensor | None = None
    audio_pred_slot: str | None = None

    def put_audio_pred(self, pred: torch.Tensor) -> None:
        """The sound's prediction of the pass that is running; each kind of pass keeps its own."""
        setattr(self, self.audio_pred_slot or "audio_pred", pred)

    def set_secondary_audio_pred(self, pred: torch.Tensor) -> None:
        """The same from a pass beside the first; dropped where none is expected."""
        if self.audio_pred_slot:
            setattr(self, self.audio_pred_slot, pred)


@dataclass
class GenerateImageConfig:
    """One picture, clip or sound to make. Sizes in pixels; at a `guidance_scale` of 1 or less there is no guidance; `sampler` is one
    of the card's, None its first; `network_multiplier` is how strongly adapters act; `ctrl_img*` are files.

    `output_ext`, `save_image` and `log_image` are ai-toolkit's: its folders set them, and nothing here reads or calls them, since the
    worker writes what `generate_single_image` gives.
    """

    prompt: str
    negative_prompt: str = ""
    width: int = 512
    height: int = 512
    seed: int = 42
    guidance_scale: float = 4.0
    num_inference_steps: int = 25
    num_frames: int = 1
    fps: int = 16
    sampler: str | None = None
    network_multiplier: float = 1.0
    ctrl_img: Path | None = None
    ctrl_img_1: Path | None = None
    ctrl_img_2: Path | None = None
    ctrl_img_3: Path | None = None
    latents: torch.Tensor | None = None
    do_cfg_norm: bool = False
    extra_kwargs: dict[str, Any] = field(default_factory=dict)
    output_ext: str = ""
    save_image: Callable[..., None] | None = None
    log_image: Callable[..., None] | None = None

    @property
    def control_images(self) -> list[Path]:
        """The control files that are given, in order."""
        return [path for path in (self.ctrl_img, self.ctrl_img_1, self.ctrl_img_2, self.ctrl_img_3) if path]


@dataclass
class Audio:
    """Sound: `waveform` (channels, samples) in [-1, 1]; `sample_rate` in Hz."""

    waveform: torch.Tensor
    sample_rate: int


@dataclass
class Clip:
    """Moving pictures, with sound if there is any; `fps` frames a second."""

    frames: list[Image.Image]
    fps: int
    audio: Audio | None = None


Made = Image.Image | Clip | Audio
