"""What a job's process writes to its standard error, kept in a file of its attempt: if the process dies, these are its last words."""

import contextlib
import io
import logging
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

STDERR = 2  # its file descriptor, which code that is not Python's knows it by


@contextlib.contextmanager
def kept(path: Path) -> Iterator[None]:
    """Inside, this process's standard error goes to the file: what Python writes goes to the terminal too, what native code writes (a
    failed assertion of CUDA, the trace of a crash) stands only in the file. One that is empty in the end is removed. Where no file can
    be made, all is as it was."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("a", buffering=1, encoding="utf-8", errors="backslashreplace")
    except OSError:
        yield
        return
    terminal = open(os.dup(STDERR), "w", buffering=1, errors="backslashreplace")  # noqa: PTH123, SIM115
    both = _Both(terminal, file)
    handlers = [each for each in logging.getLogger().handlers if getattr(each, "stream", None) is sys.stderr]
    os.dup2(file.fileno(), STDERR)
    try:
        with contextlib.redirect_stderr(both):
            for handler in handlers:
                handler.setStream(both)  # type: ignore[attr-defined]
            yield
    finally:
        os.dup2(terminal.fileno(), STDERR)
        for handler in handlers:
            handler.setStream(sys.stderr)  # type: ignore[attr-defined]
        for stream in (terminal, file):
            with contextlib.suppress(OSError):
                stream.close()
        with contextlib.suppress(OSError):
            if path.stat().st_size == 0:
                path.unlink()


class _Both(io.TextIOBase):
    """Writes to several streams. One that cannot take it (a full disk, a terminal that is gone) keeps no other from it."""

    def __init__(self, *streams: TextIO) -> None:
        self._streams = streams

    def write(self, text: str) -> int:
        for stream in self._streams:
            with contextlib.suppress(OSError):
                stream.write(text)
        return len(text)

    def flush(self) -> None:
        for stream in self._streams:
            with contextlib.suppress(OSError):
                stream.flush()

    def fileno(self) -> int:
        return STDERR

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        return self._streams[0].isatty()
