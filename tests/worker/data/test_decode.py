"""Pictures, masks, control pictures, frames and waveforms as tensors, against Pillow, numpy and PyAV."""

from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw, ImageOps

from models.catalog import parse_job
from models.data.datasets import Folders, Item, survey
from models.data.entries import Entry, View, make_entries
from models.data.pictures import open_picture
from models.errors import UserError
from models.spec import DatasetSpec, TrainSpec
from tests.media_files import shades, sine, turn_clip, write_clip, write_sound
from worker.data import audio, decode, video


@pytest.fixture
def entries(tmp_path: Path, tiny_job: Any) -> Any:
    """`entries(flip_x=True)`: those of the folder `data`, with masks from `masks` and control pictures from `control`, if there."""

    def make(**dataset: Any) -> list[Entry]:
        spec = parse_job(tiny_job())
        assert isinstance(spec, TrainSpec)
        given = {"folder_path": "x", "default_caption": "", "resolution": [64], **dataset}
        spec = spec.model_copy(update={"datasets": [DatasetSpec(**given)]})
        controls = (tmp_path / "control",) if dataset.get("control_path") else ()
        folders = Folders(tmp_path / "data", tmp_path / "masks" if dataset.get("mask_path") else None, controls)
        return make_entries(spec, [survey(spec.datasets[0], folders)], 16)

    (tmp_path / "data").mkdir()
    return make


def noise(path: Path, size: tuple[int, int], mode: str = "RGB") -> Image.Image:
    path.parent.mkdir(exist_ok=True)
    levels = np.random.default_rng(len(path.name)).integers(0, 256, (size[1], size[0], len(Image.new(mode, (1, 1)).getbands())))
    image = Image.fromarray(levels.astype(np.uint8).squeeze(), mode)
    image.save(path)
    return image


def levels(tensor: torch.Tensor) -> np.ndarray:
    """(3, H, W) in [0, 1] as (H, W, 3) whole numbers."""
    return (tensor * 255).round().to(torch.uint8).permute(1, 2, 0).numpy()


def cut_by_pillow(image: Image.Image, view: View) -> np.ndarray:
    scaled = image.resize((view.scaled_width, view.scaled_height), Image.Resampling.BICUBIC)
    return np.asarray(scaled)[view.top : view.top + view.height, view.left : view.left + view.width]


def test_a_picture_is_scaled_and_cut_as_its_view_says(entries, tmp_path) -> None:
    image = noise(tmp_path / "data" / "a.png", (210, 100))
    for entry in entries(random_crop=True, num_repeats=5):
        read = decode.picture(entry.item.media, entry.view)
        assert np.array_equal(levels((read + 1) / 2), cut_by_pillow(image, entry.view))


def test_flipped_entries_are_exact_mirrors(entries, tmp_path) -> None:
    noise(tmp_path / "data" / "a.png", (210, 101))
    plain, mirrored, upside_down, both = (decode.picture(e.item.media, e.view) for e in entries(flip_x=True, flip_y=True))
    assert torch.equal(mirrored, plain.flip(2))
    assert torch.equal(upside_down, plain.flip(1))
    assert torch.equal(both, plain.flip(1, 2))


def test_masks_are_cut_and_flipped_like_their_pictures(entries, tmp_path) -> None:
    noise(tmp_path / "data" / "a.png", (210, 101))
    grey = noise(tmp_path / "masks" / "a.png", (210, 101), "L")
    options = {"random_crop": True, "flip_x": True, "num_repeats": 3, "mask_path": "m"}
    for entry in entries(**options):
        assert entry.item.mask is not None
        read = decode.mask(entry.item.mask, entry.view, entry.item.media, alpha=False, invert=False, floor=0.0)
        wanted = cut_by_pillow(grey, entry.view)
        wanted = wanted[:, ::-1] if entry.view.flip_x else wanted
        assert np.array_equal((read[0] * 255).round().numpy(), wanted)
        floored = decode.mask(entry.item.mask, entry.view, entry.item.media, alpha=False, invert=True, floor=0.25)
        np.testing.assert_allclose(floored[0].numpy(), 0.25 + 0.75 * (1 - wanted / 255.0), atol=1e-6)


def test_a_picture_s_own_transparency_is_its_mask(entries, tmp_path) -> None:
    image = noise(tmp_path / "data" / "a.png", (64, 64), "RGBA")
    [entry] = entries(alpha_mask=True)
    read = decode.mask(entry.item.media, entry.view, entry.item.media, alpha=True, invert=False, floor=0.0)
    assert np.array_equal((read[0] * 255).round().numpy(), np.asarray(image.getchannel("A")))


