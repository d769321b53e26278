"""Encoders and decoders in half precision overflow on some inputs: results that are not finite are made again in fp32, or refused.

Latents with a single NaN spoil every step that uses them, so they are looked at before anyone keeps them; and a picture with NaN
becomes black when it is rounded to 256 levels, so predictions, latents and pixels are looked at before that.
"""

import contextlib
import functools
import itertools
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import nn

from models.errors import UserError
from models.memory import text_encoders
from models.offload import is_offloaded
from models.spec import Encoded

T = TypeVar("T")

log = logging.getLogger(__name__)


class NotFinite(UserError):
    """What an encoder made of a file or a text holds NaN or infinite values, in fp32 too."""

    def __init__(self, message: str) -> None:
        super().__init__(
            message,
            code="not_finite",
            hint="Look at the file; if it is as it should be, the encoder's weights are damaged or another's.",
        )


def finite(model: Any, kind: Encoded, make: Callable[[], T], of: str) -> T:
    """The result of `make()`, which encodes with the model's VAE (`latents`) or its text encoders (`text`); where it is not finite, that
    of another call with them in fp32, in the dtypes of the first. `of` says in messages what it is ("the latents of a.png"). Raises
    NotFinite."""
    made = make()
    if not (bad := not_finite(made)):
        return made
    encoders = [model.vae] if kind == "latents" else text_encoders(model)
    dtypes = {tensor.dtype for tensor in _weights(encoders)} - {torch.float32}
    where = f" in {_names(dtypes)}" if dtypes else ""
    why = _fixed(encoders) if dtypes else ""
    if dtypes and not why:
        try:
            with in_fp32(encoders), _casts_to_fp32(model, kind):
                again: T = _like(make(), made)
            if not not_finite(again):
                log.warning("%s were not finite%s, and are made again in fp32", of, where)
                return again
            why = ", nor in fp32"
        except RuntimeError as error:  # no memory for it, or code that casts to another dtype by itself
            why = f", and encoding in fp32 failed: {error!s:.200}"
    raise NotFinite(f"{of} are not finite{where} (NaN or infinite: {', '.join(bad)}){why}")


def not_finite(made: Any) -> list[str]:
    """The names of the tensors in `made` (one, or a mapping, list or object of them) with NaN or infinite values. Masks, in which these
    may have a meaning, are left out."""
    return [
        name or "its values"
        for name, tensor in _tensors(made)
        if tensor.is_floating_point() and "mask" not in name and not _is_finite(tensor)
    ]


@contextlib.contextmanager
def checked_sampling(model: Any) -> Iterator[None]:
    """Inside, the denoiser's predictions, the latents that are decoded and the pixels that come of them are looked at, whichever pipeline
    calls. A VAE in half precision that overflows decodes again in fp32. Raises NotFinite, naming the part."""
    denoisers = {id(part): part for part in (model.model, model.get_model_to_train()) if isinstance(part, nn.Module)}
    passes = itertools.count(1)

    def check_prediction(_: Any, __: Any, output: Any) -> None:
        number = next(passes)
        if not_finite(output):
            raise NotFinite(f"the values that the model predicts in pass {number} of sampling {_of_weights(model)}")

    def check_latents(latents: Any) -> None:
        if not_finite(latents):
            raise NotFinite(f"the latents after sampling {_of_weights(model)}")

    def decode_latents(decode: Callable[..., Any], latents: Any, *args: Any, **kwargs: Any) -> Any:
        check_latents(latents)
        pixels = decode(latents, *args, **kwargs)
        if bad := not_finite(pixels):
            raise NotFinite(f"the pixels after decoding are not finite (NaN or infinite: {', '.join(bad)})")
        return pixels

    def vae_decode(decode: Callable[..., Any], latents: Any, *args: Any, **kwargs: Any) -> Any:
        check_latents(latents)
        own = next((tensor.dtype for tensor in _weights([model.vae])), latents.dtype)

        def make() -> Any:
            now = next((tensor.dtype for tensor in _weights([model.vae])), own)
            return decode(latents if now == own else latents.to(now), *args, **kwargs)

        return finite(model, "latents", make, "the pixels that the VAE decoded")

    with contextlib.ExitStack() as inside:
        for denoiser in denoisers.values():
            inside.callback(denoiser.register_forward_hook(check_prediction).remove)
        inside.enter_context(_replaced(model, "decode_latents", decode_latents))
        if callable(getattr(model.vae, "decode", None)):
            inside.enter_context(_replaced(model.vae, "decode", vae_decode))
        yield


