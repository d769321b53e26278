"""The rules on adapters: a file gives back what was saved, under names that others read."""

import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import nn

from models.adapters.attach import AdapterNetwork, new_network
from models.adapters.files import put_on
from models.conform.subject import Broken, Subject

PUBLIC = ("diffusion_model.", "transformer.", "unet.", "lora_", "lycoris_")
SAME = 2e-5  # fp32 sums of another order: adapters may be fused and split on the way, nothing else may change


def lora_keys_round_trip(s: Subject) -> str:
    network = new_network(s.model.get_model_to_train(), rank=2, alpha=2.0)
    return _round_trip(s, network)


def lokr_keys_round_trip(s: Subject) -> str | None:
    """In the old names too, where the architecture has them."""
    if "lokr" not in s.card.adapters:
        return None
    only = s.model.get_transformer_block_names() or ()
    seen = []
    for old_format in (False, True) if s.model.use_old_lokr_format else (False,):
        root = s.model.get_model_to_train()
        seen.append(_round_trip(s, new_network(root, 2, 1.0, only, kind="lokr", full_rank=False, old_format=old_format)))
    return "; ".join(seen)


def _round_trip(s: Subject, network: AdapterNetwork) -> str:
    """Save, read and compare predictions; afterwards the model is as it was."""
    again: Any = None
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        try:
            draw = torch.Generator().manual_seed(0)
            for param in network.parameters():
                nn.init.normal_(param, std=0.05, generator=draw)
            changed = s.predict(s.model)
            public = s.model.convert_lora_weights_before_save(dict(network.public_state()))
            network.detach()
            foreign = [key for key in public if not key.startswith(PUBLIC)]
            if foreign:
                raise Broken(f"public keys start with diffusion_model., not as {foreign[0]}")
            bare = s.predict(s.model)
            if float((changed - bare).abs().max()) < 1e-7:
                raise Broken(f"the {network.kind} changes nothing in the prediction")
            path = Path(folder) / "adapter.safetensors"
            s.model.network = network
            s.model.save_lora(public, str(path), {"format": "pt"})
            again = put_on(s.model, next(Path(folder).iterdir()))
            worst = float((s.predict(s.model) - changed).abs().max() / changed.abs().max().clamp(min=1e-6))
        finally:
            s.model.network = None
            network.detach()
            if again is not None:
                again.detach()
    if worst > SAME:
        raise Broken(f"the {network.kind} read back predicts {worst:.1e} (relative) away from the one that was saved")
    return f"{len(public)} keys like {next(iter(public))}"
