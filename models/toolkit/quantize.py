"""`toolkit.util.quantize` and its neighbours, on optimum-quanto (weights only)."""

import fnmatch
from collections.abc import Sequence
from typing import Any

import torch
from optimum import quanto
from torch import nn

from models.errors import UserError

QTYPES = {
    "qint2": quanto.qint2,
    "qint4": quanto.qint4,
    "qint8": quanto.qint8,
    "qfloat8": quanto.qfloat8,
    "qfloat8_e4m3fn": quanto.qfloat8_e4m3fn,
    "qfloat8_e5m2": quanto.qfloat8_e5m2,
    # torchao's names in ai-toolkit; the same number formats
    "int8": quanto.qint8,
    "float8": quanto.qfloat8,
}


def get_qtype(qtype: Any) -> Any:
    """quanto's type for a name. Raises UserError naming the known ones."""
    if not isinstance(qtype, str):
        return qtype
    if qtype not in QTYPES:
        raise UserError(f"qtype {qtype!r} is unknown here; known: {', '.join(QTYPES)}", code="unknown_qtype")
    return QTYPES[qtype]


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
    """Quantize and freeze a whole denoiser as the job's `model.qtype` says, leaving out what the architecture excludes. Raises
    UserError for an accuracy recovery adapter, which is not available here."""
    config = base_model.model_config
    if config.accuracy_recovery_adapter is not None:
        raise UserError("accuracy recovery adapters are not available here; leave accuracy_recovery_adapter out", code="no_ara")
    exclude = base_model.get_quantization_exclude_modules() or []
    linear = [path for path, module in model_to_quantize.named_modules() if isinstance(module, nn.Linear)]
    kept = [path for path in linear if any(fnmatch.fnmatch(path, pattern) for pattern in exclude)]
    patch_dequantization_on_save(model_to_quantize)
    quantize(model_to_quantize, weights=get_qtype(config.qtype), exclude=kept or None)
    quanto.freeze(model_to_quantize)


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
