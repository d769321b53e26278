"""What tells one encoder from another: a digest of its actual weights, buffers and config, whatever file they came from."""

import contextlib
import hashlib
import json
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn

from models import catalog
from models.base import BaseModel
from models.offload import MARK
from models.released import Absent, NotAlone
from models.spec import Encoded, JobSpec, options_that_encode

NO_ENCODERS = {"model", "network", "assistant_lora", "recovery_adapter"}  # what is trained or attached to it
UNSTABLE = {
    "_name_or_path",
    "name_or_path",
    "_commit_hash",
    "transformers_version",
    "_diffusers_version",
}  # no part of the numbers
LEARNED_IN_USE = ("truncation", "padding")  # a tokenizer keeps the last call's in its own form

_known: WeakKeyDictionary[BaseModel, dict[str, str]] = WeakKeyDictionary()


def latent_fingerprint(model: BaseModel) -> str:
    """Of whatever encodes pictures, clips and sounds. Computed once per loaded model."""
    return _once(model, "latents", lambda: _digest(model, lambda name: not _is_text(name)))


def text_fingerprint(model: BaseModel) -> str:
    """Of whatever encodes text, tokenizers included."""
    return _once(model, "text", lambda: _digest(model, lambda name: name != "vae"))


def is_as_before(model: BaseModel, kind: Encoded) -> bool:
    """Whether the encoder of `kind` (latents or text) is what it was when its fingerprint was taken, if that was."""
    before = _known.get(model, {}).pop(kind, None)
    compute = latent_fingerprint if kind == "latents" else text_fingerprint
    return before is None or before == compute(model)


def space(model: BaseModel, spec: JobSpec, kind: Encoded) -> dict[str, Any]:
    """What, beside the encoder's own fingerprint, decides the numbers of `kind` (latents or text)."""
    version = model.latent_space_version if kind == "latents" else model.text_embedding_space_version
    dtypes = (model.torch_dtype, model.vae_torch_dtype if kind == "latents" else model.te_torch_dtype)
    extension = catalog.extensions().get(spec.model.arch)
    return {
        "encoder": latent_fingerprint(model) if kind == "latents" else text_fingerprint(model),
        "space": version,
        "arch": spec.model.arch,
        "source": extension.digest if extension else None,
        "options": options_that_encode(spec.model.model_kwargs, kind),
        "dtypes": [str(dtype) for dtype in dtypes],
        "device": model.device_torch.type,
    }


def module_digest(module: nn.Module) -> str:
    """A SHA-256 of the module's parameters and buffers (names, dtypes, shapes, bytes), its class and its config. Offloaded blocks count
    with the weights that they will have."""
    streamers = [getattr(part, MARK) for part in module.modules() if hasattr(part, MARK)]
    with contextlib.ExitStack() as stack, ThreadPoolExecutor() as pool:
        for store in [store for streamer in streamers for store in streamer.stores]:
            stack.enter_context(store.filled(store.held))
        tensors = sorted([*module.named_parameters(), *module.named_buffers()], key=lambda named: named[0])
        parts = list(pool.map(lambda named: [named[0], *_tensor_digests(named[1])], tensors))
    config = _plain(getattr(module, "config", None))
    whole = json.dumps([type(module).__name__, config, parts], sort_keys=True, default=str)
    return hashlib.sha256(whole.encode()).hexdigest()


def tokenizer_digest(tokenizer: Any) -> str:
    """A SHA-256 of a tokenizer's, or a processor's, serialised form."""
    inner = getattr(tokenizer, "tokenizer", None) or tokenizer
    backend = getattr(inner, "backend_tokenizer", None)
    if backend is not None:
        form: Any = {key: value for key, value in json.loads(backend.to_str()).items() if key not in LEARNED_IN_USE}
    else:
        form = sorted(inner.get_vocab().items()) if hasattr(inner, "get_vocab") else repr(type(inner))
    names = ("model_max_length", "padding_side", "truncation_side", "chat_template", "special_tokens_map")
    about = {name: getattr(inner, name, None) for name in names}
    return hashlib.sha256(json.dumps([form, about], sort_keys=True, default=str).encode()).hexdigest()


def tensor_bytes(tensor: torch.Tensor) -> Any:
    """The tensor's bytes, in order, as an array."""
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()


def _once(model: BaseModel, kind: str, compute: Any) -> str:
    known = _known.setdefault(model, {})
    if kind not in known:
        known[kind] = compute()
    return known[kind]


def _digest(model: BaseModel, wanted: Any) -> str:
    found = []
    for name, part in _parts(model):
        if wanted(name):
            if isinstance(part, Absent):
                raise NotAlone(f"its {name} is needed to tell its encoders from others, and was released")
            digest = module_digest(part) if isinstance(part, nn.Module) else tokenizer_digest(part)
            found.append([name, digest])
    return hashlib.sha256(json.dumps(found).encode()).hexdigest()


def _parts(model: BaseModel) -> Iterator[tuple[str, Any]]:
    """The modules and tokenizers that hang on the model, but for the denoiser and adapters."""
    for name, value in sorted(vars(model).items()):
        several = value if isinstance(value, list | tuple) else [value]
        for number, part in enumerate(several):
            tokenizes = _is_text(name) and callable(part) and not isinstance(part, nn.Module)
            if name not in NO_ENCODERS and (isinstance(part, nn.Module) or tokenizes):
                yield name if part is value else f"{name}.{number}", part


def _is_text(name: str) -> bool:
    return any(word in name for word in ("text", "token", "processor"))


def _tensor_digests(tensor: torch.Tensor) -> list[str]:
    """Dtype, shape and digest, of a quantized tensor those of its parts."""
    if hasattr(tensor, "__tensor_flatten__") and type(tensor) not in (torch.Tensor, nn.Parameter):
        names, about = tensor.__tensor_flatten__()
        inner = [[name, *_tensor_digests(getattr(tensor, name))] for name in names]
        return [json.dumps([inner, about], default=str)]
    return [str(tensor.dtype), str(tuple(tensor.shape)), hashlib.sha256(tensor_bytes(tensor)).hexdigest()]


def _plain(config: Any) -> Any:
    values = (
        config.to_dict() if hasattr(config, "to_dict") else config if isinstance(config, Mapping) else vars(config or _Empty())
    )
    return {key: _plain(value) if isinstance(value, Mapping) else value for key, value in values.items() if key not in UNSTABLE}


class _Empty:
    pass
