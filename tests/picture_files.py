"""Picture files that Pillow cannot write: 16 bits a channel, colour profiles made of numbers."""

import struct
import zlib
from pathlib import Path

import numpy as np

SRGB = ((0.64, 0.33), (0.30, 0.60), (0.15, 0.06))
DISPLAY_P3 = ((0.68, 0.32), (0.265, 0.69), (0.15, 0.06))
D65, D50 = (0.3127, 0.3290), (0.3457, 0.3585)
BRADFORD = np.array([[0.8951, 0.2664, -0.1614], [-0.7502, 1.7135, 0.0367], [0.0389, -0.0685, 1.0296]])


def write_png(path: Path, levels: np.ndarray, *, extra: bytes = b"") -> Path:
    """(H, W, channels) of uint16 or uint8: grey, grey with alpha, colour, colour with alpha. `extra` are chunks before the pixels."""
    height, width, channels = levels.shape
    kind = {1: 0, 2: 4, 3: 2, 4: 6}[channels]
    header = struct.pack(">IIBBBBB", width, height, levels.dtype.itemsize * 8, kind, 0, 0, 0)
    rows = b"".join(b"\0" + row.astype(levels.dtype.newbyteorder(">")).tobytes() for row in levels)
    whole = png_chunk(b"IHDR", header) + extra + png_chunk(b"IDAT", zlib.compress(rows)) + png_chunk(b"IEND", b"")
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + whole)
    return path


def png_chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def write_tiff(
    path: Path, levels: np.ndarray, *, order: str = "<", packed: bool = False, bits: int = 16, photometric: int = 2
) -> Path:
    """(H, W, channels) of uint16 (or (H, bytes, 1) of uint8 as they lie in the file, `bits` each pixel); `order` < or >."""
    height, width, channels = levels.shape
    data = levels.astype(levels.dtype.newbyteorder(order)).tobytes()
    width = width * 8 // bits if levels.dtype == np.uint8 else width
    data = zlib.compress(data) if packed else data
    sizes = struct.pack(f"{order}{channels}H", *[bits] * channels)
    tags = [
        (256, 4, 1, width),
        (257, 4, 1, height),
        (258, 3, channels, 8),
        (259, 3, 1, 8 if packed else 1),
        (262, 3, 1, photometric),
    ]
    tags += [(273, 4, 1, 16 + len(sizes)), (277, 3, 1, channels), (278, 4, 1, height), (279, 4, 1, len(data))]
    tags += [(338, 3, 1, 2)] if channels == 4 else []
    entries = b""
    for tag, form, count, value in tags:
        if tag == 258 and channels == 1:
            value = bits
        fits = "HH" if form == 3 and count == 1 else "I"
        entries += struct.pack(f"{order}HHI{fits}", tag, form, count, *((value, 0) if fits == "HH" else (value,)))
    begin = struct.pack(f"{order}2sHI", b"II" if order == "<" else b"MM", 42, 16 + len(sizes) + len(data))
    # the sizes of the channels lie right behind the header, and behind them the pixels
    whole = begin + sizes + b"\0" * 8 + data + struct.pack(f"{order}H", len(tags)) + entries + b"\0" * 4
    path.write_bytes(whole)
    return path


def to_xyz(primaries: tuple[tuple[float, float], ...], white: tuple[float, float] = D65) -> np.ndarray:
    """The matrix from linear RGB of these primaries to XYZ."""
    columns = np.array([[x / y, 1, (1 - x - y) / y] for x, y in primaries]).T
    return columns * np.linalg.solve(columns, _white(white))


def rgb_profile(primaries: tuple[tuple[float, float], ...]) -> bytes:
    """An ICC profile of these primaries, D65 and the sRGB curve."""
    scale = (BRADFORD @ _white(D50)) / (BRADFORD @ _white(D65))
    adapted = np.linalg.inv(BRADFORD) @ np.diag(scale) @ BRADFORD @ to_xyz(primaries)
    curve = b"para\0\0\0\0" + struct.pack(
        ">HH5i", 3, 0, *(_fixed(v) for v in (2.4, 1 / 1.055, 0.055 / 1.055, 1 / 12.92, 0.04045))
    )
    tags = {name + b"XYZ": _xyz(adapted[:, place]) for place, name in enumerate((b"r", b"g", b"b"))}
    return _profile(b"RGB ", tags | {name + b"TRC": curve for name in (b"r", b"g", b"b")})


def grey_profile(gamma: float) -> bytes:
    return _profile(b"GRAY", {b"kTRC": b"curv\0\0\0\0" + struct.pack(">IHxx", 1, round(gamma * 256))})


def _profile(space: bytes, tags: dict[bytes, bytes]) -> bytes:
    tags = {b"wtpt": _xyz(_white(D50)), **tags}
    table, data, at = b"", b"", 128 + 4 + 12 * len(tags)
    for name, content in tags.items():
        table += name + struct.pack(">II", at + len(data), len(content))
        data += content
    body = struct.pack(">I", len(tags)) + table + data
    head = struct.pack(">I4xI", 128 + len(body), 0x04200000) + b"mntr" + space + b"XYZ " + struct.pack(">6H", 2020, 1, 1, 0, 0, 0)
    head += b"acsp" + b"\0" * 28 + _xyz(_white(D50))[8:]
    return head.ljust(128, b"\0") + body


def _white(xy: tuple[float, float]) -> np.ndarray:
    return np.array([xy[0] / xy[1], 1, (1 - sum(xy)) / xy[1]])


def _xyz(values: np.ndarray) -> bytes:
    return b"XYZ \0\0\0\0" + struct.pack(">3i", *(_fixed(value) for value in values))


def _fixed(value: float) -> int:
    return round(value * 65536)
