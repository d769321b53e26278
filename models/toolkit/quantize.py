"""`toolkit.util.quantize` and its neighbours, on optimum-quanto (weights only)."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from models.errors import UserError
from models.quantize import get_qtype, quantize_denoiser
from models.quanto import quanto

__all__ = [
    "OstrisLinear",
    "dequantize_if_quantized",
    "get_qtype",
    "import_comfy_quantized_layers",
    "patch_dequantization_on_save",
    "quantize",
    "quantize_model",
]


def quantize(
    model: nn.Module,
    weights: Any = None,
    activations: Any = None,
    optimizer: Any = None,
    include: str | Sequence[str] | None = None,
    exclude: str | Sequence[str] | None = None,
    **_: Any,
) -> None:
    """Quantize the weights of linear and convolution layers whose path matches `include` and not `exclude` (shell patterns). Call
    `freeze` afterwards, as with quanto."""
    quanto.quantize(
        model, weights=get_qtype(weights), activations=activations, optimizer=optimizer, include=include, exclude=exclude
    )


def quantize_model(base_model: Any, model_to_quantize: nn.Module) -> None:
    """Quantize and freeze a whole denoiser as the job's `model` section says, leaving out what the architecture and the job exclude.
    A recovery adapter is put on once the model is loaded."""
    patch_dequantization_on_save(model_to_quantize)
    quantize_denoiser(base_model, model_to_quantize)


def dequantize_if_quantized(tensor: Any) -> Any:
    """A plain tensor of any quantized one."""
    return tensor.dequantize() if isinstance(tensor, quanto.QTensor) else tensor


def patch_dequantization_on_save(model: nn.Module) -> None:
    """Make `state_dict()` give plain tensors under the original names, however the module is quantized later."""
    plain = model.state_dict

    def state_dict(*args: Any, **kwargs: Any) -> dict[str, torch.Tensor]:
        made: dict[str, torch.Tensor] = {}
        for key, value in plain(*args, **kwargs).items():
            path, _, leaf = key.rpartition("._")
            if leaf in ("data", "scale", "shift") and path.endswith("weight"):
                owner = model.get_submodule(path.rpartition(".")[0])
                made[path] = dequantize_if_quantized(owner.weight).detach()
            elif not key.endswith(("input_scale", "output_scale")):
                made[key] = dequantize_if_quantized(value)
        return made

    model.state_dict = state_dict  # type: ignore[method-assign, assignment]


class OstrisLinear(nn.Linear):
    """ai-toolkit's own quantized layer. Nothing here makes one; folders only ask whether a layer is one."""


def import_comfy_quantized_layers(
    module: nn.Module, state_dict: dict[str, torch.Tensor], **_: Any
) -> tuple[dict[str, torch.Tensor], int]:
    """(state dict, number of quantized layers found). Raises UserError for a checkpoint that is already quantized."""
    marked = [key for key in state_dict if key.endswith((".weight_scale", ".comfy_quant", ".scale_weight"))]
    if marked:
        raise UserError(
            f"{type(module).__name__}'s checkpoint is already quantized (it has '{marked[0]}'); use the unquantized file",
            code="bad_weights",
        )
    return state_dict, 0
