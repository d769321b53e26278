"""Frames out of clips."""

from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path

import av
import torch
from PIL import Image

from models.data.clips import choose_frames, frame_times, open_media
from models.data.datasets import Item
from models.data.entries import View
from models.data.pictures import on_white
from models.errors import UserError
from models.spec import DatasetSpec
from worker.data.decode import check_unchanged, cut_image, signed_pixels


def clip(item: Item, view: View, dataset: DatasetSpec) -> torch.Tensor:
    """(T, 3, H, W) in [-1, 1]: the frames that the dataset takes, all cut alike. Raises UserError if the file is not any more what it
    was."""
    check_unchanged(item.media)
    try:
        wanted = choose_frames(dataset, frame_times(item.path), item.num_frames)
        frames = [signed_pixels(cut_image(frame, view)) for frame in read_frames(item.path, wanted)]
    except Exception as error:  # PyAV raises more than FFmpeg's errors
        raise UserError(f"{item.path} cannot be decoded any more: {error}", code="data_changed") from None
    return torch.stack(frames)


def read_frames(path: Path, wanted: Sequence[int]) -> Iterator[Image.Image]:
    """The frames of these numbers (rising, maybe repeated), upright RGB. A clip that ends early gives its last one again."""
    runs = [(number, len(list(run))) for number, run in groupby(wanted)]
    last: Image.Image | None = None
    with open_media(path) as file:
        frames = enumerate(file.decode(video=0))
        for number, times in runs:
            for at, frame in frames:
                if at == number:
                    last = _upright(frame)
                    break
            assert last is not None
            yield from [last] * times


def _upright(frame: av.VideoFrame) -> Image.Image:
    if any(component.is_alpha for component in frame.format.components):
        image = on_white(Image.fromarray(frame.to_ndarray(format="rgba")))
    else:
        image = Image.fromarray(frame.to_ndarray(format="rgb24"))
    return image.rotate(frame.rotation, expand=True) if frame.rotation else image
