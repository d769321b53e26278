"""Adapter files in the public convention: diffusers' module names to those of the original network, and back.

    ours     transformer.transformer_blocks.0.attn.to_q.lora_A.weight     one adapter for each of q, k, v
    public   diffusion_model.double_blocks.0.img_attn.qkv.lora_A.weight   one for the fused projection

Three adapters of rank r, each W += B A, are one of rank 3 r on the stacked W exactly, with A the three stacked and B block-diagonal. A
file trained on the fused projection has a dense B; its A then serves q, k and v, each with its third of B's rows. Single-stream blocks
are fused in diffusers too, so they only change their names.
"""

import re
from collections.abc import Mapping

import torch

from models.adapterkeys import stripped
from models.errors import UserError

OURS, PUBLIC = "transformer.", "diffusion_model."

FUSED = {
    "img_attn.qkv": ("attn.to_q", "attn.to_k", "attn.to_v"),
    "txt_attn.qkv": ("attn.add_q_proj", "attn.add_k_proj", "attn.add_v_proj"),
}
DOUBLE = {
    "img_attn.proj": "attn.to_out.0",
    "txt_attn.proj": "attn.to_add_out",
    "img_mlp.0": "ff.linear_in",
    "img_mlp.2": "ff.linear_out",
    "txt_mlp.0": "ff_context.linear_in",
    "txt_mlp.2": "ff_context.linear_out",
}
SINGLE = {"linear1": "attn.to_qkv_mlp_proj", "linear2": "attn.to_out"}
OUTER = {
    "img_in": "x_embedder",
    "txt_in": "context_embedder",
    "time_in.in_layer": "time_guidance_embed.timestep_embedder.linear_1",
    "time_in.out_layer": "time_guidance_embed.timestep_embedder.linear_2",
    "double_stream_modulation_img.lin": "double_stream_modulation_img.linear",
    "double_stream_modulation_txt.lin": "double_stream_modulation_txt.linear",
    "single_stream_modulation.lin": "single_stream_modulation.linear",
    "final_layer.linear": "proj_out",
    "final_layer.adaLN_modulation.1": "norm_out.linear",
}
NAMES = {  # of layers inside blocks, and ("") outside
    "double_blocks": (*FUSED, *DOUBLE),
    "single_blocks": (*SINGLE,),
    "transformer_blocks": (*DOUBLE.values(), *(part for parts in FUSED.values() for part in parts)),
    "single_transformer_blocks": (*SINGLE.values(),),
    "": (*OUTER, *OUTER.values()),
}
SWAPPED = "final_layer.adaLN_modulation.1"  # the original's rows are (shift, scale), those of diffusers (scale, shift)

Pair = tuple[torch.Tensor, torch.Tensor]  # A (r, in) and B (out, r); W += B A


