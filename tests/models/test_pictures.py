"""How a picture is read: every kind of file gives the pixels that one sees."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from models.data.datasets import survey
from models.data.pictures import open_picture
from models.errors import UserError
from models.spec import DatasetSpec
from worker.data.decode import pixels

RED, GREEN, BLUE, YELLOW, WHITE = (255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 0), (255, 255, 255)
ORIENTATION = 0x0112


def saved(image: Image.Image, path: Path, **options: object) -> Image.Image:
    image.save(path, **options)
    return open_picture(path)


def corners(image: Image.Image) -> list[tuple[int, ...]]:
    """Top left, top right, bottom left, bottom right, well inside the corner."""
    w, h = image.size
    return [image.getpixel((x, y)) for y in (4, h - 5) for x in (4, w - 5)]


def close(one: tuple[int, ...], other: tuple[int, ...], within: int = 6) -> bool:
    return all(abs(a - b) <= within for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("name", ["a.tif", "a.jpg"])
def test_cmyk_becomes_rgb(tmp_path, name) -> None:
    for ink, colour in {
        (0, 0, 0, 0): WHITE,
        (255, 0, 0, 0): (0, 255, 255),
        (0, 255, 0, 0): (255, 0, 255),
        (0, 0, 0, 255): (0, 0, 0),
    }.items():
        read = saved(Image.new("CMYK", (16, 16), ink), tmp_path / name)
        assert (read.mode, read.size) == ("RGB", (16, 16))
        assert close(read.getpixel((8, 8)), colour), (ink, read.getpixel((8, 8)))


def test_a_fully_transparent_pixel_is_white_whatever_hides_in_it(tmp_path) -> None:
    image = Image.new("RGBA", (2, 1), (255, 0, 255, 0))
    image.putpixel((1, 0), (10, 20, 30, 255))
    read = saved(image, tmp_path / "a.png")
    assert [read.getpixel((0, 0)), read.getpixel((1, 0))] == [WHITE, (10, 20, 30)]


def test_half_transparency_is_laid_on_white(tmp_path) -> None:
    read = saved(Image.new("RGBA", (1, 1), (0, 0, 0, 128)), tmp_path / "a.png")
    assert close(read.getpixel((0, 0)), (127, 127, 127), 1)


def test_a_palette_with_a_transparent_entry(tmp_path) -> None:
    image = Image.new("P", (3, 1))
    image.putpalette([255, 0, 255, 0, 0, 255, 9, 9, 9])
    for x in range(3):
        image.putpixel((x, 0), x)
    read = saved(image, tmp_path / "a.png", transparency=0)
    assert [read.getpixel((x, 0)) for x in range(3)] == [WHITE, BLUE, (9, 9, 9)]


def test_grey_with_alpha_and_plain_grey_and_one_bit(tmp_path) -> None:
    image = Image.new("LA", (2, 1), (0, 0))
    image.putpixel((1, 0), (77, 255))
    read = saved(image, tmp_path / "la.png")
    assert [read.getpixel((0, 0)), read.getpixel((1, 0))] == [WHITE, (77, 77, 77)]
    assert saved(Image.new("L", (1, 1), 88), tmp_path / "l.png").getpixel((0, 0)) == (88, 88, 88)
    assert saved(Image.new("1", (1, 1), 1), tmp_path / "1.png").getpixel((0, 0)) == WHITE


def quartered(size: tuple[int, int] = (60, 40)) -> Image.Image:
    """Red, green above; blue, yellow below."""
    image = Image.new("RGB", size, RED)
    w, h = size[0] // 2, size[1] // 2
    for colour, at in ((GREEN, (w, 0)), (BLUE, (0, h)), (YELLOW, (w, h))):
        image.paste(colour, (*at, at[0] + w, at[1] + h))
    return image


@pytest.mark.parametrize(
    ("orientation", "size", "seen"),
    [
        (1, (60, 40), [RED, GREEN, BLUE, YELLOW]),
        (3, (60, 40), [YELLOW, BLUE, GREEN, RED]),
        (6, (40, 60), [BLUE, RED, YELLOW, GREEN]),
        (8, (40, 60), [GREEN, YELLOW, RED, BLUE]),
    ],
)
@pytest.mark.parametrize("name", ["a.jpg", "a.png", "a.webp", "a.tif", "a.avif"])
def test_a_turned_photo_is_read_upright(tmp_path, name, orientation, size, seen) -> None:
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    read = saved(quartered(), tmp_path / name, exif=exif, quality=95)
    assert read.size == size
    assert all(close(a, b, 40) for a, b in zip(corners(read), seen, strict=True)), corners(read)
    (tmp_path / "a.txt").write_text("a caption")
    for decode_at_most in (0, None):
        [item] = survey(DatasetSpec(folder_path="x"), tmp_path, decode_at_most=decode_at_most).items
        assert (item.width, item.height) == size


@pytest.mark.parametrize("name", ["a.gif", "a.webp", "a.png"])
def test_an_animation_gives_its_first_frame(tmp_path, name) -> None:
    frames = [Image.new("RGB", (16, 16), colour) for colour in (RED, GREEN, BLUE)]
    options = {"lossless": True} if name == "a.webp" else {}
    read = saved(frames[0], tmp_path / name, save_all=True, append_images=frames[1:], **options)
    assert Image.open(tmp_path / name).n_frames == 3
    assert read.getpixel((8, 8)) == RED


def test_a_cut_picture_is_an_error(tmp_path) -> None:
    Image.effect_noise((200, 200), 80).save(tmp_path / "a.jpg")
    data = (tmp_path / "a.jpg").read_bytes()
    (tmp_path / "a.jpg").write_bytes(data[: len(data) // 2])
    with pytest.raises(UserError, match=r"a\.jpg cannot be used: cut short"):
        open_picture(tmp_path / "a.jpg")


def test_pixels_are_channels_first_from_minus_one_to_one(tmp_path) -> None:
    image = Image.new("RGB", (32, 16), (255, 0, 128))
    image.save(tmp_path / "a.png")
    read = pixels(tmp_path / "a.png", 32, 16)
    assert (read.shape, read.dtype) == ((3, 16, 32), torch.float32)
    assert (read[0] == 1).all()
    assert (read[1] == -1).all()
    torch.testing.assert_close(read[2], torch.full((16, 32), 128 / 127.5 - 1))


def test_a_picture_of_the_bucket_s_size_is_not_resampled(tmp_path) -> None:
    levels = np.random.default_rng(1).integers(0, 256, (16, 32, 3), dtype=np.uint8)
    Image.fromarray(levels).save(tmp_path / "a.png")
    read = pixels(tmp_path / "a.png", 32, 16)
    assert torch.equal(read, torch.from_numpy(levels).permute(2, 0, 1).float() / 127.5 - 1)


def test_what_hangs_over_is_cut_off_evenly_at_both_ends(tmp_path) -> None:
    image = Image.new("RGB", (60, 20), BLUE)
    image.paste(RED, (20, 0, 40, 20))
    image.save(tmp_path / "wide.png")
    assert (pixels(tmp_path / "wide.png", 20, 20)[0] == 1).all()
    image.rotate(90, expand=True).save(tmp_path / "tall.png")
    assert (pixels(tmp_path / "tall.png", 20, 20)[0] == 1).all()


def test_a_picture_is_scaled_to_cover_its_bucket(tmp_path) -> None:
    Image.new("RGB", (50, 100), GREEN).save(tmp_path / "a.png")
    for width, height in ((32, 48), (96, 64), (16, 16)):
        read = pixels(tmp_path / "a.png", width, height)
        assert read.shape == (3, height, width)
        assert (read[1] == 1).all()
        assert (read[0] == -1).all()
