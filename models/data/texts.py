"""Text files of a dataset, read up to a limit, and what any text may hold. Torch-free."""

import codecs
import json
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

from models.data.names import is_text, printable

TEXT_BYTES = 1 << 20  # of a caption file, and of a line of metadata: a hundred times what any text encoder reads
NO_TEXT = "not UTF-8 or UTF-16 text"
CONTROL = re.compile("[\x00-\x08\x0e-\x1b\x1f\x7f-\x84\x86-\x9f]")  # all but tabs and what `str.splitlines` takes for line breaks
WITHOUT_INK = {"Cc", "Cf", "Zs", "Zl", "Zp"}  # categories of Unicode
ALSO_WITHOUT_INK = {"\u034f", "\u115f", "\u1160", "\u2800", "\u3164", "\uffa0", *map(chr, range(0xFE00, 0xFE10))}


class BadText(ValueError):
    """A text that cannot be used; the message says why."""


def read_text(path: Path | str) -> str:
    """Return the file's text. Raises FileNotFoundError, BadText for a file that is larger than TEXT_BYTES, cannot be read, is UTF-32
    or holds control characters, and UnicodeDecodeError for anything that is neither UTF-8 nor UTF-16 with a byte order mark."""
    try:
        with open(path, "rb") as file:  # noqa: PTH123 - a hundred thousand times
            data = file.read(TEXT_BYTES + 1)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise BadText(f"cannot be read: {error.strerror or error}") from None
    if len(data) > TEXT_BYTES:
        raise BadText(f"{readable_size(Path(path).stat().st_size)} of text inside, at most {readable_size(TEXT_BYTES)}")
    text = data.decode(_encoding(data))
    if unusable := unusable_in(text):
        raise BadText(f"holds {unusable}")
    return text


def unusable_in(text: str) -> str | None:
    """Return what the text holds that no text may hold, in words: a control character other than a tab or line break, or half of a
    character; None if there is nothing of the kind."""
    if found := CONTROL.search(text):
        return f"U+{ord(found[0]):04X}, a control character"
    return None if is_text(text) else "half of a surrogate pair, which is no character"


def is_blank(text: str) -> bool:
    """Return whether nothing in the text can be seen: spaces, line breaks and characters without width or ink."""
    return all(letter in ALSO_WITHOUT_INK or unicodedata.category(letter) in WITHOUT_INK for letter in text)


def text_lines(path: Path) -> Iterator[tuple[int, str | BadText]]:
    """Yield each line of the file with its number from 1 on, or why it cannot be read. Lines end at a line feed alone, since JSON may hold
    any other separator. The file is read piece by piece, up to a line of TEXT_BYTES characters or more."""
    try:
        with path.open("rb") as file:
            encoding = _encoding(file.read(4))
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
    except BadText as error:
        yield 1, error
    except OSError as error:
        yield 1, BadText(f"cannot be read: {error.strerror or error}")


def without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the object of these pairs, for `json.loads`. Raises BadText for a key that stands twice."""
    made = dict(pairs)
    if len(made) < len(pairs):
        [(key, _)] = Counter(key for key, _ in pairs).most_common(1)
        raise BadText(f"key {printable(key)!r} stands twice in one object")
    return made


def parse_json(text: str | bytes, make_object: Callable[[list[tuple[str, Any]]], Any] = without_doubles) -> Any:
    """Parse JSON, with `make_object` for the pairs of an object. Raises BadText, also for JSON that Python refuses to read, and for
    numbers that JSON does not know."""
    try:
        return json.loads(text, object_pairs_hook=make_object, parse_constant=_no_constant)
    except BadText:
        raise
    except UnicodeDecodeError:
        raise BadText("not UTF-8 text") from None
    except json.JSONDecodeError as error:
        place = f" in line {error.lineno}" if "\n" in error.doc.strip() else ""
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


def _no_constant(word: str) -> None:
    raise BadText(f"not valid JSON: {word} is not a JSON number")


def _encoding(data: bytes) -> str:
    if data.startswith((codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE)):  # the former begins like UTF-16
        raise BadText(f"UTF-32, {NO_TEXT}")
    return "utf-16" if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) else "utf-8-sig"


def _is_text(line: str) -> bool:
    """Return whether all of the line was UTF-8: other bytes were decoded to surrogates."""
    return not any("\udc80" <= letter <= "\udcff" for letter in line) if not line.isascii() else True
