"""`toolkit.models.v2.z_image`: diffusers' transformer, loaded from a folder or from a single file."""

from pathlib import Path
from typing import Any

import torch
from diffusers import ZImageTransformer2DModel as DiffusersTransformer

from models.base_weights import load_module, open_weights
from models.components import load_part, part_folder
from models.quanto import quanto
from models.toolkit import quantize

PREFIX = "model.diffusion_model."


class ZImageTransformer2DModel(DiffusersTransformer):
    """`load_model` reads either form; `aitk_is_quantized` says whether it quantized what it read."""

    aitk_is_quantized = False

    @classmethod
    def load_model(
        cls,
        path: str,
        dtype: torch.dtype = torch.bfloat16,
        qtype: str | None = None,
        quantize_device: Any = None,
        config_path: str | None = None,
        **_: Any,
    ) -> "ZImageTransformer2DModel":
        """From a diffusers folder (itself, or its `transformer`), or a .safetensors file with `config_path` for its config."""
        if path.endswith(".safetensors"):
            config = cls.load_config(config_path, subfolder="transformer")
            with open_weights(Path(path), PREFIX) as weights:
                made = load_module(lambda: cls.from_config(config), weights, dtype)  # type: ignore[no-untyped-call]
            made.eval().requires_grad_(False)
        else:
            made = load_part(cls, part_folder(path, "transformer"), dtype)
        if qtype is not None:
            patterns = cls.get_quantization_exclude_modules()
            quantize.patch_dequantization_on_save(made)
            quantize.quantize(made.to(quantize_device), weights=quantize.get_qtype(qtype), exclude=patterns)
            quanto.freeze(made)
            made.aitk_is_quantized = True
        loaded: ZImageTransformer2DModel = made
        return loaded

    @staticmethod
    def get_quantization_exclude_modules() -> list[str]:
        """Small modules that every block depends on: time, caption and picture embedders and the output layers."""
        return ["t_embedder*", "cap_embedder*", "all_x_embedder*", "all_final_layer*", "siglip_embedder*"]

    @staticmethod
    def convert_state_dict_on_save(state_dict: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Under the prefix that single files carry."""
        return {PREFIX + key: tensor for key, tensor in state_dict.items()}
