"""`python -m worker.extensions.discover`: look into the folders that SAFELIGHT_EXTENSIONS names, and store what is there.

With `--watch` it goes on looking every other second, for as long as the process that started it lives. Each package whose source
changed is imported in a fork of its own, so that nothing it does at import, a crash included, reaches another one or this process.
What all architectures import is imported once, here, so that a new folder is listed within seconds also while a job trains.
"""

import contextlib
import fcntl
import importlib
import json
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

from models import catalog
from models.extensions import Extension
from server.store import extensions
from server.store.engine import forget, migrate
from server.store.settings import settings
from server.store.tables import ExtensionArch
from worker.extensions import foreign
from worker.extensions.packages import Package, Stamps, arch_in_source, digest, entries, packages, stamps

LONGEST_IMPORT_SECONDS = 120
LOOK_SECONDS = 2.0
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
    for package in changed:
        known[str(package.path)] = look_at(package)
        store([row for each in found for row in known.get(str(each.path), [])])
    if not changed:
        store([row for each in found for row in known.get(str(each.path), [])])


def store(rows: list[dict[str, Any]]) -> None:
    """Put the rows into the table, each name once: the bundled arch and the first folder keep a name, others are broken."""
    taken = dict.fromkeys(catalog.bundled(), "Safelight itself")
    made = {}
    for row in rows:
        if row["name"] in taken:
            folder = row["source"].rpartition("/")[2]
            why = f"its name '{row['name']}' is already that of an arch from {taken[row['name']]}; set another `arch`"
            row = {**row, "name": f"{row['name']}{TAKEN}{folder}", "card": {}, "schemas": {}, "broken": why}
        taken.setdefault(row["name"], row["source"])
        made[row["name"]] = ExtensionArch(**row)
    extensions.replace(list(made.values()))


def look_at(package: Package) -> list[dict[str, Any]]:
    """The rows of a package: one for each architecture, healthy or broken."""
    if package.problem:
        return [_broken(package, package.path.name, package.problem)]
    listed = entries(package) if package.form == "toolkit" else None
    if listed is None:
        return in_fork(package, package.path.name, lambda: [foreign.found(package, card) for card in foreign.cards(package)])
    rows = []
    for entry in listed:
        name = arch_in_source(package, entry.class_name) or entry.class_name

        def one(module: str = entry.module, class_name: str = entry.class_name) -> list[Extension]:
            return [foreign.found(package, foreign.one_card(package, module, class_name))]

        rows += in_fork(package, name, one)
    return rows


def in_fork(package: Package, name: str, find: Callable[[], list[Extension]]) -> list[dict[str, Any]]:
    """What `find` finds, in a forked process; a single broken row called `name` if it raises, hangs or dies."""
    forget()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        importlib.invalidate_caches()
        signal.alarm(LONGEST_IMPORT_SECONDS)
        try:
            rows = [foreign.card_row(each) for each in find()] or [_broken(package, name, "it lists no architecture")]
        except BaseException as error:
            rows = [_broken(package, name, foreign.reason(error, package))]
        with os.fdopen(writer, "w") as pipe:
            json.dump(rows, pipe)
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        text = pipe.read()
    _, status = os.waitpid(child, 0)
    try:
        told: list[dict[str, Any]] = json.loads(text)
        return told
    except ValueError:
        pass
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGALRM:
        return [_broken(package, name, f"importing it took longer than {LONGEST_IMPORT_SECONDS} s")]
    how = f"signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else f"exit code {os.waitstatus_to_exitcode(status)}"
    return [_broken(package, name, f"importing it ended the process ({how})")]


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
