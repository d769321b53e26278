"""Weights for users: an adapter or a whole model in the dtype asked for, with a header that says where it comes from."""

import logging
from collections.abc import Callable, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from models.base import BaseModel
from models.errors import UserError
from models.spec import TrainSpec
from models.weights import DTYPES, MODEL_HASH, cast_for_saving, json_metadata, lost_values, write_model_hash

log = logging.getLogger(__name__)

Log = Callable[[str, str], None]  # (message, level)


def write_weights(
    model: BaseModel, spec: TrainSpec, path: Path, *, step: int, epoch: int, dataset_hash: str | None, tell: Log
) -> None:
    """Write the weights as they are now to `path`, or beside it where the architecture makes several files of one adapter.

    Values that the dtype turns to 0 are counted and told as a warning. Raises UserError, before anything is written, when it would
    turn some to infinity.
    """
    dtype = spec.save.dtype
    meta = header(model, spec, step, epoch, dataset_hash)
    if model.network is None:
        _refuse_or_tell(model.get_model_to_train().state_dict(), dtype, tell)
        model.save_model(path, meta, DTYPES[dtype])
    else:
        state = model.convert_lora_weights_before_save(model.network.public_state())
        _refuse_or_tell(state, dtype, tell)
        tensors = {name: tensor.cpu().contiguous() for name, tensor in cast_for_saving(state, DTYPES[dtype]).items()}
        model.save_lora(tensors, str(path), meta)
    for file in sorted(path.parent.glob(f"{path.stem}*")):
        if file.is_file():
            write_model_hash(file)


def header(model: BaseModel, spec: TrainSpec, step: int, epoch: int, dataset_hash: str | None) -> dict[str, str]:
    """What the file says of itself: every value is text, or JSON as text."""
    trigger = spec.trigger_word
    return json_metadata(
        format="pt",
        software=software(),
        arch=spec.model.arch,
        job=spec.model_dump(mode="json"),
        step=step,
        training_info={"step": step, "epoch": epoch},
        dtype=spec.save.dtype,
        ss_base_model_version=model.get_base_model_version(),
        ss_output_name=spec.name,
        **{MODEL_HASH: "0" * 64},
        **({"dataset_hash": dataset_hash} if dataset_hash else {}),
        **({"network": _about(model)} if model.network is not None else {}),
        **({"ss_tag_frequency": {f"1_{trigger}": {trigger: 1}}} if trigger else {}),
    )


def software() -> dict[str, str]:
    """The versions that a result depends on."""
    found = {}
    for package in ("safelight", "torch", "diffusers"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "unknown"
    return {"name": "safelight", "version": found.pop("safelight"), **found}


def _about(model: BaseModel) -> dict[str, Any]:
    """The adapter's kind, and the rank and alpha that it was trained with, which need not be found in the file's tensors."""
    assert model.network is not None
    layers = [layer for _, layer in model.network.named_layers()]
    ranks = sorted({layer.rank for layer in layers if layer.rank is not None})
    return {
        "type": model.network.kind,
        "rank": ranks[0] if len(ranks) == 1 else ranks or "full",
        "alpha": sorted({layer.alpha for layer in layers if layer.rank is not None}),
        "layers": len(layers),
    }


def _refuse_or_tell(tensors: Mapping[str, torch.Tensor], dtype: str, tell: Log) -> None:
    lost = lost_values(tensors, DTYPES[dtype])
    if lost.infinite:
        name, count = next(iter(lost.infinite.items()))
        fits = next(name for name in ("bf16", "fp32") if name != dtype and not lost_values(tensors, DTYPES[name]).infinite)
        raise UserError(
            f"saving as {dtype} would turn {sum(lost.infinite.values())} values to infinity ({count} of them in '{name}'); set "
            f"save.dtype to {fits}",
            code="values_lost",
        )
    if lost.zero:
        name = max(lost.zero, key=lambda each: lost.zero[each])
        tell(
            f"saving as {dtype} turns {sum(lost.zero.values())} of {lost.total} values to 0, most of them in '{name}'; save.dtype fp32 "
            "keeps them",
            "WARNING",
        )
