"""Devices and their memory, as the driver's own tool reports them, so that nobody needs torch to know them.

Graphics cards are known by UUID: numbers depend on who counts (the driver, torch, `CUDA_VISIBLE_DEVICES`). Numbers here are those of
`nvidia-smi`, or positions in the user's `CUDA_VISIBLE_DEVICES` where that is set. A worker hides every other card from its process, so
its own card is `cuda:0` there, whatever it is called outside.
"""

import contextlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import MutableMapping, Sequence
from dataclasses import dataclass

import psutil

ANSWER_SECONDS = 5.0
READ_SECONDS = 5.0  # between two looks at a device's memory
MIB = 2**20
VISIBLE, ORDER = "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"
ALLOCATOR = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")  # the second is torch's newer name for the same
KNOWN = r"(cpu|mps)(:\d+)?|cuda(:\d+(\.\d+)?)?|(GPU|MIG)-[\w/-]+"
CARD = re.compile(r"GPU (?P<number>\d+): (?P<name>.*) \(UUID: (?P<uuid>GPU-[^)]+)\)")
SLICE = re.compile(r"\s+MIG (?P<name>.*?)\s+Device\s+(?P<number>\d+): \(UUID: (?P<uuid>MIG-[^)]+)\)")


@dataclass(frozen=True)
class Card:
    """One graphics card, or one MIG slice of a card. `label` is cuda:1, or cuda:1.0 for the first slice of that card."""

    uuid: str
    label: str
    name: str


@dataclass(frozen=True)
class Device:
    """What a worker runs on: `label` for people and for the worker's id, `torch` as its own process calls it."""

    label: str
    torch: str


def cards() -> list[Card]:
    """The driver's cards in the order of its numbers. Of a card with MIG the slices stand for it, as for CUDA."""
    found: list[Card] = []
    for line in _lines("-L"):
        if card := CARD.match(line):
            found.append(Card(card["uuid"], f"cuda:{card['number']}", card["name"]))
        elif found and (part := SLICE.match(line)):
            whole = found[-1].label.partition(".")[0]
            if found[-1].label == whole:
                found.pop()
            found.append(Card(part["uuid"], f"{whole}.{part['number']}", f"MIG {part['name']}"))
    return found


def visible(known: Sequence[Card] | None = None) -> list[Card]:
    """The cards that `CUDA_VISIBLE_DEVICES` leaves, in its order: numbers, UUIDs or beginnings of UUIDs. As with CUDA, the first entry
    that names no card ends the list; `-1` and an empty value leave none."""
    known = cards() if known is None else known
    given = os.environ.get(VISIBLE)
    if given is None:
        return list(known)
    left: list[Card] = []
    for entry in (part.strip() for part in given.split(",")):
        if entry.isdigit():
            named = [card for card in known if card.label.partition(".")[0] == f"cuda:{int(entry)}"]
        else:
            named = [card for card in known if entry and card.uuid.startswith(entry)]
        if not named or named[0] in left:
            break
        left.append(named[0])
    return left


def devices() -> list[str]:
    """What `safelight up` starts a worker for: the UUIDs of the visible cards, else cpu."""
    return [card.uuid for card in visible()] or ["cpu"]


def choose(wanted: str | None) -> Device:
    """The device that a worker is to run on; None: the first there is. For a card of the driver's list this process, and so its
    children, see that card alone from now on. Raises ValueError for a name that is none, or that names no card."""
    known = cards()
    shown = visible(known)
    if wanted is None:
        wanted = shown[0].uuid if shown else "cpu"
    if not re.fullmatch(KNOWN, wanted):
        raise ValueError(f"device '{wanted}' is unknown; give cpu, mps, cuda:N or a card's UUID")
    if wanted in ("cpu", "mps") or wanted.startswith(("cpu:", "mps:")):
        return Device(wanted, wanted)
    if not known and wanted.startswith("cuda"):  # no tool of NVIDIA's: another maker's card, or a container without it
        return Device(wanted, wanted)
    number = wanted.partition(":")[2]
    if wanted == "cuda" or (VISIBLE in os.environ and number.isdigit()):
        found = next(iter(shown[int(number or 0) :]), None)
    else:
        found = next((card for card in shown if wanted in (card.label, card.label.partition(".")[0], card.uuid)), None)
    if found is None:
        there = ", ".join(f"{card.label} ({card.name}, {card.uuid})" for card in shown) or "none"
        hidden = f" with {VISIBLE}={os.environ[VISIBLE]}" if VISIBLE in os.environ else ""
        raise ValueError(f"there is no device '{wanted}'{hidden}; there are: {there}")
    os.environ.update({ORDER: "PCI_BUS_ID", VISIBLE: found.uuid})
    return Device(found.label, "cuda:0")


