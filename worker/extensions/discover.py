"""`python -m worker.extensions.discover`: look into the folders that SAFELIGHT_EXTENSIONS names, and store what is there.

With `--watch` it goes on looking every other second, for as long as the process that started it lives. Each package whose source
changed is imported in a fork of its own, so that nothing it does at import, a crash or a hang included, reaches another one or this
process.
What all architectures import is imported once, here, so that a new folder is listed within seconds also while a job trains.
"""

import contextlib
import fcntl
import importlib
import json
import logging
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

from models import catalog
from models.arch import Arch
from models.errors import UserError
from models.extensions import Extension
from server.store import extensions
from server.store.engine import forget, migrate
from server.store.settings import settings
from server.store.tables import ExtensionArch
from worker.extensions import foreign
from worker.extensions.packages import CHOICES, Package, Stamps, arch_in_source, digest, entries, packages, replaces, stamps

LONGEST_IMPORT_SECONDS = 60  # the largest folders take seconds, on a busy machine some ten
SLOW_IMPORT_SECONDS = 5  # after these the folder is listed as broken until its import is done
LOOK_SECONDS = 2.0
REPLACING = "In place of Safelight's own."
TAKEN = "@"  # between the name that an arch wanted and its folder

log = logging.getLogger("worker.extensions.discover")


def main(arguments: Sequence[str] = ()) -> int:
    logging.basicConfig(level=settings().log_level, format="%(asctime)s discover %(levelname)s %(message)s")
    migrate()
    if "--watch" not in arguments:
        look(everything=True)
        return 0
    parent = os.getppid()
    with only_one(parent) as mine:
        if mine:
            watch(parent)
    return 0


@contextlib.contextmanager
def only_one(parent: int) -> Iterator[bool]:
    """One watcher for a data folder is enough, however many workers there are: wait for the place. False if the parent ended first."""
    folder = settings().home / "workers"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "extensions.lock").open("a") as lock:
        while os.getppid() == parent:
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                yield True
                return
            time.sleep(LOOK_SECONDS)
        yield False


def watch(parent: int) -> None:
    """Look again whenever a source file appeared, changed or went, until the parent is gone."""
    seen: Stamps | None = None
    while os.getppid() == parent:
        try:
            stamped = stamps(packages(settings().extensions))
            if stamped != seen:
                look(everything=seen is None)
                seen = stamped
            warm_up()
        except Exception:  # a file that goes while it is read, a busy database
            log.exception("the folders could not be looked at; tried again in %s s", LOOK_SECONDS)
        time.sleep(LOOK_SECONDS)


def look(everything: bool) -> None:
    """Bring the table to what is on disk; `everything` imports packages again whose source has not changed."""
    known: dict[str, list[dict[str, Any]]] = {}
    for row in extensions.listing():
        known.setdefault(row.source, []).append(row.model_dump(exclude={"seen_at"}))
    found = packages(settings().extensions)
    changed = [package for package in found if everything or not _as_known(package, known.get(str(package.path), []))]
    if any(package.problem is None for package in changed):
        warm_up()

    def know(package: Package, rows: list[dict[str, Any]]) -> None:
        known[str(package.path)] = rows
        store([row for each in found for row in known.get(str(each.path), [])])

    for package in changed:
        know(package, look_at(package, partial(know, package)))
    if not changed:
        store([row for each in found for row in known.get(str(each.path), [])])


def store(rows: list[dict[str, Any]]) -> None:
    """Put the rows into the table, each name once. A folder whose file says so wins a name; else the bundled arch keeps it, or the first
    folder. The others are broken."""
    chosen = [row for row in rows if row["name"] in _replaces(row["source"])]
    owners = {row["name"]: row["source"] for row in reversed(chosen)}
    owners = {**dict.fromkeys(catalog.bundled(), "Safelight itself"), **owners}
    made = {}
    for row in rows:
        name, source = row["name"], row["source"]
        if (owner := owners.setdefault(name, source)) != source or name in made:
            folder = source.rpartition("/")[2]
            why = f"its name '{name}' is already that of an arch from {owner}; set another `arch`, or let this one win: write "
            why += f'replaces = ["{name}"] into {source}/{CHOICES}'
            row = {**row, "name": f"{name}{TAKEN}{folder}", "card": {}, "schemas": {}, "broken": why}
        elif name in catalog.bundled() and row["card"]:
            row = {**row, "card": {**row["card"], "description": f"{row['card']['description']} {REPLACING}"}}
        made[row["name"]] = ExtensionArch(**row)
    extensions.replace(list(made.values()))


def _replaces(source: str) -> set[str]:
    try:
        return replaces(Path(source))
    except UserError:  # the package's problem says it
        return set()


