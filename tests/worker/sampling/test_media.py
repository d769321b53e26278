"""Previews as files, read back by libraries that did not write them: FFmpeg for MP4, the standard library for WAV, Pillow for the rest."""

import json
import math
import wave
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
import torch
from PIL import Image

from models.batch import Audio, Clip
from worker.sampling import video
from worker.sampling.media import write
from worker.sampling.sound import waveform_picture

RECORD = {"step": 7, "prompt_index": 1, "prompt": 'ein "rotes" Boot ⛵', "neg": "", "seed": 42}


def frames(count: int, width: int = 64, height: int = 48) -> list[Image.Image]:
    """Smooth colours that move, so that lossy coding stays close; no two frames are alike."""
    y, x = np.mgrid[0:height, 0:width]

    def one(at: int) -> Image.Image:
        levels = np.stack([x * 150 // width + 6 * at, y * 200 // height + 20, np.full_like(x, 200 - 5 * at)], axis=-1)
        return Image.fromarray(levels.astype(np.uint8))

    return [one(at) for at in range(count)]


def tone(seconds: float, rate: int, *hertz: float) -> Audio:
    """A tone for each channel, at 0.6 of full scale."""
    t = torch.arange(round(seconds * rate), dtype=torch.float64) / rate
    return Audio(torch.stack([0.6 * torch.sin(2 * math.pi * each * t) for each in hertz]).float(), rate)


def decoded(path: Path, kind: str) -> tuple[Any, list[Any]]:
    with av.open(str(path)) as file:
        (stream,) = [stream for stream in file.streams if stream.type == kind]
        facts = {
            "codec": stream.codec_context.name,
            "rate": stream.average_rate if kind == "video" else stream.rate,
            "seconds": float(stream.duration * stream.time_base),
            "comment": json.loads(file.metadata["comment"]),
        }
        return facts, list(file.decode(stream))


def heard(path: Path) -> tuple[dict[str, Any], np.ndarray]:
    facts, chunks = decoded(path, "audio")
    return facts, np.concatenate([chunk.to_ndarray() for chunk in chunks], axis=1)


def test_a_picture_is_a_png_with_its_settings_inside(tmp_path: Path) -> None:
    (made,) = frames(1)
    told = write(tmp_path / "a", made, RECORD)
    assert (told.picture.name, told.thumbnail.name, told.animation) == ("a.png", "a.thumbnail.webp", None)
    assert told.record == {**RECORD, "media": "image", "width": 64, "height": 48}
    with Image.open(told.picture) as picture:
        assert np.array_equal(np.asarray(picture), np.asarray(made))
        text = dict(picture.text)
    assert json.loads(text.pop("safelight")) == told.record
    assert text == {key: str(value) for key, value in told.record.items()}


def test_a_clip_is_an_mp4_with_the_frames_that_were_made(tmp_path: Path) -> None:
    made = frames(10)
    told = write(tmp_path / "a", Clip(made, 8), RECORD)
    assert told.record == {
        **RECORD, "media": "video", "width": 64, "height": 48, "num_frames": 10, "fps": 8, "duration_seconds": 1.25,
    }  # fmt: skip
    facts, got = decoded(told.picture, "video")
    assert facts == {"codec": "h264", "rate": 8, "seconds": 1.25, "comment": told.record}
    assert [frame.time for frame in got] == [index / 8 for index in range(10)]
    assert {(frame.width, frame.height, frame.format.name) for frame in got} == {(64, 48, "yuv420p")}
    for frame, picture in zip(got, made, strict=True):
        error = np.abs(frame.to_ndarray(format="rgb24").astype(int) - np.asarray(picture))
        # Colour has half the resolution and CRF 18 quantises: some levels on average. A frame off by one is 5 levels away in blue.
        assert error.mean() < 4
        assert abs(frame.to_ndarray(format="rgb24")[..., 2].mean() - np.asarray(picture)[..., 2].mean()) < 2.5


def test_colours_are_bt709_and_say_so(tmp_path: Path) -> None:
    told = write(tmp_path / "a", Clip([Image.new("RGB", (64, 64), "red")] * 2, 8), RECORD)
    _, (first, _) = decoded(told.picture, "video")
    assert (first.colorspace, first.color_primaries, first.color_trc, first.color_range) == (1, 1, 1, 1)
    planes = first.to_ndarray()  # Y over U over V
    # ITU-R BT.709: Y = 16 + 219 * 0.2126, Cb = 128 - 224 * 0.2126 / 1.8556, Cr = 128 + 112; rounding and quantising cost a level or two.
    assert planes[:64].mean() == pytest.approx(62.6, abs=2)
    assert planes[64:80].mean() == pytest.approx(102.3, abs=2)
    assert planes[80:].mean() == pytest.approx(240, abs=2)


def test_an_mp4_starts_with_its_index_and_has_a_keyframe_every_second(tmp_path: Path) -> None:
    told = write(tmp_path / "a", Clip(frames(20), 8), RECORD)
    data = told.picture.read_bytes()
    assert 0 < data.index(b"moov") < data.index(b"mdat")
    with av.open(str(told.picture)) as file:
        keys = sorted(float(packet.pts * packet.time_base) for packet in file.demux(video=0) if packet.is_keyframe)
    assert keys[0] == 0
    assert max(later - earlier for earlier, later in zip(keys, [*keys[1:], 2.5], strict=True)) <= 1


def test_an_odd_side_grows_by_a_copy_of_its_last_row(tmp_path: Path) -> None:
    made = frames(3, 33, 31)
    told = write(tmp_path / "a", Clip(made, 8), RECORD)
    assert (told.record["width"], told.record["height"]) == (34, 32)
    _, got = decoded(told.picture, "video")
    assert {(frame.width, frame.height) for frame in got} == {(34, 32)}
    (grown, *_) = video.even_frames(Clip(made, 8))
    wanted = np.asarray(made[0])
    assert np.array_equal(np.asarray(grown)[:31, :33], wanted)
    assert np.array_equal(np.asarray(grown)[31, :33], wanted[30])
    assert np.array_equal(np.asarray(grown)[:31, 33], wanted[:, 32])
    with Image.open(told.animation) as moving:
        assert moving.size == (34, 32)


def test_a_frame_rate_may_be_broken(tmp_path: Path) -> None:
    told = write(tmp_path / "a", Clip(frames(4), 24000 / 1001), RECORD)  # type: ignore[arg-type]
    facts, got = decoded(told.picture, "video")
    assert (facts["rate"].numerator, facts["rate"].denominator, len(got)) == (24000, 1001, 4)


@pytest.mark.parametrize(
    ("rate", "hertz", "kept"),
    [(44100, (440.0, 660.0), 44100), (16000, (440.0,), 16000), (17000, (440.0,), 48000)],
    ids=["stereo", "mono", "a rate unknown to AAC"],
)
def test_a_clips_sound_is_heard_in_step_with_it(tmp_path: Path, rate: int, hertz: tuple[float, ...], kept: int) -> None:
    made = tone(1.25, rate, *hertz)
    told = write(tmp_path / "a", Clip(frames(10), 8, made), RECORD)
    facts, got = heard(told.picture)
    assert (facts["codec"], facts["rate"], len(got)) == ("aac", kept, len(hertz))
    assert facts["seconds"] == pytest.approx(1.25, abs=2 * 1024 / kept)  # AAC comes in frames of 1024 samples
    wanted = tone(1.25, kept, *hertz).waveform.numpy()
    length = min(got.shape[1], wanted.shape[1])
    for channel, source in zip(got, wanted, strict=True):
        # Lossy, and the first frame fades in. A shift by one AAC frame would leave less than 0.7 of any of these tones.
        assert np.corrcoef(channel[:length], source[:length])[0, 1] > 0.95
    assert len(decoded(told.picture, "video")[1]) == 10


def test_sound_of_many_channels_is_mixed_to_one(tmp_path: Path) -> None:
    made = Audio(tone(1.0, 16000, 440.0).waveform.repeat(4, 1), 16000)
    told = write(tmp_path / "a", Clip(frames(8), 8, made), RECORD)
    _, got = heard(told.picture)
    assert got.shape[0] == 1
    assert np.abs(got[0, 2000:14000]).max() == pytest.approx(0.6, abs=0.06)  # lossy


def test_a_clip_is_also_an_animation_that_repeats(tmp_path: Path) -> None:
    made = frames(7)
    told = write(tmp_path / "a", Clip(made, 12), RECORD)
    assert told.animation == tmp_path / "a.webp"
    with Image.open(told.animation) as moving:
        assert (moving.format, moving.n_frames, moving.info["loop"], moving.size) == ("WEBP", 7, 0, (64, 48))
        lengths = []
        for at, picture in enumerate(made):
            moving.seek(at)
            error = np.abs(np.asarray(moving.convert("RGB")).astype(int) - np.asarray(picture))
            assert error.mean() < 5  # lossy, colour at half the resolution
            lengths.append(moving.info["duration"])
    assert (sum(lengths), set(lengths)) == (583, {83, 84})  # 7 / 12 s, and no frame is more than rounding away from its time


def test_equal_frames_keep_their_time_in_the_animation(tmp_path: Path) -> None:
    still = frames(1)[0]
    told = write(tmp_path / "a", Clip([still, still, still, frames(2)[1]], 10), RECORD)
    with Image.open(told.animation) as moving:
        lengths = []
        for at in range(moving.n_frames):
            moving.seek(at)
            moving.load()
            lengths.append(moving.info["duration"])
    assert lengths == [300, 100]
    assert len(decoded(told.picture, "video")[1]) == 4


def test_a_clips_thumbnail_is_its_middle_frame(tmp_path: Path) -> None:
    made = [Image.new("RGB", (64, 48), (10 * at, 0, 0)) for at in range(5)]
    told = write(tmp_path / "a", Clip(made, 8), RECORD)
    with Image.open(told.thumbnail) as small:
        assert (small.format, small.size, small.getpixel((5, 5))) == ("WEBP", (64, 48), (20, 0, 0))  # lossless at this size


def test_without_an_h264_encoder_a_clip_is_mpeg4_and_the_log_says_so(tmp_path: Path, monkeypatch: Any, caplog: Any) -> None:
    monkeypatch.setattr(av, "codecs_available", {"mpeg4", "aac"})
    made = frames(6)
    told = write(tmp_path / "a", Clip(made, 8), RECORD)
    facts, got = decoded(told.picture, "video")
    assert (facts["codec"], len(got)) == ("mpeg4", 6)
    for frame, picture in zip(got, made, strict=True):
        assert np.abs(frame.to_ndarray(format="rgb24").astype(int) - np.asarray(picture)).mean() < 5  # lossy
    assert "no H.264 encoder" in caplog.text


@pytest.mark.parametrize("channels", [1, 2])
def test_a_sound_is_a_wav_of_the_rounded_samples(tmp_path: Path, channels: int) -> None:
    waveform = torch.rand(channels, 4000, generator=torch.Generator().manual_seed(1)) * 2.4 - 1.2  # beyond full scale, too
    told = write(tmp_path / "a", Audio(waveform, 8000), RECORD)
    assert told.record == {
        **RECORD, "media": "audio", "width": 320, "height": 120, "sample_rate": 8000, "channels": channels, "duration_seconds": 0.5,
    }  # fmt: skip
    with wave.open(str(told.picture), "rb") as file:
        assert file.getparams()[:4] == (channels, 2, 8000, 4000)
        got = np.frombuffer(file.readframes(4000), "<i2").reshape(-1, channels).T
    assert np.array_equal(got, np.round(np.clip(waveform.numpy(), -1, 1).astype(np.float64) * 32767))
    with Image.open(told.thumbnail) as small:
        assert (told.thumbnail.name, small.format, small.size) == ("a.thumbnail.webp", "WEBP", (320, 120))


def test_a_waveforms_picture_is_as_high_as_the_sound_is_loud() -> None:
    swing = torch.tensor([[1.0, -1.0]]).repeat(1, 1600)
    loud = torch.cat([torch.zeros(1, 3200), 0.5 * swing, swing], dim=1)
    inked = np.asarray(waveform_picture(Audio(loud, 8000)))[..., 3] > 0
    heights = inked.sum(axis=0)
    assert heights.shape == (320,)
    # A third each of silence, half scale and full scale of 120 rows; both ends of a line fall on a row.
    for columns, rows in ((slice(0, 106), 1), (slice(108, 212), 60), (slice(215, 320), 120)):
        assert heights[columns] == pytest.approx(rows, abs=1)


def test_a_short_sound_and_numbers_that_are_none_are_drawn_and_silent(tmp_path: Path) -> None:
    told = write(tmp_path / "a", Audio(torch.tensor([[0.5, math.nan, math.inf]]), 8000), RECORD)
    with wave.open(str(told.picture), "rb") as file:
        assert np.frombuffer(file.readframes(3), "<i2").tolist() == [16384, 0, 32767]


@pytest.mark.parametrize(
    ("made", "complaint"),
    [
        (Clip([], 8), "a clip needs frames of one size, not no frames"),
        (Clip([*frames(1), *frames(1, 32, 32)], 8), r"a clip needs frames of one size, not \[\(32, 32\), \(64, 48\)\]"),
        (
            Clip(frames(2), 8, Audio(torch.zeros(9), 8000)),
            r"a sound is \(channels, samples\) at a rate in Hz, not \(9,\) at 8000 Hz",
        ),
        (Audio(torch.zeros(1, 0), 8000), r"not \(1, 0\) at 8000 Hz"),
        ("text", "a preview is a picture, a clip or a sound, not str"),
    ],
)
def test_what_is_no_preview_leaves_no_file(tmp_path: Path, made: Any, complaint: str) -> None:
    with pytest.raises((ValueError, TypeError), match=complaint):
        write(tmp_path / "a", made, RECORD)
    assert list(tmp_path.iterdir()) == []
