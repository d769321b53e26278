"""Pixel formats and colour profiles: each of Pillow's modes is scaled by its own range or refused by name, and shown as sRGB."""

import zlib

import numpy as np
import pytest
from PIL import ExifTags, Image, ImageCms

from models.data import depth
from models.data.colour import ADOBE, BROKEN, OTHER
from models.data.pictures import look_at_picture, mask, open_picture
from models.errors import UserError
from tests.picture_files import DISPLAY_P3, SRGB, grey_profile, png_chunk, rgb_profile, to_xyz, write_png, write_tiff

SIZE = (4, 4)


@pytest.mark.parametrize(
    ("value", "dtype", "seen"),
    [
        (0.5, np.float32, 128),
        (0.2, np.float32, 51),
        (1.0, np.float32, 255),
        (1000, np.uint16, 4),
        (128, np.uint16, 0),
        (129, np.uint16, 1),
        (32768, np.uint16, 128),
        (65535, np.uint16, 255),
        (77, np.uint8, 77),
        (True, bool, 255),
    ],
)
def test_numbers_are_scaled_by_their_own_range(tmp_path, value, dtype, seen) -> None:
    path = tmp_path / "a.tif"
    Image.fromarray(np.full(SIZE, value, dtype)).save(path)
    assert open_picture(path).getpixel((1, 1)) == (seen, seen, seen)
    with mask(path) as grey:
        assert grey.getpixel((1, 1)) == seen


@pytest.mark.parametrize(
    ("value", "dtype", "why"),
    [
        (100, np.int32, "whole numbers of 32 bits or with a sign (mode I); save it with 8 or 16 bits a channel"),
        (255.0, np.float32, "numbers from 0 to 255 where 0 to 1 is read (mode F); save it"),
        (-0.5, np.float32, "numbers from -0.5 to 0 where 0 to 1 is read"),
        (np.nan, np.float32, "some of its numbers are not finite (mode F)"),
        (-np.inf, np.float32, "some of its numbers are not finite (mode F)"),
    ],
)
def test_numbers_of_an_unknown_range_are_refused_by_name(tmp_path, value, dtype, why) -> None:
    levels = np.zeros(SIZE, dtype)
    levels[1:] = value
    Image.fromarray(levels).save(tmp_path / "a.tif")
    with pytest.raises(UserError) as error:
        open_picture(tmp_path / "a.tif")
    assert str(error.value).startswith(f"{tmp_path / 'a.tif'} cannot be used: {why}")


def test_every_mode_that_pillow_knows_is_read_or_refused() -> None:
    refused = []
    for mode in Image.MODES:
        try:
            depth.check_mode(Image.new(mode, SIZE))
        except depth.BadPixels as error:
            assert f"(mode {mode})" in str(error)
            refused.append(mode)
    assert refused == ["I"]


def test_twelve_bits_and_negatives_are_read_as_tiff_means_them(tmp_path) -> None:
    twelve = np.frombuffer(bytes([0xFF, 0xF8, 0x00] * 8), np.uint8).reshape(4, 6, 1)  # 4095 and 2048 in turn
    read = open_picture(write_tiff(tmp_path / "12.tif", twelve, bits=12, photometric=1))
    assert [read.getpixel((x, 0))[0] for x in range(2)] == [255, 128]
    negative = np.full((4, 4, 1), 1000, np.uint16)
    assert open_picture(write_tiff(tmp_path / "n.tif", negative, photometric=0)).getpixel((0, 0)) == (251, 251, 251)


@pytest.mark.parametrize(
    ("form", "channels"),
    [("png", 1), ("png", 2), ("png", 3), ("png", 4), ("little", 1), ("little", 3), ("big", 3), ("big", 4), ("packed", 3)],
)
def test_deep_colour_is_rounded_not_cut(tmp_path, form, channels) -> None:
    values = np.random.default_rng(0).integers(0, 65536, (8, 8, channels), dtype=np.uint16)
    values[0, :4] = np.array([1000, 128, 129, 65535])[:, None]
    if channels in (2, 4):
        values[..., -1] = 65535
    path = tmp_path / "a"
    if form == "png":
        write_png(path, values)
    else:
        order = ">" if form == "big" else "<"
        write_tiff(path, values, order=order, packed=form == "packed", photometric=1 if channels == 1 else 2)
    wanted = np.round(values / 257).astype(np.uint8)
    wanted = wanted[..., :3] if channels > 2 else wanted[..., :1].repeat(3, axis=2)
    assert np.array_equal(np.asarray(open_picture(path)), wanted)