def test_control_pictures_fit_the_picture_pixel_by_pixel(entries, tmp_path) -> None:
    """A control picture equal to its picture stays equal, whatever is done to both."""
    image = noise(tmp_path / "data" / "a.png", (210, 101))
    (tmp_path / "control").mkdir()
    image.save(tmp_path / "control" / "a.webp", lossless=True)
    for entry in entries(random_crop=True, flip_x=True, flip_y=True, num_repeats=2, control_path="c", resolution=[64, 32]):
        control = decode.control(entry.item.controls[0], entry.view, entry.item.media)
        picture = decode.picture(entry.item.media, entry.view)
        torch.testing.assert_close(control * 2 - 1, picture, atol=1e-6, rtol=0)


def test_a_control_picture_of_another_size_covers_the_same_part(entries, tmp_path) -> None:
    image = noise(tmp_path / "data" / "a.png", (60, 60))
    (tmp_path / "control").mkdir()
    ImageOps.expand(image.resize((240, 240), Image.Resampling.NEAREST), (60, 0, 60, 0)).save(tmp_path / "control" / "a.png")
    [entry] = entries(control_path="c")
    control = decode.control(entry.item.controls[0], entry.view, entry.item.media)
    fitted = ImageOps.fit(Image.open(tmp_path / "control" / "a.png"), (64, 64), Image.Resampling.BICUBIC)
    assert np.array_equal(levels(control), np.asarray(fitted))
    raw = decode.raw_control(entry.item.controls[0], replace(entry.view, flip_x=True))
    assert raw.shape == (3, 240, 360)
    assert np.array_equal(levels(raw), np.asarray(Image.open(tmp_path / "control" / "a.png"))[:, ::-1])


def test_a_large_jpeg_is_decoded_smaller_only_where_that_leaves_detail_enough(tmp_path) -> None:
    smooth = Image.effect_noise((64, 64), 90).convert("RGB").resize((1024, 1024), Image.Resampling.BICUBIC)
    smooth.save(tmp_path / "a.jpg", quality=95)
    whole = open_picture(tmp_path / "a.jpg")
    assert np.array_equal(np.asarray(open_picture(tmp_path / "a.jpg", (520, 520))), np.asarray(whole))
    assert open_picture(tmp_path / "a.jpg", (128, 128)).size == (256, 256)
    small = np.asarray(open_picture(tmp_path / "a.jpg", (128, 128)).resize((128, 128), Image.Resampling.BICUBIC), np.float32)
    wanted = np.asarray(whole.resize((128, 128), Image.Resampling.BICUBIC), np.float32)
    assert np.abs(small - wanted).mean() < 1  # levels of 255: the decoder's own scaling is not Pillow's


def test_a_file_that_changed_under_the_job_is_an_error_and_a_touched_one_is_not(entries, tmp_path) -> None:
    noise(tmp_path / "data" / "a.png", (64, 64))
    [entry] = entries()
    (tmp_path / "data" / "a.png").touch()
    decode.picture(entry.item.media, entry.view)
    noise(tmp_path / "data" / "a.png", (64, 63))
    with pytest.raises(UserError, match="was changed while the job ran"):
        decode.picture(entry.item.media, entry.view)
    (tmp_path / "data" / "a.png").unlink()
    with pytest.raises(UserError, match="cannot be read any more"):
        decode.picture(entry.item.media, entry.view)


def clip_item(path: Path, spec: DatasetSpec) -> Item:
    [item] = survey(spec, path.parent).items
    return item