@contextlib.contextmanager
def _replaced(owner: Any, name: str, call: Callable[..., Any]) -> Iterator[None]:
    """Inside, `owner.name(...)` is `call(the method, ...)`."""
    before, own = getattr(owner, name), name in vars(owner)
    setattr(owner, name, functools.partial(call, before))
    try:
        yield
    finally:
        if own:
            setattr(owner, name, before)
        else:
            delattr(owner, name)


def _of_weights(model: Any) -> str:
    narrow = "; fp16 may be too narrow for this model: try bf16 or fp32" if model.torch_dtype == torch.float16 else ""
    return f"are not finite (NaN or infinite): the weights of the model or of an adapter are damaged or too large{narrow}"


@contextlib.contextmanager
def in_fp32(encoders: Sequence[Any]) -> Iterator[None]:
    """Inside, the encoders' weights and buffers are in fp32; afterwards they are what they were, bit for bit."""
    changed = [(tensor, tensor.dtype) for tensor in _weights(encoders) if tensor.dtype != torch.float32]
    parts = [part for encoder in encoders if isinstance(encoder, nn.Module) for part in encoder.modules()]
    outputs = [(part, part._output_dtype) for part in parts if isinstance(getattr(part, "_output_dtype", None), torch.dtype)]
    try:
        for tensor, _ in changed:
            tensor.data = tensor.data.float()
        for part, _ in outputs:  # of a convolution that was kept precise
            part._output_dtype = torch.float32  # type: ignore[assignment]
        yield
    finally:
        for tensor, dtype in changed:
            tensor.data = tensor.data.to(dtype)
        for part, output in outputs:
            part._output_dtype = output


@contextlib.contextmanager
def _casts_to_fp32(model: Any, kind: Encoded) -> Iterator[None]:
    """Inside, code that casts pictures to the VAE's dtype casts to fp32."""
    before = model.vae_torch_dtype
    model.vae_torch_dtype = torch.float32 if kind == "latents" else before
    try:
        yield
    finally:
        model.vae_torch_dtype = before


def _is_finite(tensor: torch.Tensor) -> bool:
    if type(tensor) is not torch.Tensor:  # a prediction's tensors have no numbers
        return True
    plain = tensor if tensor.element_size() > 1 else tensor.float()  # torch has no isfinite for 8 bits
    return bool(plain.isfinite().all())


def _weights(encoders: Sequence[Any]) -> list[torch.Tensor]:
    found = [
        tensor
        for encoder in encoders
        if isinstance(encoder, nn.Module)
        for tensor in (*encoder.parameters(), *encoder.buffers())
        if tensor.is_floating_point()
    ]
    return list({id(tensor): tensor for tensor in found}.values())


def _fixed(encoders: Sequence[Any]) -> str:
    """Why the encoders cannot be put into fp32; "" if they can."""
    if any(is_offloaded(encoder) for encoder in encoders):
        return ", and the encoder's weights are streamed, so fp32 was not tried; turn layer_offloading off, or give it fp32"
    if any(type(tensor.data) is not torch.Tensor for tensor in _weights(encoders)):
        return ", and the encoder is quantized, so fp32 was not tried; turn its quantization off"
    return ""


def _like(again: Any, first: Any) -> Any:
    """`again` in the dtypes of `first`, where it is a plain dict of tensors or one tensor."""
    if isinstance(again, torch.Tensor):
        return again.to(first.dtype)
    if type(again) is dict:
        return {key: _like(value, first[key]) for key, value in again.items()}
    return again


def _tensors(made: Any, name: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(made, torch.Tensor):
        yield name, made
    elif isinstance(made, list | tuple):
        for each in made:
            yield from _tensors(each, name)
    elif isinstance(made, Mapping) or hasattr(made, "__dict__"):
        for key, each in (made if isinstance(made, Mapping) else vars(made)).items():
            yield from _tensors(each, name if str(key).startswith("_") else str(key))


def _names(dtypes: set[torch.dtype]) -> str:
    return " and ".join(sorted(str(dtype).removeprefix("torch.") for dtype in dtypes))
