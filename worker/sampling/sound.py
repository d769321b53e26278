"""Sounds as files: a WAV, and a small picture of the waveform."""

import wave
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from models.batch import Audio

WAVEFORM_SIZE = (320, 120)
WAVEFORM_COLOUR = (217, 119, 6, 255)  # on nothing: it lies on light pages and dark ones


def sample_array(audio: Audio) -> npt.NDArray[np.float32]:
    """The waveform as (channels, samples), clipped to [-1, 1]; what is not a number is silence. Raises ValueError for another shape,
    no samples, or a rate that is no rate."""
    waveform = audio.waveform.detach().float().cpu().nan_to_num(0.0, 1.0, -1.0).clamp(-1, 1)
    if waveform.ndim != 2 or 0 in waveform.shape or audio.sample_rate < 1:
        shape = tuple(waveform.shape)
        raise ValueError(f"a sound is (channels, samples) at a rate in Hz, not {shape} at {audio.sample_rate} Hz")
    samples: npt.NDArray[np.float32] = waveform.numpy()
    return samples


def write_wav(path: Path, audio: Audio) -> None:
    """Write 16-bit PCM: a sample is round(32767 x), x clipped to [-1, 1]."""
    samples = np.rint(sample_array(audio).astype(np.float64) * 32767).astype("<i2")
    with wave.open(str(path), "wb") as file:
        file.setnchannels(samples.shape[0])
        file.setsampwidth(2)
        file.setframerate(audio.sample_rate)
        file.writeframes(samples.T.tobytes())


def waveform_picture(audio: Audio) -> Image.Image:
    """The sound's outline: for each column of pixels the lowest and the highest sample of its stretch of time, over all channels."""
    from PIL import ImageDraw  # it loads the libraries of fonts, and few jobs draw

    width, height = WAVEFORM_SIZE
    samples = sample_array(audio)
    edges = np.linspace(0, samples.shape[1], width + 1)
    picture = Image.new("RGBA", WAVEFORM_SIZE)
    draw = ImageDraw.Draw(picture)

    def y(value: Any) -> float:
        return float((1 - value) / 2 * (height - 1))

    for x in range(width):
        begin = int(edges[x])
        stretch = samples[:, begin : max(begin + 1, int(edges[x + 1]))]
        draw.line(((x, y(stretch.max())), (x, y(stretch.min()))), fill=WAVEFORM_COLOUR)
    return picture
