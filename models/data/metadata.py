"""metadata.jsonl: captions for the files of a folder, in the form of a Hugging Face image folder. Torch-free."""

import os
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from models.data.captions import caption_in, one_line
from models.data.names import Names, grouped, is_text, printable, stem
from models.data.texts import BadText, parse_json, text_lines

METADATA = "metadata.jsonl"
TABLES = {"csv", "tsv", "parquet", "jsonl"}


@dataclass
class Metadata:
    """What a folder's metadata.jsonl says: `captions` by the names of files that are there, `unmatched` names of no file, and its faults by
    line, 0 standing for the file itself."""

    captions: dict[str, str] = field(default_factory=dict)
    unmatched: list[str] = field(default_factory=list)
    faults: list[tuple[int, str]] = field(default_factory=list)

    def counts(self) -> str:
        """`1 of 3 lines match a file`"""
        total = len(self.captions) + len(self.unmatched)
        return f"{len(self.captions)} of {total} lines match a file here"


def read_metadata(folder: Path, files: Collection[str]) -> Metadata:
    """The folder's metadata.jsonl: a line is an object with `file_name` and a caption. `files` are the names within the folder."""
    found, names = Metadata(), Names(files)
    path = folder / METADATA
    if METADATA not in files:
        return found
    for number, line in text_lines(path):
        try:
            if isinstance(line, BadText):
                raise line
            if not (begins := line.strip()[:80]):
                continue
            if not (found.captions or found.unmatched or found.faults) and (begins == "{" or begins.startswith("[")):
                found.faults.append((0, "it is one JSON text; write one object a line, without a list around them"))
                break
            value = parse_json(line)
            caption = one_line(caption_in(value))
            given = value.get("file_name")
            if not isinstance(given, str):
                raise BadText("file_name is missing")
            file = _meant(given, folder, names)
            if file in found.captions:
                raise BadText(f"{file} is named a second time")
        except BadText as error:
            found.faults.append((number, str(error)))
        else:
            if file is None:
                found.unmatched.append(printable(given))
            else:
                found.captions[file] = caption
    return found


def _meant(given: str, folder: Path, names: Names) -> str | None:
    """The file that a line means; None if there is none. Raises BadText if it may be several."""
    for spelling in _spellings(given, folder):
        fitting = names.find(spelling)
        if len(fitting) > 1:
            raise BadText(f"{given} may be {' or '.join(fitting)}")
        if fitting:
            return fitting[0]
    return None


def _spellings(given: str, folder: Path) -> Iterator[str]:
    """What the name may be within the folder: as it is, with other slashes or a `./`, as an absolute path, from the folder above."""
    yield given
    if not is_text(given) or "\0" in given:
        return
    plain = given.replace("\\", "/")
    within = os.path.relpath(os.path.join(folder, plain), folder)  # noqa: PTH118 - without a look at the disk
    yield within
    if plain.startswith("/"):
        yield os.path.relpath(os.path.realpath(plain), folder)
    above, _, rest = within.partition("/")
    if rest and Names([folder.name]).find(above):
        yield rest


def fitting_names(unmatched: Collection[str], files: Collection[str]) -> dict[str, str]:
    """For names of no file the one file that each may mean: of the same name elsewhere in the folder, or with another extension."""
    found: dict[str, str] = {}
    for part in (_base, lambda name: stem(_base(name))):
        by_part = grouped({file: part(file) for file in files if part(file)})
        names = Names(by_part)
        for name in unmatched:
            alike = [file for key in names.find(part(name.replace("\\", "/"))) for file in by_part[key]]
            if len(alike) == 1:
                found.setdefault(name, alike[0])
    return found


def misplaced(name: str) -> str | None:
    """Why a file that looks like metadata is not read, in a sentence; None for other files."""
    base = _base(name)
    if name == METADATA:
        return None
    if base == METADATA:
        return f"{name} is not read: {METADATA} must lie in the dataset's own folder and name files from there (sub/a.png)"
    if base.lower() == METADATA:
        return f"{name} is not read: its name must be {METADATA}"
    if base.lower().startswith("metadata.") or base.rpartition(".")[2].lower() in TABLES:
        return f"{name} is not read: captions of several files stand in {METADATA}, on each line an object with file_name and a caption"
    return None


def _base(name: str) -> str:
    return name.rpartition("/")[2]
