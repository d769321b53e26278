"""Looking at files: which there are in a folder, and what each holds. Torch-free.

Hidden files and folders, `._` companions and anything that is no picture, clip or sound by its extension are passed over.
"""

import hashlib
import os
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from models.data.clips import CLIPS, SOUNDS, BadClip, probe_clip, probe_sound
from models.data.fileindex import FileIndex, Stamp, stamp_of
from models.data.limits import decoding_threads
from models.data.names import is_text, printable
from models.data.pictures import PICTURES, BadPicture, look_at_picture

AHEAD = 64  # files looked at in advance
REMEMBERED_AT_ONCE, REMEMBERED_SECONDS = 1000, 1.0  # whichever comes first: a run may be ended at any moment
NO_NAME = "its name is no UTF-8 text; rename it"
NO_FILE = "a pipe, socket or device, not a file"
LEADS_OUT = "a link that leads out of the folders that jobs may read"
UNREAD = "cannot be read: "  # so begins a problem of getting at a file, which says nothing of its content and may pass

Kind = Literal["picture", "clip", "sound"]
KINDS: Mapping[Kind, set[str]] = {"picture": PICTURES, "clip": CLIPS, "sound": SOUNDS}
KIND_OF: Mapping[str, Kind] = {extension[1:]: kind for kind, extensions in KINDS.items() for extension in extensions}


@dataclass(frozen=True)
class Media:
    """A file and what was found in it: sizes in pixels, upright; `frames`, `seconds` (from the first frame to the last) and `has_sound`
    of a clip; `milliseconds` of a sound; `notes` on parts of it that are ignored. `digest` is the SHA-256 of its bytes, "" while it is
    not known; `stamp` is as old as that."""

    file: str
    kind: Kind
    stamp: Stamp
    digest: str = ""
    width: int = 0
    height: int = 0
    frames: int = 1
    seconds: float = 0.0
    has_sound: bool = False
    milliseconds: int = 0
    notes: tuple[str, ...] = ()

    @property
    def path(self) -> Path:
        return Path(self.file)


def kind_of(name: str) -> Kind | None:
    """What the file is, by its extension in any case."""
    return KIND_OF.get(name.rpartition(".")[2].lower())


@dataclass
class Listing:
    """The files under a folder, as paths within it, sorted by their parts. A link to a folder stands there as `name/`, one that leads
    nowhere as `name`. `unusable` are not among `names`: printable names with what is wrong with them."""

    names: list[str] = field(default_factory=list)
    unusable: dict[str, str] = field(default_factory=dict)


def listing(folder: Path, skip: Collection[Path] = (), roots: Collection[Path] = ()) -> Listing:
    """All files under `folder` that are not hidden. `skip` are folders to pass over. A link to a folder is not followed, and one to a file
    only as far as it stays within the folder or `roots`."""
    passed = {str(path) for path in skip if path != folder}
    inside = tuple(str(root).rstrip("/") + "/" for root in (folder.resolve(), *roots))
    made = Listing()
    todo = [(str(folder), "")]
    while todo:
        place, prefix = todo.pop()
        try:
            with os.scandir(place) as entries:
                shown = [entry for entry in entries if not entry.name.startswith(".")]
        except OSError as error:
            made.unusable[printable(prefix) or "."] = f"{UNREAD}{error.strerror}"
            continue
        for entry in shown:
            name = prefix + entry.name
            if entry.is_dir(follow_symlinks=False):
                if entry.path not in passed:
                    todo.append((entry.path, f"{name}/"))
            elif not is_text(name):
                made.unusable[printable(name)] = NO_NAME
            elif entry.is_symlink() and not f"{os.path.realpath(entry.path)}/".startswith(inside):
                made.unusable[name] = LEADS_OUT
            elif os.path.isdir(entry.path):  # noqa: PTH112 - unlike Path's, never an error where a folder may not be read
                made.names.append(f"{name}/")
            elif os.path.isfile(entry.path) or not os.path.exists(entry.path):  # noqa: PTH110, PTH113 - as above
                made.names.append(name)
            else:
                made.unusable[name] = NO_FILE
    made.names.sort(key=lambda name: name.split("/"))
    return made


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def look_at(path: Path, kind: Kind, *, decode: bool) -> dict[str, Any]:
    """The fields of Media that the file's content decides, or {"problem": why it cannot be used}. Without `decode` only its header is
    read and `digest` is left out."""
    try:
        digest = sha256_of(path) if decode else ""  # before the rest: a file that changes meanwhile then no longer fits it
        if kind == "picture":
            facts = look_at_picture(path, decode=decode)
        elif path.stat().st_size == 0:
            return {"problem": "empty file"}
        elif kind == "clip":
            clip = probe_clip(path, decode=decode)
            facts = {name: getattr(clip, name) for name in ("width", "height", "frames", "seconds", "has_sound")}
        else:
            facts = {"milliseconds": probe_sound(path, decode=decode).milliseconds}
        return {**facts, "digest": digest} if decode else facts
    except (BadClip, BadPicture) as error:
        return {"problem": str(error)}
    except OSError as error:
        return {"problem": f"{UNREAD}{error.strerror or type(error).__name__}"}


