"""What is known of files that were looked at before, so that an unchanged one is not read again. Torch-free.

A file counts as unchanged while its inode, size and times are the same. Nothing hangs on the index: without it, or when it is damaged,
everything is read again.
"""

import contextlib
import json
import logging
import os
import sqlite3
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from models.data.names import is_text

log = logging.getLogger(__name__)

Stamp = tuple[int, int, int, int]  # inode, size, mtime and ctime in nanoseconds
Facts = Mapping[str, Any]

PROBE = 3  # raised whenever looking at a file finds out something else than before
BUSY_SECONDS = 30.0
# A file changed twice within one tick of its file system's clock keeps its stamp. One that is younger than that is not remembered.
TICK_NS, COARSE_TICK_NS = 50_000_000, 2_000_000_000

_TABLE = """CREATE TABLE IF NOT EXISTS file (
    path TEXT PRIMARY KEY, inode INTEGER, size INTEGER, mtime INTEGER, ctime INTEGER, probe INTEGER, facts TEXT
) WITHOUT ROWID"""


def stamp_of(path: Path | str) -> Stamp:
    """Raises OSError if the file is not there."""
    about = os.stat(path)  # noqa: PTH116 - a hundred thousand times
    return (about.st_ino, about.st_size, about.st_mtime_ns, about.st_ctime_ns)


class FileIndex:
    """One SQLite file, shared by all processes of this machine. Use it from one thread."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._db: sqlite3.Connection | None = None
        for again in (True, False):
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                self._db = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None)
                self._db.execute("PRAGMA journal_mode=WAL")
                self._db.execute("PRAGMA synchronous=NORMAL")
                self._db.execute(_TABLE)
                return
            except (sqlite3.Error, OSError) as error:
                self.close()
                damaged = isinstance(error, sqlite3.DatabaseError) and not isinstance(error, sqlite3.OperationalError)
                if damaged and again:
                    for name in (path, path.with_name(path.name + "-wal"), path.with_name(path.name + "-shm")):
                        name.unlink(missing_ok=True)
                    continue
                log.warning("the file index %s cannot be used (%s); files are read again", path, error)
                return

    def known(self, folder: Path) -> dict[str, tuple[Stamp, Facts]]:
        """What was remembered of the files under `folder`, by absolute path."""
        if self._db is None:
            return {}
        begin = str(folder).rstrip("/") + "/"
        query = "SELECT path, inode, size, mtime, ctime, facts FROM file WHERE path >= ? AND path < ? AND probe = ?"
        try:
            rows = self._db.execute(query, (begin, begin[:-1] + chr(ord("/") + 1), PROBE)).fetchall()
        except sqlite3.Error as error:
            log.warning("the file index %s cannot be read (%s); files are read again", self._path, error)
            return {}
        return {row[0]: (row[1:5], json.loads(row[5]) if row[5] != "{}" else {}) for row in rows}

    def remember(self, rows: Iterable[tuple[str, Stamp, Facts]], *, own: bool = False) -> None:
        """Keep what was found out about files that had these stamps before they were looked at. `own` files, which only we write, and
        whole, are trusted however young they are. A path that is no text has no place here: such a file is read again each time."""
        now = time.time_ns()
        settled = [
            (path, *stamp, PROBE, json.dumps(facts) if facts else "{}")
            for path, stamp, facts in rows
            if is_text(path) and (own or is_settled(stamp, now))
        ]
        if self._db is None or not settled:
            return
        try:
            self._db.execute("BEGIN IMMEDIATE")
            self._db.executemany("INSERT OR REPLACE INTO file VALUES (?, ?, ?, ?, ?, ?, ?)", settled)
            self._db.execute("COMMIT")
        except sqlite3.Error as error:
            log.warning("the file index %s cannot be written (%s)", self._path, error)
            with contextlib.suppress(sqlite3.Error):
                self._db.execute("ROLLBACK")

    def close(self) -> None:
        if self._db is not None:
            self._db.close()
            self._db = None


def is_settled(stamp: Stamp, now: int | None = None) -> bool:
    """Whether a file with this stamp would have another by now if it were changed again."""
    tick = COARSE_TICK_NS if stamp[3] % 1_000_000_000 == 0 else TICK_NS
    return (now or time.time_ns()) - stamp[3] > tick