def test_a_deep_opacity_is_rounded_too(tmp_path) -> None:
    levels = np.full((1, 4, 2), 65535, np.uint16)
    levels[0, :, 1] = [0, 129, 1000, 65535]
    with mask(write_png(tmp_path / "a.png", levels), alpha=True) as grey:
        assert [grey.getpixel((x, 0)) for x in range(4)] == [0, 1, 4, 255]


# -- masks --------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mode", "inside", "outside", "seen"),
    [
        ("RGBA", (255, 255, 255, 255), (255, 255, 255, 0), (255, 0)),
        ("RGBA", (255, 255, 255, 255), (0, 0, 0, 0), (255, 0)),
        ("RGBA", (0, 0, 0, 200), (0, 0, 0, 0), (200, 0)),  # a silhouette
        ("RGBA", (255, 255, 255, 255), (0, 0, 0, 255), (255, 0)),
        ("LA", (255, 128), (255, 0), (128, 0)),
        ("LA", (200, 255), (100, 255), (200, 100)),
        ("L", 200, 3, (200, 3)),
        ("1", 1, 0, (255, 0)),
    ],
)
def test_a_mask_is_its_brightness_times_its_opacity(tmp_path, mode, inside, outside, seen) -> None:
    image = Image.new(mode, SIZE, outside)
    image.putpixel((1, 1), inside)
    image.save(tmp_path / "a.png")
    with mask(tmp_path / "a.png") as grey:
        assert (grey.getpixel((1, 1)), grey.getpixel((0, 0))) == seen


# -- profiles -----------------------------------------------------------------------------------------------------------------


def linear(levels: np.ndarray) -> np.ndarray:
    x = levels / 255
    return np.where(x <= 0.04045, x / 12.92, ((x + 0.055) / 1.055) ** 2.4)


def encoded(light: np.ndarray) -> np.ndarray:
    x = light.clip(0, 1)
    return 255 * np.where(x <= 0.0031308, 12.92 * x, 1.055 * x ** (1 / 2.4) - 0.055)


def in_srgb(colours: np.ndarray, primaries: tuple) -> np.ndarray:
    """By colorimetry: both spaces have one white, so none needs to be adapted."""
    return encoded(linear(colours) @ (np.linalg.inv(to_xyz(SRGB)) @ to_xyz(primaries)).T)


@pytest.mark.parametrize("form", ["png", "jpg", "tif", "webp"])
@pytest.mark.parametrize("primaries", [DISPLAY_P3, SRGB[::-1]], ids=["display p3", "red and blue swapped"])
def test_a_profile_is_converted_to_srgb(tmp_path, form, primaries) -> None:
    colours = np.random.default_rng(0).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    colours[0, 0] = (200, 30, 30)
    if form == "jpg":
        colours[:] = colours[0, 0]  # of one colour, which JPEG keeps
    options = {"lossless": True} if form == "webp" else {"quality": 100} if form == "jpg" else {}
    Image.fromarray(colours).save(tmp_path / f"a.{form}", icc_profile=rgb_profile(primaries), **options)
    read = np.asarray(open_picture(tmp_path / f"a.{form}"), np.float64)
    within = 3 if form == "jpg" else 1.01  # rounding, and in JPEG that of its own colour space
    assert np.abs(read - in_srgb(colours, primaries)).max() <= within
    wanted = (218, 0, 6) if primaries is DISPLAY_P3 else (30, 30, 200)
    assert np.abs(read[0, 0] - wanted).max() <= within


