"""Colour profiles: pictures of other colour spaces are converted to sRGB. Torch-free.

Every picture is trained as sRGB. A profile of another space is applied as colour management does it: relative colorimetric, with black
point compensation. A profile that changes no value by more than ONE_LEVEL counts as sRGB, and such pictures keep their values.
"""

import io
from contextlib import suppress
from functools import lru_cache

from PIL import ExifTags, Image, ImageChops, ImageCms

ONE_LEVEL = 1  # of 255: what rounding does
GRID = range(0, 256, 32)
MODES = {"RGB": "RGB", "GRAY": "L", "CMYK": "CMYK"}  # a profile's colour space, and Pillow's mode of its numbers
FITTING = {
    "RGB": {"1", "L", "LA", "La", "P", "PA", "RGB", "RGBA", "RGBa", "RGBX", "YCbCr"},
    "GRAY": {"1", "L", "LA", "La"},
    "CMYK": {"CMYK"},
}
SRGB_GAMMA, SAME_GAMMA = 1 / 2.2, 0.05
INDEX = 1  # in EXIF's table of interoperability
ADOBE = "the mark of Adobe RGB but no profile, read as sRGB"
BROKEN = "a broken colour profile, which counts as none"
OTHER = "a colour profile of another kind of picture, which counts as none"


def profile_fault(image: Image.Image) -> str | None:
    """Return a note on a profile, or another statement about colours, that is not applied; None if there is none."""
    profile = image.info.get("icc_profile")
    if not profile:  # Pillow leaves None of a profile that it cannot unpack
        return BROKEN if "icc_profile" in image.info else _other_space(image)
    found = _transform(profile)
    if isinstance(found, str):
        return found
    return None if image.mode.startswith(("I;16", "F")) or image.mode in FITTING[found[0]] else OTHER


def _other_space(image: Image.Image) -> str | None:
    """Return a note on colours that a file without a profile declares otherwise: a PNG's gamma, or a camera's mark of Adobe RGB."""
    gamma = image.info.get("gamma")
    if gamma and "srgb" not in image.info and abs(gamma / SRGB_GAMMA - 1) > SAME_GAMMA:
        return f"a PNG gamma of {gamma:.3g}, which is not applied"
    if image.info.get("exif"):
        with suppress(Exception):  # a broken block makes Pillow raise errors of many kinds
            if Image.Image.getexif(image).get_ifd(ExifTags.IFD.Interop).get(INDEX) == "R03":
                return ADOBE
    return None


def to_srgb(image: Image.Image) -> Image.Image:
    """Convert a picture of 8 bits without transparency to RGB in sRGB; a profile with a fault counts as none."""
    profile = image.info.get("icc_profile")
    found = _transform(profile) if profile else BROKEN
    if isinstance(found, str) or image.mode not in FITTING[found[0]]:
        return image.convert("RGB")
    space, transform = found
    numbers = image.convert(MODES[space])
    return transform.apply(numbers) if transform else numbers.convert("RGB")


@lru_cache(maxsize=32)
def _transform(profile: bytes) -> tuple[str, ImageCms.ImageCmsTransform | None] | str:
    """Return (the profile's colour space, its transform to sRGB or None where it is sRGB already), or a note on its fault."""
    try:
        source = ImageCms.ImageCmsProfile(io.BytesIO(profile))
        space = source.profile.xcolor_space.strip()
        if space not in MODES:
            return OTHER
        transform = ImageCms.buildTransform(
            source,
            ImageCms.createProfile("sRGB"),
            MODES[space],
            "RGB",
            ImageCms.Intent.RELATIVE_COLORIMETRIC,
            ImageCms.Flags.BLACKPOINTCOMPENSATION,
        )
        return space, None if _changes_nothing(transform, MODES[space]) else transform
    except Exception:  # the colour engine raises errors of many kinds
        return BROKEN


def _changes_nothing(transform: ImageCms.ImageCmsTransform, mode: str) -> bool:
    if mode == "CMYK":
        return False
    colours = bytes(range(256)) if mode == "L" else bytes(v for r in GRID for g in GRID for b in GRID for v in (r, g, b))
    shown = Image.frombytes(mode, (len(colours) // len(mode), 1), colours)
    moved = ImageChops.difference(shown.convert("RGB"), transform.apply(shown))
    return max(high for _, high in moved.getextrema()) <= ONE_LEVEL  # type: ignore[misc]
