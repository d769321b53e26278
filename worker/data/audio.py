"""Waveforms out of sounds and clips."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from av.audio.resampler import AudioResampler

from models.data.clips import open_media
from models.data.datasets import Item
from models.errors import UserError
from models.spec import DatasetSpec
from worker.data.decode import check_unchanged


def sound(item: Item, dataset: DatasetSpec) -> dict[str, Any]:
    """{"waveform": (channels, samples) in [-1, 1], "sample_rate": Hz} of a sound, or of a clip from its first frame on for as long as its
    frames last; silence stands in where the sound is shorter. Raises UserError if the file is not any more what it was."""
    check_unchanged(item.media)
    try:
        if item.media.kind == "sound":
            waveform, rate, _ = read_waveform(item.path)
            offset, length = 0, item.media.milliseconds * rate // 1000
        else:
            waveform, rate, begin = read_waveform(item.path)
            offset = round((begin - _first_frame(item.path)) * rate)
            length = round(item.num_frames / dataset.fps * rate)
    except Exception as error:  # PyAV raises more than FFmpeg's errors
        raise UserError(f"{item.path} cannot be decoded any more: {error}", code="data_changed") from None
    placed = waveform.new_zeros(waveform.shape[0], length)
    there = waveform[:, max(0, -offset) :][:, : max(0, length - max(0, offset))]
    placed[:, max(0, offset) : max(0, offset) + there.shape[1]] = there
    return {"waveform": placed, "sample_rate": rate}


def read_waveform(path: Path) -> tuple[torch.Tensor, int, float]:
    """((channels, samples) in [-1, 1], rate in Hz, when it begins in seconds), of the first sound stream."""
    parts: list[Any] = []
    begin = 0.0
    with open_media(path) as file:
        stream = file.streams.audio[0]
        rate = stream.sample_rate
        resampler = AudioResampler(format="fltp", layout=stream.layout, rate=rate)
        for frame in [*file.decode(stream), None]:
            if frame is not None and not parts:
                begin = float(frame.time or 0.0)
            parts += [part.to_ndarray() for part in resampler.resample(frame)]
    return torch.from_numpy(np.concatenate(parts, axis=1)), rate, begin


def _first_frame(path: Path) -> float:
    with open_media(path) as file:
        return float(next(file.decode(video=0)).time or 0.0)