@pytest.mark.parametrize("extension", [".mkv", ".mov", ".avi"])
@pytest.mark.parametrize(
    ("dataset", "numbers"),
    [
        ({"num_frames": 5}, [0, 5, 10, 15, 20]),
        ({"num_frames": 5, "shrink_video_to_frames": False, "fps": 10}, [0, 1, 2, 3, 4]),
        ({"num_frames": 5, "shrink_video_to_frames": False, "fps": 5}, [0, 2, 4, 6, 8]),
        ({"num_frames": 6, "shrink_video_to_frames": False, "fps": 20}, [0, 0, 1, 1, 2, 2]),
        ({"auto_frame_count": True, "fps": 10}, list(range(17))),
    ],
)
def test_the_wanted_frames_come_exactly(tmp_path, extension, dataset, numbers) -> None:
    frames = shades(21)
    write_clip(tmp_path / f"a{extension}", frames, fps=10)
    spec = DatasetSpec(folder_path="x", default_caption="", **dataset)
    item = clip_item(tmp_path / f"a{extension}", spec)
    read = video.clip(item, View(32, 32, 32, 32), spec)
    assert read.shape == (len(numbers), 3, 32, 32)
    assert [levels((frame + 1) / 2)[0, 0, 0] // 8 for frame in read] == numbers
    wanted = np.stack([np.asarray(frames[number]) for number in numbers])
    assert np.array_equal(((read + 1) * 127.5).round().permute(0, 2, 3, 1).numpy(), wanted)


def test_frames_are_cut_like_pictures(tmp_path) -> None:
    frames = shades(3, (64, 40))
    write_clip(tmp_path / "a.mkv", frames)
    spec = DatasetSpec(folder_path="x", default_caption="", num_frames=3)
    view = View(32, 16, 40, 25, 5, 7, flip_x=True)
    read = video.clip(clip_item(tmp_path / "a.mkv", spec), view, spec)
    for frame, made in zip(frames, read, strict=True):
        assert np.array_equal(levels((made + 1) / 2), cut_by_pillow(frame, view)[:, ::-1])


def test_a_clip_s_transparent_parts_are_white_as_in_pictures(tmp_path) -> None:
    frame = Image.new("RGBA", (32, 32), (200, 0, 0, 0))
    frame.paste((0, 0, 200, 255), (0, 0, 16, 32))
    write_clip(tmp_path / "a.mov", [frame] * 2)
    [read, _] = video.read_frames(tmp_path / "a.mov", [0, 1])
    assert (read.getpixel((4, 4)), read.getpixel((28, 4))) == ((0, 0, 200), (255, 255, 255))


def test_a_turned_clip_is_read_upright(tmp_path) -> None:
    frame = Image.new("RGB", (64, 48), (255, 0, 0))
    frame.paste((0, 0, 255), (32, 0, 64, 48))  # at the right, and after the turn below
    turn_clip(write_clip(tmp_path / "a.mp4", [frame] * 3))
    item = clip_item(tmp_path / "a.mp4", DatasetSpec(folder_path="x", default_caption="", num_frames=3))
    [read] = video.read_frames(tmp_path / "a.mp4", [0])
    assert (item.width, item.height) == read.size == (48, 64)
    above, below = read.getpixel((24, 8)), read.getpixel((24, 56))
    assert above[0] > 200 > 50 > above[2]
    assert below[2] > 200 > 50 > below[0]


def test_a_clip_whose_pixels_are_not_square_is_not_squeezed(tmp_path) -> None:
    """A circle as it is shown stays one: its frames are stored twice as high as they are shown wide."""
    shown = Image.new("RGB", (64, 64), "black")
    ImageDraw.Draw(shown).ellipse((8, 8, 55, 55), fill="white")
    write_clip(tmp_path / "a.mp4", [shown.resize((32, 64))] * 3, pixel_shape=Fraction(2))
    spec = DatasetSpec(folder_path="x", default_caption="", num_frames=3, resolution=[64])
    item = clip_item(tmp_path / "a.mp4", spec)
    assert (item.width, item.height) == (64, 64)
    read = video.clip(item, View(64, 64, 64, 64), spec)
    error = np.abs(levels((read[1] + 1) / 2).astype(int) - np.asarray(shown))
    assert error.mean() < 8  # H.264 and half of the columns; squeezed it is above 40


@pytest.mark.parametrize("extension", [".wav", ".flac"])
def test_a_sound_s_samples_come_exactly(tmp_path, extension) -> None:
    write_sound(tmp_path / f"a{extension}", 8000, 0.5004)
    spec = DatasetSpec(folder_path="x", default_caption="")
    [item] = survey(spec, tmp_path, sounds=True).items
    read = audio.sound(item, spec)
    assert (read["sample_rate"], read["waveform"].shape) == (8000, (2, 4000))
    np.testing.assert_allclose(read["waveform"], sine(8000, 0.5), atol=1e-6 if extension == ".wav" else 2**-15)


def test_a_clip_s_sound_begins_with_its_first_frame_and_is_as_long_as_its_frames(tmp_path) -> None:
    write_clip(tmp_path / "a.mkv", shades(10), fps=10, tone=(8000, 0.7))
    spec = DatasetSpec(folder_path="x", default_caption="", num_frames=8, fps=10, shrink_video_to_frames=False, do_audio=True)
    read = audio.sound(clip_item(tmp_path / "a.mkv", spec), spec)
    assert read["waveform"].shape == (2, 6400)
    np.testing.assert_allclose(read["waveform"][:, :5600], sine(8000, 0.7), atol=2**-15)
    assert not read["waveform"][:, 5600:].any()


def test_a_waveform_is_what_pyav_decodes(tmp_path) -> None:
    write_sound(tmp_path / "a.mp3", 16000, 0.4)
    waveform, rate, _ = audio.read_waveform(tmp_path / "a.mp3")
    with av.open(str(tmp_path / "a.mp3")) as file:
        wanted = np.concatenate([frame.to_ndarray() for frame in file.decode(audio=0)], axis=1)
    assert rate == 16000
    np.testing.assert_allclose(waveform, wanted, atol=1e-6)
