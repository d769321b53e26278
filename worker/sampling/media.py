"""Previews as files, each with a WebP thumbnail: PNG for pictures, MP4 and animated WebP for clips, WAV for sounds."""

import json
from pathlib import Path
from typing import Any

from PIL import Image
from PIL.PngImagePlugin import PngInfo

from models.batch import Audio, Clip, Made
from models.weights import replacing
from worker.report import PreviewTold
from worker.sampling.sound import sample_array, waveform_picture, write_wav

THUMBNAIL_PIXELS = 320


def write(stem: Path, made: Made, record: dict[str, Any]) -> PreviewTold:
    """Write what was made beside `stem` and say what it is: `record` with `media` (image, video or audio), `width` and `height` added.

    Clips also get `num_frames`, `fps` and `duration_seconds`; sounds `duration_seconds`, `sample_rate` and `channels`, and their size
    is that of the waveform's picture. A clip's odd side is one pixel longer in all its files, and `width` and `height` say so (see
    `worker.sampling.video`). The record also lies inside the files: in a PNG as text, whole under `safelight` (JSON) and its plain values
    under their names; in an MP4 as a JSON comment. Each file is whole or not there. Raises TypeError for anything else, ValueError for a
    clip or sound without content.
    """
    if isinstance(made, Image.Image):
        return _write_picture(stem, made, {**record, "media": "image", "width": made.width, "height": made.height})
    if isinstance(made, Clip):
        return _write_clip(stem, made, record)
    if isinstance(made, Audio):
        return _write_sound(stem, made, record)
    raise TypeError(f"a preview is a picture, a clip or a sound, not {type(made).__name__}")


def _write_picture(stem: Path, picture: Image.Image, record: dict[str, Any]) -> PreviewTold:
    info = PngInfo()
    for key, value in record.items():
        if isinstance(value, str | int | float):
            info.add_itxt(key, str(value))
    info.add_itxt("safelight", json.dumps(record, ensure_ascii=False))
    path = stem.with_name(stem.name + ".png")
    with replacing(path) as part:
        picture.save(part, "PNG", pnginfo=info)
    return PreviewTold(path, _write_thumbnail(stem, picture), record)


def _write_clip(stem: Path, clip: Clip, record: dict[str, Any]) -> PreviewTold:
    from worker.sampling.video import even_frames, write_mp4, write_webp  # PyAV is imported for clips alone

    frames = even_frames(clip)
    width, height = frames[0].size
    record = {
        **record,
        "media": "video",
        "width": width,
        "height": height,
        "num_frames": len(frames),
        "fps": clip.fps,
        "duration_seconds": len(frames) / clip.fps,
    }
    path, animation = stem.with_name(stem.name + ".mp4"), stem.with_name(stem.name + ".webp")
    with replacing(path) as part:
        write_mp4(part, frames, clip.fps, clip.audio, record)
    with replacing(animation) as part:
        write_webp(part, frames, clip.fps)
    return PreviewTold(path, _write_thumbnail(stem, frames[len(frames) // 2]), record, animation)


def _write_sound(stem: Path, audio: Audio, record: dict[str, Any]) -> PreviewTold:
    picture = waveform_picture(audio)
    channels, num_samples = sample_array(audio).shape
    record = {
        **record,
        "media": "audio",
        "width": picture.width,
        "height": picture.height,
        "sample_rate": audio.sample_rate,
        "channels": channels,
        "duration_seconds": num_samples / audio.sample_rate,
    }
    path = stem.with_name(stem.name + ".wav")
    with replacing(path) as part:
        write_wav(part, audio)
    return PreviewTold(path, _write_thumbnail(stem, picture), record)


def _write_thumbnail(stem: Path, picture: Image.Image) -> Path:
    path = stem.with_name(stem.name + ".thumbnail.webp")
    small = picture.copy()
    small.thumbnail((THUMBNAIL_PIXELS, THUMBNAIL_PIXELS))
    with replacing(path) as part:
        small.save(part, "WEBP", lossless=max(picture.size) <= THUMBNAIL_PIXELS, quality=85)
    return path
