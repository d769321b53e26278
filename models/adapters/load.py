"""Adapters from files: which layer a key means, what kind of adapter it is, and whether it fits."""

import re
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from models.adapterkeys import SPELLINGS, stripped
from models.adapters.attach import AdapterNetwork, Device, some, trainable_layers
from models.adapters.lokr import lokr_like
from models.adapters.lora import lora_like
from models.errors import UserError

PARTS = {
    "lora": r"lora_(?:A|B|down|up)(?:\.default)?\.weight",
    "lokr": r"lokr_(?:w1|w2|w1_a|w1_b|w2_a|w2_b|t2)",
}
NEEDED = {"lora": ({"lora_A.weight", "lora_B.weight"},), "lokr": ({"lokr_w1"}, {"lokr_w2"})}

Parts = dict[str, dict[str, torch.Tensor]]  # by path of a layer: its tensors by name
Name = Callable[[str], str]  # of one of our keys, the key in the file


def network_from_state(
    root: nn.Module, state: Mapping[str, torch.Tensor], device: Device = None, name: Name = str
) -> AdapterNetwork:
    """The adapter, LoRA or LoKr, that `state` describes, with its weights. Keys are ours (`transformer.PATH.lora_A.weight`), or LoKr's
    old ones (`lycoris_PATH`). A missing alpha means alpha = rank. Raises UserError if a key belongs to no layer of `root`; `name` gives
    the keys for messages."""
    layers = trainable_layers(root)
    kind, parts, keys = read_parts(root, state, name)
    like: Any = lora_like if kind == "lora" else lokr_like
    made = {}
    for path, tensors in parts.items():
        try:
            made[path] = layers[path], like(layers[path], tensors, device)
        except UserError as error:
            key = name(next(iter(keys[path].values())))
            raise UserError(f"the adapter's '{key}' does not fit layer '{path}': {error}", code="bad_adapter") from None
    return AdapterNetwork(made)


def load_into(network: AdapterNetwork, root: nn.Module, state: Mapping[str, torch.Tensor], name: Name = str) -> None:
    """Start a fresh adapter from the weights of a file: afterwards it does what the file's adapter does, whatever alpha each has.
    Raises UserError saying what differs when kind, layers or shapes do; nothing is cut or padded to fit."""
    kind, parts, _ = read_parts(root, state, name)
    own = dict(network.named_layers())
    if kind != network.kind:
        raise UserError(f"the weights to start from are a {kind}; network.type is {network.kind}", code="bad_adapter")
    lacking = {path: None for path in own if path not in parts}
    extra = {path: None for path in parts if path not in own}
    if lacking or extra:
        said = [f"the file has none for: {some(lacking)}"] if lacking else []
        said += [f"the file has some for: {some(extra)}, which this job does not train"] if extra else []
        raise UserError(f"the weights to start from are for other layers; {'; '.join(said)}", code="bad_adapter")
    wrong = {f"{path} ({why})": None for path, layer in own.items() if (why := layer.misfit(parts[path]))}
    if wrong:
        raise UserError(f"the weights to start from do not fit network's settings in: {some(wrong)}", code="bad_adapter")
    for path, layer in own.items():
        layer.load(parts[path])


def read_parts(
    root: nn.Module, state: Mapping[str, torch.Tensor], name: Name = str
) -> tuple[str, Parts, dict[str, dict[str, str]]]:
    """(lora or lokr, the tensors by layer, their keys likewise). Raises UserError for a key that fits no layer, for a layer that is named
    twice, for a mixture and for half an adapter."""
    layers = trainable_layers(root)
    flat: dict[str, list[str]] = {}
    for path in layers:
        flat.setdefault(path.replace(".", "_"), []).append(path)
    keys: dict[str, dict[str, str]] = {}
    kinds: dict[str, str] = {}
    for key in state:
        path, kind, part = _place(key, layers, flat, name)
        if kind:
            kinds.setdefault(kind, key)
        if (known := keys.setdefault(path, {}).setdefault(part, key)) != key:
            raise UserError(f"the adapter names one layer twice, as '{name(known)}' and as '{name(key)}'", code="bad_adapter")
    if len(kinds) != 1:
        said = " and ".join(f"'{name(key)}'" for key in kinds.values()) or "nothing but alphas"
        raise UserError(f"the adapter is not of one kind, lora or lokr: it has {said}", code="bad_adapter")
    kind = next(iter(kinds))
    for path, parts in keys.items():
        for needed in NEEDED[kind]:
            split = {f"{each}_{half}" for each in needed for half in "ab"}
            if not needed <= set(parts) and not split <= set(parts):
                raise UserError(
                    f"the adapter has '{name(next(iter(parts.values())))}' for layer '{path}'; it lacks "
                    f"{', '.join(sorted(needed - set(parts)))}",
                    code="bad_adapter",
                )
    found = {path: {part: state[key] for part, key in keys[path].items()} for path in layers if path in keys}
    return kind, found, keys


def _place(key: str, layers: Mapping[str, Any], flat: Mapping[str, list[str]], name: Name) -> tuple[str, str | None, str]:
    """(path of the layer, kind unless the key fits both, name of the tensor) of a file's key."""
    what = "is no part of a lora or lokr"
    for kind, pattern in (*PARTS.items(), (None, "alpha")):
        match = re.fullmatch(rf"(.+)\.({pattern})", key)
        if match is None:
            continue
        what = "fits no layer of this model"
        part = match[2].replace(".default", "")
        part = SPELLINGS.get(part, part)
        path, is_flat = stripped(match[1])
        meant = flat.get(path, []) if is_flat else [each for each in (path, match[1]) if each in layers][:1]
        if len(meant) > 1:
            raise UserError(f"the adapter's key '{name(key)}' could mean {' or '.join(meant)}", code="bad_adapter")
        if meant:
            return meant[0], kind, part
    raise UserError(f"the adapter's key '{name(key)}' {what}; layers are: {some(layers)}", code="bad_adapter")
