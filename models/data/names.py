"""File names: found again however they are spelled, and shown when they are no text. Torch-free."""

import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property


class Names:
    """Names that are the same for people: of one spelling, else with accents written another way (Macs split a letter from its accent),
    else in other capitals."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = frozenset(names)

    def find(self, given: str) -> list[str]:
        """The name itself, else all that differ in accents alone, else all that differ in capitals too; sorted, [] if there is none."""
        if given in self._names:
            return [given]
        alike = self._alike.get(_key(given), [])
        return [name for name in alike if _composed(name) == _composed(given)] or alike

    @cached_property
    def _alike(self) -> Mapping[str, list[str]]:
        return grouped({name: _key(name) for name in sorted(self._names)})


@dataclass
class Beside:
    """Files that belong to media. `of` are by the medium's path without extension; `orphans` belong to nothing; `unclear` and `spare` are
    sentences: on files that could belong to several media, and on those that are not read, since another belongs there too."""

    of: dict[str, str] = field(default_factory=dict)
    orphans: list[str] = field(default_factory=list)
    unclear: list[str] = field(default_factory=list)
    spare: list[str] = field(default_factory=list)


def beside(files: Iterable[str], stems: Iterable[str], ending: str = "") -> Beside:
    """Which of the files belongs to which stem, that is a path without extension. Of several for one the first in this order: its very
    stem, `ending` as it is written, the order of `files`."""
    found, known = Beside(), Names(stems)
    owners: dict[str, str] = {}
    for file in files:
        owned = known.find(stem(file))
        if len(owned) > 1:
            found.unclear.append(f"{file} (it fits {' and '.join(owned)})")
        elif owned:
            owners[file] = owned[0]
        else:
            found.orphans.append(file)
    for owner, claims in grouped(owners).items():
        first, *others = sorted(claims, key=lambda file: (stem(file) != owner, not file.endswith(ending)))
        found.of[owner] = first
        found.spare += [f"{other} ({first} is read)" for other in others]
    return found


def stem(name: str) -> str:
    """The path without its extension."""
    return name.rpartition(".")[0]


def grouped(keys: Mapping[str, str]) -> dict[str, list[str]]:
    """For each value of the mapping its keys, in their order."""
    made = defaultdict(list)
    for name, key in keys.items():
        made[key].append(name)
    return dict(made)


def is_text(name: str) -> bool:
    """Whether it can be written as UTF-8: bytes that cannot be decoded, and halves of surrogate pairs, cannot."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def printable(name: str) -> str:
    """The name with all that is no text written as `\\xff`."""
    try:
        return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    except UnicodeEncodeError:
        return name.encode("utf-8", "backslashreplace").decode()


def _composed(name: str) -> str:
    return unicodedata.normalize("NFC", name)


def _key(name: str) -> str:
    return name.lower() if name.isascii() else _composed(_composed(name).casefold())
