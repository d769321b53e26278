"""Text files of a dataset, read up to a limit. Torch-free."""

import codecs
import json
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

TEXT_BYTES = 1 << 20  # of a caption file, and of a line of metadata: a hundred times what any text encoder reads
NO_TEXT = "not UTF-8 or UTF-16 text"


class BadText(ValueError):
    """A text that cannot be used; the message says why."""


def read_text(path: Path | str) -> str:
    """Return the file's text. Raises FileNotFoundError, BadText for a file that is larger than TEXT_BYTES or cannot be read, and
    UnicodeDecodeError as `decode_text` does."""
    try:
        with open(path, "rb") as file:  # noqa: PTH123 - a hundred thousand times
            data = file.read(TEXT_BYTES + 1)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise BadText(f"cannot be read: {error.strerror or error}") from None
    if len(data) > TEXT_BYTES:
        raise BadText(f"{readable_size(Path(path).stat().st_size)} of text inside, at most {readable_size(TEXT_BYTES)}")
    return decode_text(data)


def decode_text(data: bytes) -> str:
    """Decode UTF-8 with or without a byte order mark, or UTF-16 with one. Raises UnicodeDecodeError for anything else."""
    return data.decode(_encoding(data))


def text_lines(path: Path) -> Iterator[tuple[int, str | BadText]]:
    """Yield each line of the file with its number from 1 on, or why it cannot be read. Lines end at a line feed alone, since JSON may hold
    any other separator. The file is read piece by piece, up to a line of TEXT_BYTES characters or more."""
    try:
        with path.open("rb") as file:
            encoding = _encoding(file.read(2))
        with path.open(encoding=encoding, errors="surrogateescape", newline="\n") as lines:
            for number in count(1):
                line = lines.readline(TEXT_BYTES)
                if len(line) == TEXT_BYTES:
                    yield number, BadText(f"longer than {readable_size(TEXT_BYTES)}; from here on nothing is read")
                    return
                if not line:
                    return
                yield number, line if _is_text(line) else BadText(NO_TEXT)
    except UnicodeDecodeError:
        yield number, BadText(NO_TEXT)
    except OSError as error:
        yield 1, BadText(f"cannot be read: {error.strerror or error}")


def parse_json(text: str) -> Any:
    """Parse JSON. Raises BadText, also for JSON that Python refuses to read."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        place = f" in line {error.lineno}" if "\n" in text.strip() else ""
        raise BadText(f"not valid JSON: {error.msg}{place}") from None
    except RecursionError:
        raise BadText("JSON that is nested too deeply") from None
    except ValueError:
        raise BadText("JSON with a number of too many digits") from None


def readable_size(size: int) -> str:
    """Return `3 GB`, `1.5 MB` or `700 kB`."""
    unit, name = next(
        (unit, name) for unit, name in ((2**30, "GB"), (2**20, "MB"), (2**10, "kB")) if size >= unit or name == "kB"
    )
    return f"{size / unit:.3g} {name}"


def _encoding(data: bytes) -> str:
    return "utf-16" if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) else "utf-8-sig"


def _is_text(line: str) -> bool:
    """Return whether all of the line was UTF-8: other bytes were decoded to surrogates."""
    return not any("\udc80" <= letter <= "\udcff" for letter in line) if not line.isascii() else True
