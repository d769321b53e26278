"""What a job trains on."""

from typing import Annotated, Any, Literal

from pydantic import Field

from models.spec.fields import Spec, entry, path
from models.words import EXTENSION, NOT_BLANK

CONTROL_FOLDERS = ("control_path", "control_path_1", "control_path_2", "control_path_3")


def _controls(title: str, order: int) -> Any:
    needs = "edit" if order == 90 else "multi_reference"
    return path(
        title, "Dataset", order, "Folder of control pictures with the same names as the pictures they belong to.", needs=needs
    )


class DatasetSpec(Spec):
    """A folder of pictures, clips or sounds with captions beside them."""

    folder_path: str = entry(
        title="Folder",
        section="Dataset",
        order=10,
        basic=True,
        widget="path",
        min_length=1,
        max_length=1000,
        help="Folder of pictures; relative paths lie under the datasets folder of the server.",
    )
    caption_ext: str = entry(
        "txt",
        title="Caption files",
        section="Dataset",
        order=20,
        pattern=EXTENSION,
        suggest=["txt", "json", "caption"],
        help="Extension of the caption file beside each picture; json reads its key caption. A metadata.jsonl fills the gaps.",
    )
    default_caption: str | None = entry(
        None,
        title="Default caption",
        section="Dataset",
        order=21,
        max_length=10000,
        help="Used where a caption is missing or blank. Without one, a missing caption refuses the job; an empty text allows it.",
    )
    trigger_word: str | None = entry(
        None,
        title="Trigger word",
        section="Dataset",
        order=22,
        min_length=1,
        max_length=200,
        pattern=NOT_BLANK,
        help="Replaces [trigger] in captions and goes in front of those without it. None: the job's.",
    )
    on_bad_file: Literal["stop", "skip"] = entry(
        "stop",
        title="Unreadable pictures",
        section="Dataset",
        order=30,
        help="stop: refuse the job and name them; skip: train without them and say so.",
    )
    resolution: list[Annotated[int, Field(ge=16, le=8192)]] = entry(
        [512],
        title="Resolution",
        section="Dataset",
        order=40,
        unit="px",
        min_length=1,
        max_length=8,
        help="Each value is a square's side whose area the buckets keep; several values train at several sizes.",
    )
    num_repeats: int = entry(
        1, title="Repeats", section="Dataset", order=50, ge=1, le=100000, help="How often an epoch shows each picture."
    )
    flip_x: bool = entry(
        False, title="Mirror", section="Dataset", order=51, help="Also show each picture mirrored left to right."
    )
    flip_y: bool = entry(False, title="Flip", section="Dataset", order=52, help="Also show each picture upside down.")
    random_crop: bool = entry(
        False,
        title="Random crop",
        section="Dataset",
        order=53,
        help="Cut each picture to its bucket at a random place, chosen once per repeat, instead of the centre.",
    )
    caption_dropout_rate: float = entry(
        0.0,
        title="Caption dropout",
        section="Dataset",
        order=60,
        ge=0,
        le=1,
        help="Share of steps that see an empty caption, which teaches guidance.",
    )
    shuffle_tokens: bool = entry(
        False,
        title="Shuffle tags",
        section="Dataset",
        order=61,
        help="Shuffle the comma-separated parts of a caption at every step. Needs a text encoder that stays loaded.",
    )
    token_dropout_rate: float = entry(
        0.0,
        title="Tag dropout",
        section="Dataset",
        order=62,
        ge=0,
        le=1,
        help="Share of the comma-separated parts that a step leaves out. Needs a text encoder that stays loaded.",
    )
    keep_tokens: int = entry(
        0, title="Keep tags", section="Dataset", order=63, ge=0, le=1000, help="How many parts at the front stay where they are."
    )
    cache_latents: bool = entry(
        True,
        title="Latents in memory",
        section="Dataset",
        order=70,
        help="Encode each picture once, before training, and keep the result in memory.",
    )
    cache_latents_to_disk: bool = entry(
        True,
        title="Latents on disk",
        section="Dataset",
        order=71,
        help="Encode each picture once and keep the result on disk, where later jobs find it.",
    )
    is_reg: bool = entry(
        False,
        title="Regularisation",
        section="Dataset",
        order=80,
        help="Pictures of the class in general; every second step is made of them. No trigger word is put in.",
    )
    prior_reg: bool = entry(
        False,
        title="Towards the base model",
        section="Dataset",
        order=81,
        help="Learn what the model without the adapter predicts for these pictures, instead of the pictures themselves.",
    )
    loss_multiplier: float = entry(
        1.0, title="Loss weight", section="Dataset", order=82, ge=0, le=1000, help="Weight of these pictures in the loss."
    )
    mask_path: str | None = path(
        "Masks", "Dataset", 85, "Folder of masks with the same names: white trains fully, black does not."
    )
    on_missing_mask: Literal["stop", "whole"] = entry(
        "stop",
        title="Missing masks",
        section="Dataset",
        order=85,
        help="stop: refuse the job and name the pictures without a mask; whole: train all of such a picture and say so.",
    )
    alpha_mask: bool = entry(
        False, title="Mask from alpha", section="Dataset", order=86, help="Use the pictures' own transparency as the mask."
    )
    invert_mask: bool = entry(False, title="Invert masks", section="Dataset", order=87, help="Black trains, white does not.")
    mask_min_value: float = entry(
        0.0, title="Mask floor", section="Dataset", order=88, ge=0, le=1, help="Weight of what is masked out."
    )
    control_path: str | None = _controls("Control pictures", 90)
    control_path_1: str | None = _controls("Control pictures 2", 91)
    control_path_2: str | None = _controls("Control pictures 3", 92)
    control_path_3: str | None = _controls("Control pictures 4", 93)
    num_frames: int = entry(
        1,
        title="Frames",
        section="Dataset",
        order=95,
        ge=1,
        le=10_000,
        unit="frames",
        needs="video",
        help="Frames of a clip; 1 trains on single pictures.",
    )
    shrink_video_to_frames: bool = entry(
        True,
        title="Spread over the clip",
        section="Dataset",
        order=96,
        needs="video",
        help="Take the frames evenly from the whole clip; off: the first ones, at the frame rate.",
    )
    fps: int = entry(
        24, title="Frame rate", section="Dataset", order=97, ge=1, le=240, unit="fps", needs="video", help="Frames a second."
    )
    auto_frame_count: bool = entry(
        False,
        title="As long as the clip",
        section="Dataset",
        order=98,
        needs="video",
        help="As many frames as the clip lasts at the frame rate, rounded to what the model takes.",
    )
    do_i2v: bool = entry(
        False, title="First frame given", section="Dataset", order=99, needs="i2v", help="Give the model the first frame."
    )
    do_audio: bool = entry(
        False, title="With sound", section="Dataset", order=100, needs="audio", help="Train on the clips' sound as well."
    )
