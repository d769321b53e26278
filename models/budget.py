"""Whether a job fits a device, in words, and what a job can set to need less memory. Torch-free."""

import json
from collections.abc import Mapping
from typing import Any

UNITS = ("B", "KiB", "MiB", "GiB", "TiB")

NOTHING_HELPS = "no setting that saves memory suffices: use a smaller resolution, fewer frames or a larger device"
ALL = ("caching", "encoding", "training", "sampling")
AT_ONCE = "sample.batch_size"  # a run halves it by itself where a device's memory ends
# the options that save memory, the cheapest first: the key, what to set it to, what it costs, and when it saves
OPTIONS: tuple[tuple[str, Any, str, tuple[str, ...]], ...] = (
    ("train.gradient_checkpointing", True, "slower steps", ("training",)),
    ("model.low_vram", True, "slower starts and previews", ("caching", "encoding", "sampling")),
    ("model.quantize", True, "a small error", ALL),
    ("model.quantize_te", True, "a small error", ("caching", "encoding")),
    (AT_ONCE, 1, "fewer pictures at once", ("sampling",)),
    ("train.batch_size", 1, "noisier steps; train.gradient_accumulation makes good for it", ("training",)),
    ("model.layer_offloading", True, "much slower steps", ALL),
)


def would_change(spec: Any, path: str, value: Any) -> bool:
    """Whether the job could set the key at `path` (`section.key`) to this and has not."""
    if path == AT_ONCE and spec.kind == "train":  # previews are counted one at a time
        return False
    section, _, key = path.partition(".")
    if key in ("quantize", "layer_offloading") and getattr(spec, "network", True) is None:
        return False
    return bool(getattr(getattr(spec, section, None), key, value) != value)


def general_advice(spec: Any) -> str:
    """What could be set, without knowing how much it saves."""
    left = [f"{path}: {json.dumps(value)} ({cost})" for path, value, cost, _ in OPTIONS if would_change(spec, path, value)]
    return f"Set {', or '.join(left)}; or a smaller resolution." if left else "Use a smaller resolution, or a larger device."


def too_large(made: Mapping[str, Any], total: int) -> str:
    """That a predicted job (worker.planning.plan's answer) does not fit a device of `total` bytes, and what takes the memory."""
    parts = ", ".join(f"{name} {shown(size)}" for name, size in made["parts"].items() if size)
    return f"the job needs {shown(made['peak'])} of memory while {made['phase']} ({parts}); the device has {shown(total)}"


def fewer_at_once(made: Mapping[str, Any], total: int) -> int | None:
    """The largest `sample.batch_size` that is known to make the job fit."""
    fitting = [way["change"][AT_ONCE] for way in made["fits_with"] if list(way["change"]) == [AT_ONCE] and way["peak"] <= total]
    return max(fitting, default=None)


def advice(made: Mapping[str, Any], total: int) -> str | None:
    """The changes that would make it fit, with what it would then take, or that there is none; None where that is not known."""
    ways = [
        " and ".join(f"{path}: {json.dumps(value)}" for path, value in way["change"].items()) + f" ({shown(way['peak'])})"
        for way in made["fits_with"]
        if way["peak"] <= total
    ]
    if ways:
        return f"it would fit with {', or with '.join(ways)}"
    return NOTHING_HELPS if (made.get("total") or 0) >= total else None  # for the total that was asked about, all has been tried


def shown(size: float) -> str:
    """Bytes for people."""
    for unit in UNITS[:-1]:
        if size < 1024:
            return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} {UNITS[-1]}"
