"""`toolkit.models.v2.z_image`: diffusers' transformer, loaded from a folder or from a single file."""

from pathlib import Path
from typing import Any

import torch
from diffusers import ZImageTransformer2DModel as DiffusersTransformer

from models.quanto import quanto
from models.toolkit import quantize
from models.weights import load_tensors

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
            made = cls.from_config(config)  # type: ignore[no-untyped-call]
            tensors = {key.removeprefix(PREFIX): tensor.to(dtype) for key, tensor in load_tensors(Path(path)).items()}
            made.load_state_dict(tensors, assign=True)
        else:
            inner = not (Path(path) / "config.json").is_file()
            made = cls.from_pretrained(path, subfolder="transformer" if inner else None, torch_dtype=dtype)  # type: ignore[no-untyped-call]
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
