"""Adapters from files: which layer a key means, what kind of adapter it is, and whether it fits."""

import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from models.adapters.attach import PREFIX, AdapterNetwork, Device, some, trainable_layers
from models.adapters.lokr import lokr_like
from models.adapters.lora import lora_like
from models.errors import UserError

STEMS = (PREFIX, "diffusion_model.", "base_model.model.", "")
FLAT_STEMS = ("lycoris_", "lora_transformer_", "lora_unet_")  # paths behind these have underscores for dots
PARTS = {
    "lora": r"lora_(?:A|B|down|up)(?:\.default)?\.weight",
    "lokr": r"lokr_(?:w1|w2|w1_a|w1_b|w2_a|w2_b|t2)",
}
SAME = {"lora_down.weight": "lora_A.weight", "lora_up.weight": "lora_B.weight"}
NEEDED = {"lora": ({"lora_A.weight", "lora_B.weight"},), "lokr": ({"lokr_w1"}, {"lokr_w2"})}

Parts = dict[str, dict[str, torch.Tensor]]  # by path of a layer: its tensors by name


def network_from_state(root: nn.Module, state: Mapping[str, torch.Tensor], device: Device = None) -> AdapterNetwork:
    """The adapter, LoRA or LoKr, that `state` describes, with its weights. Keys are ours (`transformer.PATH.lora_A.weight`), or LoKr's
    old ones (`lycoris_PATH`). A missing alpha means alpha = rank. Raises UserError if a key belongs to no layer of `root`."""
    layers = trainable_layers(root)
    kind, parts = read_parts(root, state)
    like: Any = lora_like if kind == "lora" else lokr_like
    made = {}
    for path, tensors in parts.items():
        try:
            made[path] = layers[path], like(layers[path], tensors, device)
        except UserError as error:
            raise UserError(f"the adapter does not fit layer '{path}': {error}", code="bad_adapter") from None
    return AdapterNetwork(made)


def load_into(network: AdapterNetwork, root: nn.Module, state: Mapping[str, torch.Tensor]) -> None:
    """Start a fresh adapter from the weights of a file: afterwards it does what the file's adapter does, whatever alpha each has.
    Raises UserError saying what differs when kind, layers or shapes do; nothing is cut or padded to fit."""
    kind, parts = read_parts(root, state)
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


def read_parts(root: nn.Module, state: Mapping[str, torch.Tensor]) -> tuple[str, Parts]:
    """(lora or lokr, the tensors by layer). Raises UserError for a key that fits no layer, for a mixture and for half an adapter."""
    layers = trainable_layers(root)
    flat: dict[str, list[str]] = {}
    for path in layers:
        flat.setdefault(path.replace(".", "_"), []).append(path)
    found: Parts = {}
    kinds: dict[str, str] = {}
    for key, tensor in state.items():
        path, kind, part = _place(key, layers, flat)
        if kind:
            kinds.setdefault(kind, key)
        found.setdefault(path, {})[part] = tensor
    if len(kinds) != 1:
        keys = " and ".join(kinds.values()) or "nothing but alphas"
        raise UserError(f"the adapter is not of one kind, lora or lokr: it has {keys}", code="bad_adapter")
    kind = next(iter(kinds))
    for path, parts in found.items():
        for needed in NEEDED[kind]:
            split = {f"{name}_{half}" for name in needed for half in "ab"}
            if not needed <= set(parts) and not split <= set(parts):
                raise UserError(
                    f"the adapter has only {', '.join(sorted(parts)) or 'nothing'} for layer '{path}'; it lacks "
                    f"{', '.join(sorted(needed - set(parts)))}",
                    code="bad_adapter",
                )
    return kind, {path: found[path] for path in layers if path in found}


def _place(key: str, layers: Mapping[str, Any], flat: Mapping[str, list[str]]) -> tuple[str, str | None, str]:
    """(path of the layer, kind unless the key fits both, name of the tensor) of a file's key."""
    what = "is no part of a lora or lokr"
    for kind, part in (*PARTS.items(), (None, "alpha")):
        match = re.fullmatch(rf"(.+)\.({part})", key)
        if match is None:
            continue
        what = "fits no layer of this model"
        name = match[2].replace(".default", "")
        for stem in STEMS:
            if key.startswith(stem) and match[1].removeprefix(stem) in layers:
                return match[1].removeprefix(stem), kind, SAME.get(name, name)
        for stem in FLAT_STEMS:
            meant = flat.get(match[1].removeprefix(stem), []) if key.startswith(stem) else []
            if len(meant) == 1:
                return meant[0], kind, SAME.get(name, name)
            if meant:
                raise UserError(f"the adapter's key '{key}' could mean {' or '.join(meant)}", code="bad_adapter")
    raise UserError(f"the adapter's key '{key}' {what}; layers are: {some(layers)}", code="bad_adapter")
