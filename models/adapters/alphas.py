"""Alphas of a LoRA that stand outside its tensors: in PEFT's adapter_config.json, or in the header as diffusers or kohya writes them."""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from models.errors import UserError
from models.weightfiles import PEFT_CONFIG, PEFT_WEIGHTS, read_header, read_json
from models.words import named

DIFFUSERS = "lora_adapter_metadata"  # of the header: PEFT's config as JSON, each key behind the name of a part
KOHYA = "ss_network_alpha"
TEXT_PART = "text_encoder"


@dataclass(frozen=True)
class Outside:
    """`config` is in PEFT's terms; `source` says in messages where it stands."""

    config: Mapping[str, Any]
    source: str


def add_outside_alphas(path: Path, state: Mapping[str, torch.Tensor]) -> tuple[dict[str, torch.Tensor], str]:
    """The tensors of the file `path`, with an alpha for each layer of a LoRA that has none in its tensors and has one outside; and words
    for the log on where these come from, "" if there are none. Raises UserError (`bad_adapter`) for an alpha that is no number above 0 and
    for a PEFT adapter that is no LoRA."""
    downs = {match[1]: key for key in state if (match := re.fullmatch(r"(.+)\.lora_(?:A|down)(?:\.default)?\.weight", key))}
    if any(key.endswith(".alpha") for key in state) or (found := _outside(path)) is None:
        return dict(state), ""
    kind = found.config.get("peft_type", "LORA")
    if kind != "LORA":
        raise UserError(f"{found.source} says peft_type {kind}; of PEFT's adapters only LORA is read here", code="bad_adapter")
    given = {}
    for layer, key in downs.items():
        alpha = _alpha_of(layer, found)
        if alpha is not None:
            rank = state[key].shape[0]
            given[f"{layer}.alpha"] = alpha * math.sqrt(rank) if found.config.get("use_rslora") else alpha
    if not given:
        return dict(state), ""
    shown = named([f"{value:g}" for value in dict.fromkeys(given.values())])
    how = ", with use_rslora's sqrt(rank)" if found.config.get("use_rslora") else ""
    tensors = {key: torch.tensor(float(value)) for key, value in given.items()}
    return {**state, **tensors}, f"alpha {shown} comes from {found.source}{how}"


def _outside(path: Path) -> Outside | None:
    beside = path.with_name(PEFT_CONFIG)
    if path.name == PEFT_WEIGHTS and beside.is_file():
        return Outside(read_json(beside), PEFT_CONFIG)
    try:
        header = read_header(path).metadata
    except UserError:  # an architecture may read files of its own kind
        return None
    if DIFFUSERS in header:
        source = f"the header's {DIFFUSERS}"
        try:
            packed = dict(json.loads(header[DIFFUSERS]))
        except (ValueError, TypeError, RecursionError):
            raise UserError(f"{source} is no JSON object", code="bad_adapter") from None
        part = next((key.partition(".")[0] for key in packed if not key.startswith(TEXT_PART)), "transformer")
        return Outside({key.removeprefix(f"{part}."): value for key, value in packed.items()}, source)
    if KOHYA in header and header[KOHYA] != "None":
        return Outside({"lora_alpha": header[KOHYA]}, f"the header's {KOHYA}")
    return None


def _alpha_of(layer: str, found: Outside) -> float | None:
    """The alpha of a layer; a pattern's key is a regular expression for the end of the layer's path, as in PEFT."""
    patterns = found.config.get("alpha_pattern") or {}
    where, value = "lora_alpha", found.config.get("lora_alpha")
    for pattern, own in patterns.items():
        if re.match(rf"(.*\.)?({pattern})$", layer):
            where, value = f"alpha_pattern for '{pattern}'", own
            break
    if value is None:
        return None
    try:
        alpha = float(value)
    except (TypeError, ValueError):
        alpha = math.nan
    if not (math.isfinite(alpha) and alpha > 0):
        raise UserError(f"{found.source}: {where} is {value}, which is no number above 0", code="bad_adapter")
    return alpha
