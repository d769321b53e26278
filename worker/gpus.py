"""Devices and their memory, asked of the driver's own tool, so that nobody needs torch to know them."""

import contextlib
import shutil
import subprocess
from functools import cache

import psutil

ASK_SECONDS = 5


@cache
def devices() -> list[str]:
    """cuda:0, cuda:1, ... as the driver lists them, else cpu."""
    found = _ask("--query-gpu=index")
    return [f"cuda:{index}" for index in found] or ["cpu"]


def memory(device: str) -> tuple[int | None, int | None]:
    """(used, total) in bytes of the device; on a CPU what this process and its children hold, of the machine's."""
    if not device.startswith("cuda"):
        return _tree_memory(), psutil.virtual_memory().total
    index = device.partition(":")[2] or "0"
    rows = _ask("--query-gpu=memory.used,memory.total", f"--id={index}")
    if not rows:
        return None, None
    used, total = (int(part) * 2**20 for part in rows[0].split(","))
    return used, total


def _ask(*arguments: str) -> list[str]:
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return []
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(
            [tool, *arguments, "--format=csv,noheader,nounits"], capture_output=True, text=True, timeout=ASK_SECONDS, check=True
        )
        return [line.strip() for line in done.stdout.splitlines() if line.strip()]
    return []


def _tree_memory() -> int:
    """Resident bytes of this process and its children."""
    me = psutil.Process()
    total = 0
    for process in (me, *me.children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):
            total += process.memory_info().rss
    return total


if __name__ == "__main__":
    print(*devices())  # noqa: T201
