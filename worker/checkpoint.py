"""Bundles: everything one step needs to go on, in a folder that appears whole or not at all.

    step_000000250/      a kept checkpoint        recovery_000000262/   the rolling one, without weights for users
        NAME_000000250.safetensors   what users load: adapter or model, EMA applied
        state.safetensors            trained parameters, optimizer state, EMA, as training left them
        bundle.json                  step, kind and a SHA-256 of each file; written last

Random numbers need no state here: every one comes from a seed made of (job seed, step, place).
"""

import hashlib
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from models.errors import UserError
from models.weights import load_tensors, replacing, save_tensors, sync_folder
from worker.ema import Ema

STATE, MANIFEST = "state.safetensors", "bundle.json"
PARAM, OPTIM, EMA = "param/", "optim/", "ema/"


@dataclass
class TrainState:
    """What training changes, by parameter name."""

    params: Mapping[str, torch.nn.Parameter]
    optimizer: torch.optim.Optimizer
    ema: Ema | None = None
    step: int = 0

    def tensors(self) -> dict[str, torch.Tensor]:
        """Copies of nothing: the live tensors under flat names."""
        made = {PARAM + name: param.detach() for name, param in self.params.items()}
        for name, param in self.params.items():
            made |= {f"{OPTIM}{name}/{key}": value for key, value in self.optimizer.state[param].items()}
        return made | ({EMA + name: value for name, value in self.ema.shadow.items()} if self.ema else {})

    @torch.no_grad()
    def restore(self, tensors: Mapping[str, torch.Tensor], step: int) -> None:
        """Take over what `tensors()` gave. Raises UserError when the bundle is of another model or adapter."""
        if {name.removeprefix(PARAM) for name in tensors if name.startswith(PARAM)} != set(self.params):
            raise UserError("the checkpoint holds other parameters than this job trains", code="bad_checkpoint")
        for name, param in self.params.items():
            param.copy_(tensors[PARAM + name])
            prefix = f"{OPTIM}{name}/"
            own = {key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)}
            # AdamW keeps its step counter on the CPU unless it is fused on a GPU; the moments lie beside the parameter
            self.optimizer.state[param] = {key: value.to(param.device) for key, value in own.items()}
            if self.ema:
                self.ema.shadow[name].copy_(tensors.get(EMA + name, param))
        self.step = step


def save(
    folder: Path, state: TrainState, *, kept: bool, write_weights: Callable[[Path], None] | None, name: str
) -> tuple[Path, Path | None]:
    """Write a bundle into `folder`; the answer is its path and that of its weights for users (None for a recovery bundle).

    Raises OSError when the disk is full; nothing of the bundle then remains.
    """
    final = folder / f"{'step' if kept else 'recovery'}_{state.step:09d}"
    part = folder / f".{final.name}.part"
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    try:
        save_tensors(state.tensors(), part / STATE)
        weights = f"{name}_{state.step:09d}.safetensors" if write_weights else None
        if write_weights and weights:
            write_weights(part / weights)
        digests = {path.name: _digest(path) for path in sorted(part.iterdir())}
        with replacing(part / MANIFEST) as manifest:
            manifest.write_text(json.dumps({"step": state.step, "kept": kept, "weights": weights, "sha256": digests}))
        shutil.rmtree(final, ignore_errors=True)
        part.rename(final)
        sync_folder(folder)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return final, final / weights if weights else None


def newest(bundles: Sequence[Path]) -> Path | None:
    """The bundle with the highest step whose files are all there and unharmed; damaged ones are passed over."""
    for bundle in sorted(bundles, key=step_of, reverse=True):
        if is_whole(bundle):
            return bundle
    return None


def is_whole(bundle: Path) -> bool:
    """Whether the manifest is there and every file has the digest it names."""
    try:
        digests = json.loads((bundle / MANIFEST).read_text())["sha256"]
        return all(_digest(bundle / name) == digest for name, digest in digests.items())
    except (OSError, ValueError, KeyError):
        return False


def load(bundle: Path, state: TrainState) -> None:
    """Go on from this bundle."""
    state.restore(load_tensors(bundle / STATE), step_of(bundle))


def obsolete(bundles: Sequence[Path], keep: int) -> list[Path]:
    """Bundles that may go: kept ones beyond the newest `keep`, and every recovery bundle but the newest, or all of them once a
    kept one has overtaken them."""
    by_step = sorted(bundles, key=step_of)
    kept = [bundle for bundle in by_step if bundle.name.startswith("step_")]
    rolling = [bundle for bundle in by_step if bundle not in kept]
    newest_step = step_of(by_step[-1]) if by_step else 0
    overtaken = [bundle for bundle in rolling if bundle is not rolling[-1] or (kept and step_of(kept[-1]) >= newest_step)]
    return kept[:-keep] + overtaken


def step_of(bundle: Path) -> int:
    return int(bundle.name.rpartition("_")[2])


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def remove(bundles: Sequence[Path]) -> None:
    for bundle in bundles:
        shutil.rmtree(bundle, ignore_errors=True)