_Unknown = tuple[str, str, Kind, Stamp]  # name, file, ...
Tell = Callable[[int, int], None]


class Looks:
    """Looks at many files in threads. What `index` knows of an unchanged file is not looked at again; of the others no more than
    `decode_at_most` are decoded (None: all), and `undecoded` counts the rest. `check` is called between files and may raise, and `tell`
    with the number of files that are done, and of those that are known of by now."""

    def __init__(
        self,
        index: FileIndex | None = None,
        decode_at_most: int | None = None,
        check: Callable[[], None] = lambda: None,
        tell: Tell = lambda _done, _total: None,
    ) -> None:
        self.index, self.check, self.tell = index, check, tell
        self.left = decode_at_most
        self.undecoded = self.done = self.total = 0

    def at(self, folder: Path, names: Sequence[str]) -> dict[str, Media | str]:
        """For each file name within `folder` what it is, or why it cannot be used."""
        known = self.index.known(folder) if self.index else {}
        found: dict[str, Media | str] = {}
        unknown: list[_Unknown] = []
        for name in names:
            file, kind = f"{folder}/{name}", kind_of(name)
            assert kind is not None
            try:
                stamp = stamp_of(file)
            except OSError as error:
                found[name] = f"{UNREAD}{error.strerror or type(error).__name__}"
                continue
            before = known.get(file)
            if before and before[0] == stamp and not _may_pass(before[1]):
                found[name] = _media(file, kind, stamp, before[1])
            else:
                unknown.append((name, file, kind, stamp))
        self.total += len(names)
        self.done += len(names) - len(unknown)
        self.tell(self.done, self.total)
        self._look(unknown, found)
        return found

    def _look(self, unknown: list[_Unknown], found: dict[str, Media | str]) -> None:
        rows: list[tuple[str, Stamp, dict[str, Any]]] = []
        since = time.monotonic()
        try:
            for (name, file, kind, stamp), decoded, facts in self._facts(unknown):
                self.check()
                found[name] = _media(file, kind, stamp, facts)
                self.undecoded += not decoded
                self.done += 1
                self.tell(self.done, self.total)
                if decoded and not _may_pass(facts):
                    rows.append((file, stamp, facts))
                if self.index and (len(rows) >= REMEMBERED_AT_ONCE or time.monotonic() - since > REMEMBERED_SECONDS):
                    self.index.remember(rows)
                    rows, since = [], time.monotonic()
        finally:
            if self.index:
                self.index.remember(rows)

    def _facts(self, unknown: list[_Unknown]) -> Iterator[tuple[_Unknown, bool, dict[str, Any]]]:
        """In order, a few files ahead of who takes them."""
        coming: deque[tuple[_Unknown, bool, Future[dict[str, Any]]]] = deque()
        with ThreadPoolExecutor(decoding_threads()) as pool:
            try:
                for each in unknown:
                    decode = self.left is None or self.left > 0
                    if self.left is not None:
                        self.left -= decode
                    coming.append((each, decode, pool.submit(look_at, Path(each[1]), each[2], decode=decode)))
                    if len(coming) > AHEAD:
                        first, decoded, future = coming.popleft()
                        yield first, decoded, future.result()
                while coming:
                    first, decoded, future = coming.popleft()
                    yield first, decoded, future.result()
            finally:
                for _, _, future in coming:
                    future.cancel()


def _may_pass(facts: Mapping[str, Any]) -> bool:
    return str(facts.get("problem", "")).startswith(UNREAD)


def _media(file: str, kind: Kind, stamp: Stamp, facts: Mapping[str, Any]) -> Media | str:
    if "problem" in facts:
        return str(facts["problem"])
    return Media(file, kind, stamp, **{**facts, "notes": tuple(facts.get("notes", ()))})