def to_public(state: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Our adapter under the original network's names. Raises UserError for a layer that the original has no name for."""
    pairs = {path: pair for path, (pair, _) in _pairs(state).items()}
    made: dict[str, Pair] = {}
    while pairs:
        path = next(iter(pairs))
        block, name = split(path, "transformer_blocks", "single_transformer_blocks")
        fused = next((public for public, parts in FUSED.items() if name in parts), None)
        if block.startswith("transformer_blocks") and fused:
            made[_original(block, fused)] = _fuse([pairs.pop(f"{block}.{part}", None) for part in FUSED[fused]])
            continue
        table = OUTER if not block else SINGLE if block.startswith("single") else DOUBLE
        public = next((key for key, ours in table.items() if ours == name), None)
        if public is None:
            raise UserError(f"the adapter's layer '{path}' has no name in the public convention", code="bad_adapter")
        pair = pairs.pop(path)
        made[_original(block, public)] = _swap(pair) if public == SWAPPED else pair
    return _state(made, PUBLIC)


def to_ours(state: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The inverse, for files of other trainers too: names of the original or of diffusers, dotted or flat, with or without `alpha`,
    which is folded into B. Raises UserError naming the first key that is not known, and both keys where one layer is named twice."""
    made: dict[str, Pair] = {}
    origins: dict[str, str] = {}
    for path, (pair, key) in _pairs(state).items():
        for ours, own in _ours(path, pair, key).items():
            if ours in made:
                raise UserError(f"the adapter names one layer twice, as '{origins[ours]}' and as '{key}'", code="bad_adapter")
            made[ours], origins[ours] = own, key
    return _state(made, OURS)


def _ours(path: str, pair: Pair, key: str) -> dict[str, Pair]:
    """A layer of a file under our names: several where the file's is fused."""
    block, name = split(path, "double_blocks", "single_blocks")
    if path.startswith(("transformer_blocks.", "single_transformer_blocks.")) or path in OUTER.values():
        return {path: pair}
    if block.startswith("double_blocks") and name in FUSED:
        parts = zip(FUSED[name], _unfuse(pair), strict=True)
        return {f"{to_diffusers_block(block)}.{part}": own for part, own in parts if own is not None}
    table = OUTER if not block else SINGLE if block.startswith("single") else DOUBLE
    if name not in table:
        raise UserError(f"the adapter's key '{key}' is for no layer of this model", code="bad_adapter")
    return {f"{to_diffusers_block(block)}.{table[name]}".removeprefix("."): _swap(pair) if name == SWAPPED else pair}


def _fuse(parts: list[Pair | None]) -> Pair:
    """The stacked projection's adapter; parts without one add rows of zeros."""
    given = [part for part in parts if part is not None]
    rows, rank = given[0][1].shape[0], sum(part[0].shape[0] for part in given)
    fused_B = given[0][1].new_zeros(len(parts) * rows, rank)
    column = 0
    for place, part in enumerate(parts):
        if part is not None:
            own = part[0].shape[0]
            fused_B[place * rows : (place + 1) * rows, column : column + own] = part[1]
            column += own
    return torch.cat([part[0] for part in given]), fused_B


def _unfuse(pair: Pair) -> list[Pair | None]:
    """What `_fuse` joined, if B is block-diagonal, in thirds or otherwise; else A whole for each third of B's rows."""
    fused_A, fused_B = pair
    thirds = fused_B.chunk(3)
    rank = fused_A.shape[0]
    used_3R = torch.stack([(third != 0).any(dim=0) for third in thirds])
    even_3R = torch.block_diag(*[torch.ones(1, rank // 3, dtype=torch.bool)] * 3) if rank % 3 == 0 else None
    if even_3R is not None and not bool((used_3R.cpu() & ~even_3R).any()):
        columns = even_3R
    elif bool((used_3R.sum(dim=0) == 1).all()):
        columns = used_3R.cpu()
    else:
        return [(fused_A, third.contiguous()) for third in thirds]
    return [
        (fused_A[own], third[:, own].contiguous()) if bool(own.any()) else None
        for own, third in zip(columns.to(fused_B.device), thirds, strict=True)
    ]


def _swap(pair: Pair) -> Pair:
    first, second = pair[1].chunk(2)
    return pair[0], torch.cat([second, first])


def _pairs(state: Mapping[str, torch.Tensor]) -> dict[str, tuple[Pair, str]]:
    """A and B by layer, with a key of the file. Raises UserError for a key that is no part of a LoRA and for half a pair."""
    found: dict[str, dict[str, str]] = {}
    for key in state:
        match = re.fullmatch(r"(.+)\.(?:(?:lora_)(A|B|down|up)(?:\.default)?\.weight|(alpha))", key)
        path = match and dotted(match[1])
        if match is None or path is None:
            raise UserError(f"the adapter's key '{key}' is not one of a LoRA for this model", code="bad_adapter")
        part = {"down": "A", "up": "B"}.get(match[2], match[2] or "alpha")
        if (known := found.setdefault(path, {}).setdefault(part, key)) != key:
            raise UserError(f"the adapter names one layer twice, as '{known}' and as '{key}'", code="bad_adapter")
    pairs = {}
    for path, keys in found.items():
        if lacking := {"A", "B"} - set(keys):
            key = next(iter(keys.values()))
            raise UserError(f"the adapter has '{key}' without its {' and '.join(sorted(lacking))}", code="bad_adapter")
        matrix_A, matrix_B = state[keys["A"]], state[keys["B"]]
        scale = float(state[keys["alpha"]]) / matrix_A.shape[0] if "alpha" in keys else 1.0
        pairs[path] = (matrix_A, matrix_B * scale if scale != 1 else matrix_B), keys["A"]
    return pairs


def dotted(given: str) -> str | None:
    """The path of a layer with dots and nothing in front; None if it has underscores for dots and is none of this model's."""
    path, flat = stripped(given)
    if not flat:
        return path
    match = re.fullmatch(r"((?:double|single|transformer|single_transformer)_blocks)_(\d+)_(.+)", path)
    blocks, name = (match[1], match[3]) if match else ("", path)
    known = {each.replace(".", "_"): each for each in NAMES[blocks]}.get(name)
    return known and (f"{blocks}.{match[2]}.{known}" if match else known)


def split(path: str, *stems: str) -> tuple[str, str]:
    """("double_blocks.3", "img_mlp.0"), or ("", path) outside the blocks."""
    match = re.fullmatch(rf"((?:{'|'.join(stems)})\.\d+)\.(.+)", path)
    return (match[1], match[2]) if match else ("", path)


def _original(block: str, name: str) -> str:
    renamed = block.replace("single_transformer_blocks", "single_blocks").replace("transformer_blocks", "double_blocks")
    return f"{renamed}.{name}".removeprefix(".")


def to_diffusers_block(block: str) -> str:
    return block.replace("double_blocks", "transformer_blocks").replace("single_blocks", "single_transformer_blocks")


def _state(pairs: Mapping[str, Pair], stem: str) -> dict[str, torch.Tensor]:
    made: dict[str, torch.Tensor] = {}
    for path, (matrix_A, matrix_B) in pairs.items():
        made |= {f"{stem}{path}.lora_A.weight": matrix_A, f"{stem}{path}.lora_B.weight": matrix_B}
    return made