def test_grey_of_another_gamma_is_brought_to_srgb(tmp_path) -> None:
    for mode, colour in (("L", 100), ("LA", (100, 255))):
        Image.new(mode, SIZE, colour).save(tmp_path / "a.png", icc_profile=grey_profile(1.8))
        assert open_picture(tmp_path / "a.png").getpixel((1, 1)) == (119, 119, 119)
    write_png(tmp_path / "a.png", np.full((1, 1, 1), 25700, np.uint16), extra=iccp(grey_profile(1.8)))
    assert open_picture(tmp_path / "a.png").getpixel((0, 0)) == (119, 119, 119)


def iccp(profile: bytes) -> bytes:
    return png_chunk(b"iCCP", b"p\0\0" + zlib.compress(profile))


def test_transparency_is_laid_on_white_after_the_profile(tmp_path) -> None:
    image = Image.new("RGBA", SIZE, (200, 30, 30, 0))
    image.putpixel((1, 1), (200, 30, 30, 255))
    image.save(tmp_path / "a.png", icc_profile=rgb_profile(SRGB[::-1]))
    read = open_picture(tmp_path / "a.png")
    assert read.getpixel((0, 0)) == (255, 255, 255)
    assert np.abs(np.subtract(read.getpixel((1, 1)), (30, 30, 200))).max() <= 1


def test_a_picture_in_srgb_keeps_its_bytes(tmp_path) -> None:
    colours = np.random.default_rng(0).integers(0, 256, (16, 16, 3), dtype=np.uint8)
    for profile in (rgb_profile(SRGB), ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()):
        Image.fromarray(colours).save(tmp_path / "a.png", icc_profile=profile)
        assert np.array_equal(np.asarray(open_picture(tmp_path / "a.png")), colours)


def test_a_mask_s_numbers_are_data_whatever_its_profile(tmp_path) -> None:
    Image.new("L", SIZE, 100).save(tmp_path / "a.png", icc_profile=grey_profile(1.8))
    with mask(tmp_path / "a.png") as grey:
        assert grey.getpixel((1, 1)) == 100


@pytest.mark.parametrize(
    ("mode", "profile", "note"),
    [
        ("RGB", b"no profile", BROKEN),
        ("RGB", rgb_profile(DISPLAY_P3)[:200], BROKEN),
        ("RGB", grey_profile(1.8), OTHER),
        ("L", rgb_profile(SRGB), None),
        ("RGB", rgb_profile(DISPLAY_P3), None),
        ("RGB", None, None),
    ],
)
@pytest.mark.parametrize("decode", [True, False])
def test_a_profile_that_is_not_applied_is_noted(tmp_path, mode, profile, note, decode) -> None:
    Image.new(mode, SIZE, "teal").save(tmp_path / "a.png", icc_profile=profile)
    assert look_at_picture(tmp_path / "a.png", decode=decode).get("notes") == ([note] if note else None)
    if note:
        assert open_picture(tmp_path / "a.png").getpixel((0, 0)) == (0, 128, 128)


def test_a_profile_that_pillow_cannot_unpack_is_noted(tmp_path) -> None:
    write_png(tmp_path / "a.png", np.zeros((1, 1, 3), np.uint8), extra=png_chunk(b"iCCP", b"p\0\0no zlib"))
    assert look_at_picture(tmp_path / "a.png", decode=True)["notes"] == [BROKEN]


def test_colours_that_are_said_otherwise_are_noted(tmp_path) -> None:
    pixels = np.zeros((1, 1, 3), np.uint8)
    for gamma, notes in ((100_000, ["a PNG gamma of 1, which is not applied"]), (45_455, None)):
        write_png(tmp_path / "a.png", pixels, extra=png_chunk(b"gAMA", gamma.to_bytes(4, "big")))
        assert look_at_picture(tmp_path / "a.png", decode=True).get("notes") == notes
    exif = Image.Exif()
    exif.get_ifd(ExifTags.IFD.Exif)[ExifTags.IFD.Interop] = {1: "R03"}
    Image.new("RGB", SIZE).save(tmp_path / "a.jpg", exif=exif)
    assert look_at_picture(tmp_path / "a.jpg", decode=True)["notes"] == [ADOBE]
    Image.new("RGB", SIZE).save(tmp_path / "a.jpg", exif=exif, icc_profile=rgb_profile(SRGB))
    assert "notes" not in look_at_picture(tmp_path / "a.jpg", decode=True)
