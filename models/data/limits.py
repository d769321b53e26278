"""Limits of reading: how large one file may be, and how much all threads of this process decode at once. Torch-free."""

import ctypes
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

MOST_PIXELS = 178_956_970  # of one picture or frame: some 0.7 GB as Pillow keeps it
MOST_BYTES = 1 << 30  # of one picture file
MOST_THREADS = 8
LARGE = 1 << 25  # pixels of a picture whose memory is released at once


class Budget:
    """An amount that threads share. A thread that needs all of it, or more, waits until it is alone; later threads wait behind it."""

    def __init__(self, total: int) -> None:
        self.total = total
        self._free = total
        self._in_order = threading.Lock()
        self._changed = threading.Condition()

    @contextmanager
    def of(self, amount: int) -> Iterator[None]:
        """Wait until this much is free, and hold it inside the block. A thread must not hold two parts of one budget."""
        amount = min(amount, self.total)
        with self._in_order, self._changed:
            self._changed.wait_for(lambda: self._free >= amount)
            self._free -= amount
        try:
            yield
        finally:
            with self._changed:
                self._free += amount
                self._changed.notify_all()


PIXELS = Budget(MOST_PIXELS)
# Bytes of files that a decoder may read whole. A thread that needs both budgets waits for this one first.
FILES = Budget(MOST_BYTES)


def too_large(width: int, height: int) -> str | None:
    """Return why a picture of this size is not decoded; None if it is."""
    if width * height <= MOST_PIXELS:
        return None
    return f"{width} x {height} is too large, at most {MOST_PIXELS // 10**6} megapixels are read"


def decoding_threads() -> int:
    """Return how many files to decode side by side: one for each core that this process may use, from 2 to MOST_THREADS."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(MOST_THREADS, max(2, cores))


def release_memory(pixels: int) -> None:
    """Return the memory of a large closed picture to the system: the C library would keep some of it for each thread."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if pixels > LARGE and sys.platform == "linux" else None
    if trim:
        trim(0)
