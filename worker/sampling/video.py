"""Clips as files: an MP4 that browsers play and seek, and an animated WebP for where no video goes."""

import json
import logging
from collections.abc import Iterator, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
from av.audio.resampler import AudioResampler
from av.video.reformatter import ColorRange, Colorspace
from PIL import Image

from models.batch import Audio, Clip
from worker.sampling.sound import sample_array

AUDIO_RATE = 48_000  # what a rate that AAC does not know is resampled to, in Hz
AUDIO_CHUNK = 1024  # an AAC frame
CONSTANT_QUALITY = "18"  # x264's CRF at which people see no difference
BT709 = 1  # the value that stands for BT.709 in primaries, transfer and matrix alike (ITU-T H.273)

log = logging.getLogger(__name__)


def even_frames(clip: Clip) -> list[Image.Image]:
    """The clip's frames as RGB with even sides, which 4:2:0 video needs: an odd side grows by one pixel, a copy of its last row or
    column. Raises ValueError for a clip without frames or with frames of several sizes."""
    sizes = {frame.size for frame in clip.frames}
    if len(sizes) != 1:
        raise ValueError(f"a clip needs frames of one size, not {sorted(sizes) or 'no frames'}")
    return [_even(frame.convert("RGB")) for frame in clip.frames]


def write_mp4(path: Path, frames: Sequence[Image.Image], fps: float, audio: Audio | None, record: dict[str, Any]) -> None:
    """Write H.264 (yuv420p, BT.709, a keyframe a second, index in front), with AAC if there is `audio`; `record` goes into the
    comment as JSON. `frames` have even sides.

    Sound of one or two channels stays as it is, of more is mixed to one; a sample rate that AAC does not know becomes 48 kHz. Without
    an H.264 encoder the video is MPEG-4 part 2, which many browsers do not play; a warning says so.
    """
    rate = Fraction(fps).limit_denominator(1001)
    with av.open(str(path), "w", format="mp4", options={"movflags": "+faststart"}) as file:
        file.metadata["comment"] = json.dumps(record, ensure_ascii=False)
        video = _video_stream(file, frames[0].size, rate)
        sound = None if audio is None else file.add_stream("aac", rate=_aac_rate(audio), layout=_layout(audio))
        chunks = [] if audio is None or sound is None else list(_audio_frames(audio, sound))
        # Both streams by time, so that a player finds what belongs together close together.
        parts: list[tuple[Fraction, Any, Any]] = [(index / rate, video, index) for index in range(len(frames))]
        parts += [(Fraction(chunk.pts, chunk.sample_rate), sound, chunk) for chunk in chunks]
        for _, stream, part in sorted(parts, key=lambda each: each[0]):
            file.mux(stream.encode(part if stream is sound else _video_frame(frames[part], part, rate)))
        for stream in (video, sound):
            if stream is not None:
                file.mux(stream.encode(None))


def write_webp(path: Path, frames: Sequence[Image.Image], fps: float) -> None:
    """Write an animation that repeats for ever. Times are whole milliseconds that do not drift; a frame equal to the one before
    makes that one longer instead of being stored again."""
    ends = [round(1000 * (index + 1) / fps) for index in range(len(frames))]
    lengths = [end - begin for begin, end in zip([0, *ends], ends, strict=False)]
    frames[0].save(path, "WEBP", save_all=True, append_images=frames[1:], duration=lengths, loop=0, quality=80, method=2)


def _even(frame: Image.Image) -> Image.Image:
    if frame.width % 2 == 0 and frame.height % 2 == 0:
        return frame
    padding = ((0, frame.height % 2), (0, frame.width % 2), (0, 0))
    return Image.fromarray(np.pad(np.asarray(frame), padding, mode="edge"))


def _video_stream(file: Any, size: tuple[int, int], rate: Fraction) -> Any:
    if "libx264" in av.codecs_available:
        stream = file.add_stream("libx264", rate=rate, options={"crf": CONSTANT_QUALITY, "preset": "medium"})
    else:
        log.warning("no H.264 encoder is installed: the clip is MPEG-4 part 2, which many browsers do not play")
        stream = file.add_stream("mpeg4", rate=rate, options={"qmin": "2", "qmax": "4"})
        stream.bit_rate = size[0] * size[1] * max(1, round(rate)) * 2
    context = stream.codec_context
    stream.width, stream.height = size
    stream.pix_fmt = "yuv420p"
    context.gop_size = max(1, round(rate))
    context.colorspace = context.color_primaries = context.color_trc = BT709
    context.color_range = ColorRange.MPEG
    return stream


def _video_frame(picture: Image.Image, index: int, rate: Fraction) -> Any:
    frame = av.VideoFrame.from_ndarray(np.asarray(picture), format="rgb24").reformat(
        format="yuv420p", dst_colorspace=Colorspace.ITU709, dst_color_range=ColorRange.MPEG
    )
    frame.pts, frame.time_base = index, 1 / rate
    return frame


def _layout(audio: Audio) -> str:
    return "stereo" if len(audio.waveform) == 2 else "mono"


def _aac_rate(audio: Audio) -> int:
    return audio.sample_rate if audio.sample_rate in (av.Codec("aac", "w").audio_rates or ()) else AUDIO_RATE


def _audio_frames(audio: Audio, stream: Any) -> Iterator[Any]:
    samples = sample_array(audio)
    if len(samples) > 2:
        samples = samples.mean(axis=0, keepdims=True)
    whole = av.AudioFrame.from_ndarray(np.ascontiguousarray(samples), format="fltp", layout=_layout(audio))
    whole.sample_rate, whole.pts, whole.time_base = audio.sample_rate, 0, Fraction(1, audio.sample_rate)
    resampler = AudioResampler(format="fltp", layout=_layout(audio), rate=stream.rate, frame_size=AUDIO_CHUNK)
    for given in (whole, None):
        yield from resampler.resample(given)