def set_allocator(environment: MutableMapping[str, str] = os.environ) -> None:
    """Have torch's CUDA allocator grow its segments, which loses less memory to fragmentation, unless the user set it up otherwise.
    Called before torch meets CUDA."""
    if not any(name in environment for name in ALLOCATOR):
        environment[ALLOCATOR[0]] = "expandable_segments:True"


def memory(device: str) -> tuple[int | None, int | None]:
    """(used, total) in bytes of the device, None for what its driver does not report; on a CPU what this process and its children hold, of
    the machine's."""
    if not device.startswith("cuda"):
        return _tree_memory(), psutil.virtual_memory().total
    uuid = _uuid(int(device.partition(":")[2] or 0))
    rows = _lines("--query-gpu=memory.used,memory.total", "--format=csv,noheader,nounits", f"--id={uuid}") if uuid else []
    values = [_mebibytes(part) for part in rows[0].split(",")] if rows else []
    return (values[0], values[1]) if len(values) == 2 else (None, None)


class Gauge(threading.Thread):
    """Reads a device's memory now and then, beside the heartbeat: a driver's tool that fails or hangs costs no beat."""

    def __init__(self, device: str, total: int | None = None) -> None:
        super().__init__(name="memory", daemon=True)
        self.device = device
        self.used: int | None = None
        self.total = total
        self._ended = threading.Event()

    def run(self) -> None:
        while True:
            with contextlib.suppress(Exception):  # a tool's odd answer, or a process that is gone
                used, total = memory(self.device)
                self.used, self.total = used, total or self.total
            if self._ended.wait(READ_SECONDS):
                return

    def end(self) -> None:
        self._ended.set()


_unfinished: "subprocess.Popen[bytes] | None" = None  # a tool that waits for a driver that hangs cannot even be killed
_starting = threading.Lock()  # a fork in between would keep the pipe open that Popen waits for
os.register_at_fork(before=_starting.acquire, after_in_parent=_starting.release, after_in_child=_starting.release)


def _lines(*arguments: str) -> list[str]:
    """The lines that nvidia-smi writes, also where it fails in the end, as it does beside a card that is lost; none where it is missing or
    takes too long. It writes to a file, since one that cannot be killed never closes a pipe."""
    global _unfinished
    tool = shutil.which("nvidia-smi")
    if tool is None or (_unfinished is not None and _unfinished.poll() is None):
        return []
    with contextlib.suppress(OSError, subprocess.SubprocessError), tempfile.TemporaryFile() as out:
        with _starting:
            process = subprocess.Popen([tool, *arguments], stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.DEVNULL)
        try:
            process.wait(ANSWER_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            _unfinished = process
            raise
        out.seek(0)
        return [line for line in out.read().decode(errors="replace").splitlines() if line.strip()]
    return []


def _uuid(number: int) -> str | None:
    """The UUID of the card at this place among the visible ones. A worker's `CUDA_VISIBLE_DEVICES` is its card's."""
    given = os.environ.get(VISIBLE, "").split(",")
    if number < len(given) and given[number].startswith(("GPU-", "MIG-")):
        return given[number]
    shown = visible()
    return shown[number].uuid if number < len(shown) else None


def _mebibytes(text: str) -> int | None:
    """Bytes; None for `[N/A]`, `ERR!` and the like."""
    return int(text) * MIB if text.strip().isdigit() else None


def _tree_memory() -> int:
    """Resident bytes of this process and its children."""
    me = psutil.Process()
    total = 0
    for process in (me, *me.children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):
            total += process.memory_info().rss
    return total


if __name__ == "__main__":
    sys.stdout.write(" ".join(devices()))
