"""Which of a job's bundles a run can resume from, by their names and digests; `worker.training.checkpoint` writes and reads them."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

from models.data.look import sha256_of

MANIFEST = "bundle.json"


def newest(bundles: Sequence[Path], whole: Callable[[Path], bool] | None = None) -> Path | None:
    """Of bundles in the order they were written, the one with the highest step whose files are all there and unharmed; damaged ones
    are passed over. `whole` decides in place of `is_whole`."""
    latest = {step_of(bundle): bundle for bundle in bundles}
    for bundle in sorted(bundles, key=lambda each: (step_of(each), each == latest[step_of(each)]), reverse=True):
        if (whole or is_whole)(bundle):
            return bundle
    return None


def is_whole(bundle: Path) -> bool:
    """Whether the manifest is there and every file has the digest it names."""
    try:
        digests = json.loads((bundle / MANIFEST).read_text())["sha256"]
        return all(sha256_of(bundle / name) == digest for name, digest in digests.items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):  # the last two of another JSON
        return False


def passed_over(bundles: Sequence[Path], step: int) -> list[str]:
    """The words on bundles beyond the `step` that a run resumes from: it could not use them."""
    return [f"{bundle.name} is damaged and is passed over" for bundle in bundles if step_of(bundle) > step]


def step_of(bundle: Path) -> int:
    return int(bundle.name.rpartition("_")[2])
