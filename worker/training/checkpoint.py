"""Bundles: everything one step needs to go on, in a folder that appears whole or not at all.

    step_000000250/      a kept checkpoint        recovery_000000262/   the rolling one, without weights for users
        NAME_000000250.safetensors   what users load: adapter or model, EMA applied
        state.safetensors            trained parameters, optimizer state, EMA, as training left them
        bundle.json                  step, kind and a SHA-256 of each file; written last

Random numbers need no state here: every one comes from a seed made of (job seed, step, place).
"""

import json
import re
import shutil
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path

from models.bundles import MANIFEST, step_of
from models.data.look import sha256_of
from models.weights import load_tensors, read_metadata, replacing, save_tensors, sync_folder
from worker.training.state import TrainState

STATE = "state.safetensors"
PART = ".part"  # the end of a name under which a bundle is being written
NAMES = re.compile(rf"(step|recovery)_\d+|\.(step|recovery)_\d+{re.escape(PART)}")
NUMBERS = "numbers"  # the header entry of the state's file with what is no tensor, as JSON


def save(
    folder: Path, state: TrainState, *, kept: bool, write_weights: Callable[[Path], None] | None, name: str
) -> tuple[Path, list[Path]]:
    """Write a bundle into `folder`; the answer is its path and those of its weights for users (none for a recovery bundle).
    `write_weights` gets a file's path and may write several files of that stem.

    Raises OSError when the disk is full; nothing of the bundle then remains.
    """
    final = folder / f"{'step' if kept else 'recovery'}_{state.step:09d}"
    part = folder / f".{final.name}{PART}"
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    try:
        tensors, numbers = state.dump()
        save_tensors(tensors, part / STATE, {NUMBERS: json.dumps(numbers)})
        if write_weights:
            write_weights(part / f"{name}_{state.step:09d}.safetensors")
        weights = sorted(path.name for path in part.iterdir() if path.name != STATE)
        digests = {str(path.relative_to(part)): sha256_of(path) for path in sorted(part.rglob("*")) if path.is_file()}
        with replacing(part / MANIFEST) as manifest:
            manifest.write_text(json.dumps({"step": state.step, "kept": kept, "weights": weights, "sha256": digests}))
        shutil.rmtree(final, ignore_errors=True)
        part.rename(final)
        sync_folder(folder)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return final, [final / name for name in weights]


def load(bundle: Path, state: TrainState) -> None:
    """Go on from this bundle."""
    numbers = read_metadata(bundle / STATE).get(NUMBERS)
    state.restore(load_tensors(bundle / STATE), json.loads(numbers) if numbers else None, step_of(bundle))


def obsolete(bundles: Sequence[Path], keep: int, pinned: Collection[Path] = ()) -> list[Path]:
    """Bundles that may go, of all in the order they were written: kept ones of steps below the newest `keep`, earlier tellings of a
    step, and every recovery bundle but the newest, or all of them once a kept one has overtaken them. Pinned ones neither go nor
    count."""
    by_step = sorted(bundles, key=step_of)
    kept = [bundle for bundle in by_step if is_kept(bundle)]
    rolling = [bundle for bundle in by_step if bundle not in kept]
    newest_step = step_of(by_step[-1]) if by_step else 0
    overtaken = [bundle for bundle in rolling if bundle is not rolling[-1] or (kept and step_of(kept[-1]) >= newest_step)]
    loose = {step_of(bundle): bundle for bundle in kept if bundle not in pinned}  # of one step, the last written
    staying = set(list(loose.values())[-keep:])
    return [bundle for bundle in kept if bundle not in staying and bundle not in pinned] + overtaken


def is_kept(bundle: Path) -> bool:
    """Whether it is a checkpoint for users, with weights, and not a rolling one."""
    return bundle.name.startswith("step_")


def is_named_so(path: Path) -> bool:
    """Whether this is the name of a bundle, or of one that is being written."""
    return NAMES.fullmatch(path.name) is not None


def remove(bundles: Iterable[Path]) -> None:
    for bundle in bundles:
        shutil.rmtree(bundle, ignore_errors=True)
