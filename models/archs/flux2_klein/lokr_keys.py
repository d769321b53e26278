"""LoKr files: LyCORIS's names on diffusers' modules, which diffusers and other samplers read.

A Kronecker product on q, k and v cannot be written as one on the original network's fused projection, nor split from one, so LoKr
keeps diffusers' layers: `lycoris_transformer_blocks_0_attn_to_q.lokr_w1`.
"""

import re
from collections.abc import Mapping

import torch

from models.archs.flux2_klein.lora_keys import DOUBLE, FUSED, OURS, OUTER, SINGLE, SWAPPED, dotted, split, to_diffusers_block
from models.errors import UserError

LYCORIS = "lycoris_"
BLOCKS = {*DOUBLE.values(), *SINGLE.values(), *(part for parts in FUSED.values() for part in parts)}


def is_lokr(state: Mapping[str, torch.Tensor]) -> bool:
    return any(".lokr_" in key for key in state)


def to_public(state: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Our LoKr under LyCORIS's names. Raises UserError for a layer outside the blocks: readers know no name for it."""
    made = {}
    for key, tensor in state.items():
        path, part = key.removeprefix(OURS).rsplit(".", 1)
        block, name = split(path, "transformer_blocks", "single_transformer_blocks")
        if not block or name not in BLOCKS:
            raise UserError(
                f"a LoKr on layer '{path}' has no public name; train layers of the blocks only (only_if_contains)",
                code="bad_adapter",
            )
        made[f"{LYCORIS}{path.replace('.', '_')}.{part}"] = tensor
    return made


def to_ours(state: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The inverse; also from names of diffusers or of the original, dotted or flat. Raises UserError for a layer that is not known, and
    for a LoKr on a projection that is fused in the original and is not here."""
    made = {}
    for key, tensor in state.items():
        if key.startswith(LYCORIS):
            made[key] = tensor  # network_from_state finds the layer
            continue
        stem, _, part = key.rpartition(".")
        made[f"{OURS}{_ours(dotted(stem) or stem, key)}.{part}"] = tensor
    return made


def _ours(path: str, key: str) -> str:
    if re.match(r"(single_)?transformer_blocks\.", path) or path in OUTER.values():
        return path
    block, name = split(path, "double_blocks", "single_blocks")
    if name in FUSED or name == SWAPPED:
        raise UserError(
            f"the LoKr's '{key}' cannot be read: the layer is split here, and a Kronecker product cannot be",
            code="bad_adapter",
        )
    table = OUTER if not block else SINGLE if block.startswith("single") else DOUBLE
    if name not in table:
        raise UserError(f"the adapter's key '{key}' is for no layer of this model", code="bad_adapter")
    return f"{to_diffusers_block(block)}.{table[name]}".removeprefix(".")