def look_at(package: Package, slow: Callable[[list[dict[str, Any]]], None] = lambda _: None) -> list[dict[str, Any]]:
    """The rows of a package: one for each architecture, healthy or broken. `slow` gets the rows to show while an import takes long."""
    if package.problem:
        return [_broken(package, package.path.name, package.problem)]
    rows: list[dict[str, Any]] = []

    def add(name: str, find: Callable[[], list[Extension]]) -> None:
        rows.extend(in_fork(package, name, find, lambda row: slow([*rows, row])))

    if package.form == "ours":
        listed = in_fork(package, package.path.name, lambda: [_named(package, card) for card in foreign.cards(package)])
        for row in listed:
            if row["broken"]:
                return listed
            add(row["name"], lambda name=row["name"]: [foreign.found(package, foreign.our_card(package, name))])  # type: ignore[misc]
        return rows
    classes = entries(package)
    if classes is None:
        add(package.path.name, lambda: [foreign.found(package, card) for card in foreign.cards(package)])
    for entry in classes or ():
        name = arch_in_source(package, entry.class_name) or entry.class_name

        def one(module: str = entry.module, class_name: str = entry.class_name) -> list[Extension]:
            return [foreign.found(package, foreign.one_card(package, module, class_name))]

        add(name, one)
    return rows


def _named(package: Package, card: Arch) -> Extension:
    """A card's name alone, before its code is imported."""
    return Extension(card.name, str(package.path), digest(package.path))


def in_fork(
    package: Package, name: str, find: Callable[[], list[Extension]], slow: Callable[[dict[str, Any]], None] = lambda _: None
) -> list[dict[str, Any]]:
    """What `find` finds, in a forked process; a single broken row called `name` if it raises, hangs or dies. `slow` gets a broken row
    once it has taken SLOW_IMPORT_SECONDS."""
    forget()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(reader)
            os.setpgid(0, 0)  # so that what the import starts ends with it
            signal.alarm(2 * LONGEST_IMPORT_SECONDS)  # should this process's parent end meanwhile
            with os.fdopen(writer, "w") as pipe:
                json.dump(_rows(package, name, find), pipe)
        finally:
            os._exit(0)  # never back into the code around this
    os.close(writer)
    so_far = f"importing it has taken {SLOW_IMPORT_SECONDS} s so far; it is ended after {LONGEST_IMPORT_SECONDS} s"
    text, hung = _read_until(reader, lambda: slow(_broken(package, name, so_far)))
    for end in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError):
            end(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    with contextlib.suppress(ValueError):
        found: list[dict[str, Any]] = json.loads(text)
        return found
    if hung:
        return [_broken(package, name, f"importing it took longer than {LONGEST_IMPORT_SECONDS} s")]
    how = f"signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else f"exit code {os.waitstatus_to_exitcode(status)}"
    return [_broken(package, name, f"importing it ended the process ({how})")]


def _rows(package: Package, name: str, find: Callable[[], list[Extension]]) -> list[dict[str, Any]]:
    importlib.invalidate_caches()
    try:
        return [foreign.card_row(each) for each in find()] or [_broken(package, name, "it lists no architecture")]
    except BaseException as error:
        return [_broken(package, name, foreign.reason(error, package))]


def _read_until(reader: int, slow: Callable[[], None]) -> tuple[bytes, bool]:
    """(all that comes through a pipe, whether it was still open after LONGEST_IMPORT_SECONDS). Closes it."""
    began, text, waited = time.monotonic(), b"", False
    with os.fdopen(reader, "rb", buffering=0) as pipe:
        while (left := began + LONGEST_IMPORT_SECONDS - time.monotonic()) > 0:
            if select.select([pipe], [], [], left if waited else min(left, SLOW_IMPORT_SECONDS))[0]:
                if not (part := pipe.read(1 << 16)):
                    return text, False
                text += part
            elif not waited:
                waited = True
                slow()
    return text, True


@cache
def warm_up() -> None:
    """Import once what every architecture imports, before the forks. Nothing of it is used here: torch must not start threads."""
    import diffusers
    import torch  # noqa: F401

    import models.toolkit.base_model
    import models.toolkit.quantize  # noqa: F401

    _ = diffusers.AutoencoderKL


def _broken(package: Package, name: str, why: str) -> dict[str, Any]:
    log.warning("%s: %s", package.path, why)
    return foreign.card_row(Extension(name, str(package.path), _digest(package), broken=why))


def _as_known(package: Package, rows: list[dict[str, Any]]) -> bool:
    """Whether the rows still say what is on disk. One whose name was taken may be free by now."""
    return {row["digest"] for row in rows} == {_digest(package)} and not any(TAKEN in row["name"] for row in rows)


def _digest(package: Package) -> str:
    return digest(package.path) if package.problem is None else ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
