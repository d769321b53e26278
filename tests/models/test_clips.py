"""What is in a clip or a sound, and which frames are taken, on files made by PyAV."""

from fractions import Fraction

import av
import numpy as np
import pytest

from models.data.clips import BadClip, choose_frames, frame_times, probe_clip, probe_sound, shown_size, wanted_frames
from models.spec import DatasetSpec
from tests.media_files import shades, write_clip, write_sound


def dataset(**changes) -> DatasetSpec:
    return DatasetSpec(folder_path="x", **changes)


@pytest.mark.parametrize("extension", [".mp4", ".mov", ".mkv", ".avi", ".webm", ".m4v"])
@pytest.mark.parametrize("decode", [True, False])
def test_a_clip_of_any_container_is_known(tmp_path, extension, decode) -> None:
    path = write_clip(tmp_path / f"a{extension}", shades(13, (48, 32)), fps=10)
    facts = probe_clip(path, decode=decode)
    assert (facts.width, facts.height, facts.frames, facts.has_sound) == (48, 32, 13, False)
    assert facts.seconds == pytest.approx(1.2, abs=0.002)  # Matroska rounds to milliseconds
    np.testing.assert_allclose(frame_times(path), np.arange(13) / 10 + frame_times(path)[0], atol=0.002)


def test_sound_beside_the_frames_is_seen(tmp_path) -> None:
    assert probe_clip(write_clip(tmp_path / "a.mp4", shades(5), tone=(48000, 0.5)), decode=True).has_sound


@pytest.mark.parametrize(
    ("pixel_shape", "rotation", "shown"),
    [
        (None, 0, (64, 48)),
        (Fraction(4, 3), 0, (85, 48)),
        (Fraction(3, 4), 0, (64, 64)),
        (Fraction(4, 3), 90, (48, 85)),
        (Fraction(2), 180, (128, 48)),
    ],
)
def test_a_clip_whose_pixels_are_not_square_has_the_size_that_players_show(tmp_path, pixel_shape, rotation, shown) -> None:
    assert shown_size(64, 48, pixel_shape, rotation) == shown
    if rotation == 0:
        facts = probe_clip(write_clip(tmp_path / "a.mp4", shades(3, (64, 48)), pixel_shape=pixel_shape), decode=True)
        assert (facts.width, facts.height) == shown


def test_pixels_beyond_reason_are_named() -> None:
    with pytest.raises(BadClip, match="its pixels are 100:1 wide and high, at most 8:1 is read"):
        shown_size(64, 48, Fraction(100))


@pytest.mark.parametrize("probe", [probe_clip, probe_sound])
@pytest.mark.parametrize("error", [RuntimeError("odd"), ValueError(""), IndexError(3), MemoryError()])
def test_whatever_a_decoder_raises_is_a_fault_of_the_file(tmp_path, monkeypatch, probe, error) -> None:
    def failing(*_, **__) -> None:
        raise error

    monkeypatch.setattr(av, "open", failing)
    with pytest.raises(BadClip, match=r"not a readable (clip|sound): (odd|3|its content is broken)"):
        probe(tmp_path / "a.mp4", decode=True)


def test_a_title_that_is_no_utf8_is_no_fault(tmp_path) -> None:
    path = write_clip(tmp_path / "a.mkv", shades(3), title="caf-")
    path.write_bytes(path.read_bytes().replace(b"caf-", b"caf\xe9"))
    assert probe_clip(path, decode=True).frames == 3


def test_what_is_no_clip_says_so(tmp_path) -> None:
    (tmp_path / "text.mp4").write_text("I am text")
    whole = write_clip(tmp_path / "a.mkv", shades(30, (128, 128))).read_bytes()
    (tmp_path / "half.mkv").write_bytes(whole[: len(whole) // 20])
    write_sound(tmp_path / "sound.wav")
    for name in ("text.mp4", "sound.wav"):
        with pytest.raises(BadClip):
            probe_clip(tmp_path / name, decode=True)
    with pytest.raises(BadClip, match="no sound"):
        probe_sound(tmp_path / "a.mkv", decode=True)


@pytest.mark.parametrize("extension", [".wav", ".flac", ".mp3"])
def test_a_sound_s_length_is_known(tmp_path, extension) -> None:
    facts = probe_sound(write_sound(tmp_path / f"a{extension}", 16000, 0.5), decode=True)
    assert facts.sample_rate == 16000
    assert facts.milliseconds == pytest.approx(500, abs=0 if extension != ".mp3" else 150)  # MP3 pads its frames


@pytest.mark.parametrize(("total", "count"), [(100, 17), (17, 17), (9, 17), (1, 5), (50, 2), (50, 1)])
def test_spread_frames_are_those_of_an_even_grid(total, count) -> None:
    times = [number / 24 for number in range(total)]
    chosen = choose_frames(dataset(num_frames=count), times, count)
    assert chosen == [round(at) for at in np.linspace(0, total - 1, count)]


@pytest.mark.parametrize(("source", "fps"), [(24, 24), (30, 24), (24, 16), (60, 16), (12, 24), (25, 25)])
def test_first_frames_are_the_nearest_in_time(source, fps) -> None:
    times = np.round(np.arange(200) / source, 3) + 0.5
    chosen = choose_frames(dataset(num_frames=33, fps=fps, shrink_video_to_frames=False), list(times), 33)
    wanted = times[0] + np.arange(33) / fps
    nearest = np.abs(times[:, None] - wanted[None]).min(axis=0)
    np.testing.assert_allclose(np.abs(times[chosen] - wanted), nearest, atol=1e-9)
    assert source != fps or chosen == list(range(33))


def test_frames_that_come_unevenly_are_taken_by_their_time(tmp_path) -> None:
    path = write_clip(tmp_path / "a.mkv", shades(5), times=[0, 0.1, 0.6, 0.7, 1.0])
    assert choose_frames(dataset(num_frames=6, fps=5, shrink_video_to_frames=False), frame_times(path), 6) == [0, 1, 2, 2, 3, 4]


@pytest.mark.parametrize(
    ("frames", "source", "fps", "taken"), [(49, 24, 24, 49), (50, 24, 24, 49), (60, 30, 24, 41), (5, 24, 24, 1)]
)
def test_a_clip_s_own_length_is_rounded_down_to_what_a_model_takes(frames, source, fps, taken) -> None:
    assert wanted_frames(dataset(auto_frame_count=True, fps=fps), (frames - 1) / source) == taken
    by_fours = wanted_frames(
        dataset(auto_frame_count=True, fps=fps), (frames - 1) / source, lambda count: (count - 1) // 4 * 4 + 1
    )
    assert by_fours == (frames * fps // source - 1) // 4 * 4 + 1


def test_a_clip_that_is_too_short_is_refused_unless_its_frames_are_spread() -> None:
    with pytest.raises(BadClip, match="10 frames at 24 fps, 17 are wanted"):
        wanted_frames(dataset(num_frames=17, shrink_video_to_frames=False), 9 / 24)
    assert wanted_frames(dataset(num_frames=17), 9 / 24) == 17
