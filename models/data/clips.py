"""Clips and sounds as files: what is in them, and which frames of a clip a dataset asks for. Torch-free.

Where a dataset spreads its frames, frame k of n is number round(k (N - 1) / (n - 1)) of the clip's N. Where it takes the first ones, it
is the one whose time is nearest to k / fps, counted from the clip's first frame.
"""

import errno
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

from models.data.frames import TEMPORAL_STRIDE, snap_frames
from models.data.limits import PIXELS, too_large
from models.spec import DatasetSpec

CLIPS = {".mp4", ".mov", ".webm", ".mkv", ".avi", ".m4v", ".wmv", ".flv"}
SOUNDS = {".wav", ".mp3", ".flac", ".ogg", ".m4a", ".aac", ".opus"}

FRAMES_IN_FLIGHT = 4  # that a decoder keeps, about
LONGEST_PIXEL = 8  # times its other side; real clips have 2:1 at most

Snapper = Callable[[int], int]
ACCESS = {errno.EIO, errno.EACCES, errno.ENOENT, errno.ESTALE, errno.ETIMEDOUT, errno.EMFILE, errno.ENFILE, errno.ENOMEM}


class BadClip(ValueError):
    """A file that holds no clip or sound that can be decoded; the text says why."""


@dataclass(frozen=True)
class ClipFacts:
    """A clip: width and height in pixels as it is shown, upright and with square pixels, the number of frames, the seconds from the
    first frame to the last."""

    width: int
    height: int
    frames: int
    seconds: float
    has_sound: bool


@dataclass(frozen=True)
class SoundFacts:
    sample_rate: int
    samples: int

    @property
    def milliseconds(self) -> int:
        return self.samples * 1000 // self.sample_rate


def default_snapper(count: int) -> int:
    """The frame counts that most models take; a model may say otherwise (`get_frame_count_snapper`)."""
    return snap_frames(count, TEMPORAL_STRIDE)


def frames_at(seconds: float, fps: float) -> int:
    """How many frames at `fps` a clip gives whose last frame comes `seconds` after its first."""
    return int(seconds * fps + 0.5) + 1


def wanted_frames(dataset: DatasetSpec, seconds: float, snap: Snapper = default_snapper) -> int:
    """How many frames the dataset takes from a clip whose last frame comes `seconds` after its first. Raises BadClip if it is too short
    for that."""
    there = frames_at(seconds, dataset.fps)
    if dataset.auto_frame_count:
        return snap(there)
    if not dataset.shrink_video_to_frames and there < dataset.num_frames:
        raise BadClip(f"{there} frames at {dataset.fps} fps, {dataset.num_frames} are wanted")
    return dataset.num_frames


def choose_frames(dataset: DatasetSpec, times: Sequence[float], count: int) -> list[int]:
    """The numbers of the `count` frames to show, of a clip whose frames come at `times` (in seconds, rising)."""
    last = len(times) - 1
    if dataset.shrink_video_to_frames and not dataset.auto_frame_count:
        return [round(place * last / (count - 1)) for place in range(count)] if count > 1 else [0]
    return [_nearest(times, times[0] + place / dataset.fps) for place in range(count)]


def open_media(path: Path) -> Any:
    """Open PyAV's container. A title in another encoding than UTF-8 is no fault of the clip."""
    import av

    return av.open(str(path), metadata_errors="replace")


def probe_clip(path: Path, *, decode: bool) -> ClipFacts:
    """What the clip holds; with `decode` every frame is decoded, which is the only way to know that it can be. Raises BadClip,
    and OSError where the file could not be got at."""
    try:
        with open_media(path) as file:
            if not file.streams.video:
                raise BadClip("no video in it")
            has_sound = bool(file.streams.audio)
        times = frame_times(path)
        size = None
        with open_media(path) as file:
            stream = file.streams.video[0]
            if stream.codec_context is None:
                raise BadClip("its codec is not known here")
            if fault := too_large(stream.width, stream.height):
                raise BadClip(fault)
            stream.thread_type = "AUTO"
            decoded = 0
            with PIXELS.of(FRAMES_IN_FLIGHT * stream.width * stream.height):
                for frame in file.decode(video=0):
                    size = size or shown_size(frame.width, frame.height, stream.sample_aspect_ratio, frame.rotation)
                    decoded += 1
                    if not decode:
                        break
    except Exception as error:  # PyAV raises more than FFmpeg's errors for files that are broken
        raise _fault(error, "clip") from None
    if size is None or not times:
        raise BadClip("no frames in it")
    if decode and decoded < len(times):
        raise BadClip(f"cut short: {decoded} of {len(times)} frames can be decoded")
    return ClipFacts(*size, len(times), times[-1] - times[0], has_sound)


def shown_size(width: int, height: int, pixel_shape: Fraction | None, rotation: int = 0) -> tuple[int, int]:
    """Return (width, height) of stored frames as players show them: pixels that are not square are stretched, and the frame is
    turned by `rotation` degrees. `pixel_shape` is a pixel's width by its height. Raises BadClip for shapes beyond reason."""
    shape = pixel_shape or Fraction(1)
    if not 1 / LONGEST_PIXEL <= shape <= LONGEST_PIXEL:
        raise BadClip(f"its pixels are {shape.numerator}:{shape.denominator} wide and high, at most {LONGEST_PIXEL}:1 is read")
    size = (round(width * shape), height) if shape > 1 else (width, round(height / shape))
    return size if rotation % 180 == 0 else (size[1], size[0])


def frame_times(path: Path) -> list[float]:
    """When each frame of the clip is shown, in seconds, rising; read from the container, nothing is decoded."""
    with open_media(path) as file:
        stream = file.streams.video[0]
        stamps = [packet.dts if packet.pts is None else packet.pts for packet in file.demux(stream) if packet.size]
        rate = float(stream.average_rate or stream.guessed_rate or 24)
        base = stream.time_base
        timed = [float(stamp * base) for stamp in stamps if stamp is not None and base is not None]
        return sorted(timed) if len(timed) == len(stamps) else [number / rate for number in range(len(stamps))]


def probe_sound(path: Path, *, decode: bool) -> SoundFacts:
    """The sound's rate and length; without `decode` the length is what the file's header says. Raises BadClip,
    and OSError where the file could not be got at."""
    import av

    try:
        with open_media(path) as file:
            if not file.streams.audio:
                raise BadClip("no sound in it")
            stream = file.streams.audio[0]
            if stream.codec_context is None:
                raise BadClip("its codec is not known here")
            rate = stream.sample_rate
            if decode or file.duration is None:
                samples = sum(frame.samples for frame in file.decode(audio=0))
            else:
                samples = round(file.duration / av.time_base * rate)
    except Exception as error:
        raise _fault(error, "sound") from None
    if rate < 1 or samples * 1000 < rate:
        raise BadClip("no sound in it")
    return SoundFacts(rate, samples)


def _fault(error: Exception, kind: str) -> Exception:
    """FFmpeg's errors speak of the content, but for those of the system, which say nothing of it."""
    if isinstance(error, BadClip):
        return error
    code, text = getattr(error, "errno", None), getattr(error, "strerror", None) or str(error)
    return OSError(code, text) if code in ACCESS else BadClip(f"not a readable {kind}: {text or 'its content is broken'}")


def _nearest(times: Sequence[float], wanted: float) -> int:
    at = bisect_left(times, wanted)
    if at == 0 or at == len(times):
        return min(at, len(times) - 1)
    return at if times[at] - wanted < wanted - times[at - 1] else at - 1
