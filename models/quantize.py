"""Frozen weights in 8, 4 or 2 bits: optimum-quanto, weights only, with a cache on disk (`models.quantized`).

Linear and 2-D convolution layers are replaced one at a time, so that never more than one of them is there in both precisions. A second
start reads what the first computed. Gradients flow through a quantized layer to its input, and so to adapters.
"""

import fnmatch
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from models import quantized
from models.adapters.attach import some
from models.errors import UserError
from models.memory import text_encoders
from models.quanto import QModuleMixin, quantize_module, quanto

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
BESIDE_RECOVERY = "qint8"  # layers that a recovery adapter does not cover: 8 bits, as in ai-toolkit
KINDS = (nn.Linear, nn.Conv2d)
HOOKS = (
    "_forward_hooks", "_forward_hooks_with_kwargs", "_forward_hooks_always_called", "_forward_pre_hooks",
    "_forward_pre_hooks_with_kwargs", "_backward_hooks", "_backward_pre_hooks",
)  # fmt: skip


def get_qtype(qtype: Any) -> Any:
    """quanto's type for a name. Raises UserError naming the known ones."""
    if not isinstance(qtype, str):
        return qtype
    if qtype not in QTYPES:
        raise UserError(f"qtype {qtype!r} is unknown here; known: {', '.join(QTYPES)}", code="unknown_qtype")
    return QTYPES[qtype]


def is_quantized(module: Any) -> bool:
    """Whether any layer inside is."""
    return isinstance(module, nn.Module) and any(isinstance(part, QModuleMixin) for part in module.modules())


def quantizable(root: nn.Module) -> dict[str, nn.Module]:
    """The layers that can be quantized and are not yet, by path."""
    return {p: m for p, m in root.named_modules() if p and isinstance(m, KINDS) and not isinstance(m, QModuleMixin)}


def chosen(root: nn.Module, exclude: Sequence[str], must_match: Sequence[str] = ()) -> list[str]:
    """Paths of the layers to quantize: all that none of the shell patterns matches. Raises UserError for a pattern of `must_match`
    (a user's, also excluded) that matches none, and when nothing is left."""
    layers = quantizable(root)
    for pattern in must_match:
        if not fnmatch.filter(layers, pattern):
            raise UserError(
                f"quantize_kwargs.exclude: no layer's name matches {pattern!r}; there are: {some(layers)}",
                code="no_such_layer",
            )
    patterns = (*exclude, *must_match)
    left = [path for path in layers if not any(fnmatch.fnmatchcase(path, pattern) for pattern in patterns)]
    if not left:
        raise UserError(f"quantize: the exclusions leave no layer of {some(layers)}", code="no_such_layer")
    return left


def quantize_layers(
    root: nn.Module,
    wanted: Mapping[str, str],
    device: torch.device | str | None = None,
    cache: Path | None = None,
    source: str | None = None,
) -> bool:
    """Quantize and freeze the layers at the paths `wanted`, each with its qtype. True if they came from the folder `cache`; `source` stands
    for where the weights come from, see `quantized.source_of`.

    Each layer is computed on `device` (default: where it lies) and stays where it lay. Hooks on it go on working.
    """
    types = {path: get_qtype(qtype) for path, qtype in wanted.items()}
    kept = quantized.Kept(cache, root, wanted, source) if cache is not None else None
    known = kept.read() if kept else None
    for path, qtype in types.items():
        state = {key: known[f"{path}.{key}"] for key in _keys(known, path)} if known is not None else None
        _replace(root, path, qtype, device, state)
    if kept and known is None:
        kept.write({f"{path}.{key}": t for path in types for key, t in _packed(root.get_submodule(path)).items()}, wanted)
    return known is not None


def _replace(
    root: nn.Module, path: str, qtype: Any, device: torch.device | str | None, state: Mapping[str, torch.Tensor] | None
) -> None:
    old: Any = root.get_submodule(path)
    home = old.weight.device
    if state is None and device is not None:
        old.to(device)
    made = quantize_module(old, weights=qtype)
    if state is None:
        with torch.no_grad():
            made.freeze()
    else:
        made.load_state_dict(state)
    for name in HOOKS:  # the very same dicts, so that a hook's handle still removes it
        setattr(made, name, getattr(old, name))
    old.weight = old.bias = None  # whoever still holds the old layer holds no memory
    root.set_submodule(path, made.to(home).train(old.training).requires_grad_(False))


def _packed(layer: nn.Module) -> dict[str, torch.Tensor]:
    return {key: tensor for key, tensor in layer.state_dict().items() if key.startswith("weight.")}


def _keys(known: Mapping[str, torch.Tensor], path: str) -> list[str]:
    names = ("weight._data", "weight._scale", "weight._shift", "weight._data._data")
    return [name for name in names if f"{path}.{name}" in known]


# -- a model's parts, as its job says --------------------------------------------------------------------------------------------


def quantize_parts(model: Any) -> None:
    """Quantize the denoiser and the text encoder of a loaded model as its `model_config` says, and put the recovery adapter on.
    A part that its own code quantized already is left as it is."""
    config = model.model_config
    if getattr(config, "quantize", False):
        root = model.get_model_to_train()
        if not is_quantized(root):
            quantize_denoiser(model, root)
        attach_recovery(model)
    if getattr(config, "quantize_te", False):
        for encoder in text_encoders(model):
            if not is_quantized(encoder):
                wanted = dict.fromkeys(chosen(encoder, ()), config.qtype_te)
                quantize_layers(encoder, wanted, model.te_device_torch, _cache_of(model), getattr(model, "source", None))


def quantize_denoiser(model: Any, root: nn.Module) -> None:
    """All layers of `root` but those that the architecture and the job exclude. With a recovery adapter its layers get the job's
    qtype and the others 8 bits."""
    config = model.model_config
    own = getattr(model, "get_quantization_exclude_modules", lambda: None)() or []
    paths = chosen(root, own, _excluded(config))
    wanted = dict.fromkeys(paths, str(config.qtype))
    if covered := {path for path in paths if path in _recovery_paths(model)}:
        wanted = {path: str(config.qtype) if path in covered else BESIDE_RECOVERY for path in paths}
    quantize_layers(root, wanted, model.device_torch, _cache_of(model), getattr(model, "source", None))


def attach_recovery(model: Any) -> None:
    """Put the frozen recovery adapter on the quantized layers: it acts in training and in previews, and no save holds it."""
    if getattr(model.model_config, "accuracy_recovery_adapter", None) and model.recovery_adapter is None:
        model.recovery_adapter = _recovery(model)


def _recovery(model: Any) -> Any:
    from models.adapters.files import put_on

    return put_on(model, Path(model.model_config.accuracy_recovery_adapter)).requires_grad_(False)


def _recovery_paths(model: Any) -> set[str]:
    """The layers that the recovery adapter's file covers."""
    if not getattr(model.model_config, "accuracy_recovery_adapter", None):
        return set()
    network = _recovery(model)
    network.detach()
    return {path for path, _ in network.named_layers()}


def _excluded(config: Any) -> list[str]:
    given = getattr(config, "quantize_kwargs", None) or {}
    return list((given.get("exclude") if isinstance(given, Mapping) else given.exclude) or [])


def _cache_of(model: Any) -> Path | None:
    folder: Path | None = getattr(model, "cache_folder", None)
    return folder / quantized.FOLDER if folder is not None else None
