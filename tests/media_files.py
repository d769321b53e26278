"""Clips and sounds made with PyAV, for tests that read them back."""

import struct
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
from PIL import Image

LOSSLESS = {".mkv": ("ffv1", "bgr0"), ".mov": ("png", "rgb24"), ".avi": ("ffv1", "bgr0")}


def write_clip(
    path: Path,
    frames: Sequence[Image.Image],
    fps: int = 10,
    times: Sequence[float] | None = None,
    tone: tuple[int, float] | None = None,
    pixel_shape: Fraction | None = None,
    title: str | None = None,
) -> Path:
    """Frames without loss where the container can hold that, else in good quality. `times` in seconds, else evenly; `tone` is
    (sample rate, seconds) of a sound beside them, `pixel_shape` the width of a pixel by its height, which .mp4 keeps."""
    codec, pixel_format = LOSSLESS.get(path.suffix, ("libvpx-vp9" if path.suffix == ".webm" else "libx264", "yuv420p"))
    path.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(path), "w") as file:
        if title:
            file.metadata["title"] = title
        video = file.add_stream(codec, rate=fps)
        video.width, video.height = frames[0].size
        video.pix_fmt = pixel_format = "rgba" if frames[0].mode == "RGBA" else pixel_format
        if pixel_shape:
            video.codec_context.sample_aspect_ratio = pixel_shape
        video.codec_context.time_base = Fraction(1, 1000) if times else Fraction(1, fps)
        sound = None if tone is None else file.add_stream("aac" if path.suffix == ".mp4" else "pcm_s16le", rate=tone[0])
        if sound is not None:
            sound.layout = "stereo"
        for number, frame in enumerate(frames):
            made = av.VideoFrame.from_ndarray(np.asarray(frame), format="rgba" if frame.mode == "RGBA" else "rgb24")
            made = made.reformat(format=pixel_format)
            made.pts = round(1000 * times[number]) if times else number
            made.time_base = Fraction(1, 1000) if times else Fraction(1, fps)
            file.mux(video.encode(made))
        file.mux(video.encode(None))
        if sound is not None and tone is not None:
            _mux_tone(file, sound, *tone)
    return path


def sine(rate: int, seconds: float, channels: int = 2) -> np.ndarray:
    """(channels, samples) in [-1, 1]; the channels differ."""
    t = np.arange(round(rate * seconds)) / rate
    return np.stack([0.5 * np.sin(2 * np.pi * (220 + 110 * channel) * t) for channel in range(channels)]).astype(np.float32)


def write_sound(path: Path, rate: int = 8000, seconds: float = 0.5) -> Path:
    codec = {".wav": "pcm_f32le", ".flac": "flac", ".mp3": "libmp3lame", ".ogg": "libopus"}[path.suffix]
    path.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(path), "w") as file:
        stream = file.add_stream(codec, rate=rate)
        stream.layout = "stereo"
        _mux_tone(file, stream, rate, seconds)
    return path


def _mux_tone(file: av.container.OutputContainer, stream: av.AudioStream, rate: int, seconds: float) -> None:
    frame = av.AudioFrame.from_ndarray(sine(rate, seconds), format="fltp", layout="stereo")
    frame.sample_rate, frame.pts, frame.time_base = rate, 0, Fraction(1, rate)
    resampler = av.AudioResampler(stream.format, "stereo", stream.rate, stream.codec_context.frame_size or None)
    for given in (frame, None):
        for part in resampler.resample(given):
            file.mux(stream.encode(part))
    file.mux(stream.encode(None))


def shades(count: int, size: tuple[int, int] = (32, 32)) -> list[Image.Image]:
    """Frames that tell their number: red is 8 times it, green grows to the right."""
    ramp = np.linspace(0, 255, size[0]).astype(np.uint8)
    frames = []
    for number in range(count):
        levels = np.zeros((size[1], size[0], 3), np.uint8)
        levels[..., 0], levels[..., 1] = 8 * number, ramp
        frames.append(Image.fromarray(levels))
    return frames


def turn_clip(path: Path) -> None:
    """Have an .mp4 shown turned by 90 degrees clockwise, as phones write clips that are held upright: by the matrix of its track."""
    data = bytearray(path.read_bytes())
    matrix = data.index(b"tkhd") + 4 + 4 + 36
    data[matrix : matrix + 36] = struct.pack(">9i", 0, 1 << 16, 0, -1 << 16, 0, 0, 0, 0, 1 << 30)
    path.write_bytes(data)
