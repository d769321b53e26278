"""How much is read and decoded at once, in all threads of this process together. Torch-free."""

import ctypes
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

MOST_PIXELS = 178_956_970  # of one picture or frame: some 0.7 GB as Pillow keeps it
MOST_BYTES = 1 << 30  # of one picture file
MOST_THREADS = 8
LARGE = 1 << 25  # pixels of pictures whose memory is given back at once


class Budget:
    """An amount that threads share. Whoever needs more than all of it waits until it is alone, and is not passed by small ones."""

    def __init__(self, total: int) -> None:
        self.total = total
        self._free = total
        self._in_order = threading.Lock()
        self._changed = threading.Condition()

    @contextmanager
    def of(self, amount: int) -> Iterator[None]:
        """Hold this much of it, as soon as that much is free. Not to be called by a thread that holds some of the same budget."""
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
FILES = Budget(MOST_BYTES)  # bytes of files that a decoder may read whole; where both are held, this one is taken first


def too_large(width: int, height: int) -> str | None:
    """Why a picture of this size is not decoded."""
    if width * height <= MOST_PIXELS:
        return None
    return f"{width} x {height} is too large, at most {MOST_PIXELS // 10**6} megapixels are read"


def decoding_threads() -> int:
    """How many files are decoded side by side: one for each core that this process may use, at least two."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(MOST_THREADS, max(2, cores))


def give_back(pixels: int) -> None:
    """Hand the memory of a large picture that was closed back to the system: the C library keeps some of it for each thread."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if pixels > LARGE and sys.platform == "linux" else None
    if trim:
        trim(0)
