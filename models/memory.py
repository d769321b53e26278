"""Which parts of a model are where, and when: what is not at work gives its memory back.

A job's life has two times. While texts and pictures are encoded, the text encoder and the VAE work; while it trains or samples, the
denoiser does. `low_vram` keeps each on the device only in its own time. A part that the job does not need again is released: the model
then says so in `absent`, and a later job that needs it has it loaded again (`restore`). Each of this changes memory, never numbers.
"""

import contextlib
import errno
import gc
import logging
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from models import catalog, released
from models.data.datasets import every_dataset
from models.errors import UserError
from models.offload import MARK, find_blocks, is_offloaded, offload_blocks
from models.released import Absent, NotAlone
from models.spec import CONTROL_FOLDERS, TrainSpec

log = logging.getLogger(__name__)

DEVICE_ERRORS = ("CUDA error:", "HIP error:")
OUT_OF_MEMORY = ("out of memory", "not enough memory", "can't allocate memory", "cannot allocate memory")
CONDITIONED = {"i2v", "audio"}
CONTRACT = "models.base"
YOUNG = 1  # of the garbage collector's generations: what was made since the last full collection


def text_encoders(model: Any) -> list[nn.Module]:
    """The model's text encoders; most have one, some a list of them."""
    return released.parts_of(model, "text_encoder")


def load_device(config: Any, device: torch.device) -> torch.device:
    """Where load_model puts the denoiser: on the CPU if more is to be done to it before the device can hold it."""
    saving = ("quantize", "layer_offloading", "low_vram")
    return torch.device("cpu") if any(getattr(config, key, False) for key in saving) else device


def settle(model: Any, *, parked: bool) -> None:
    """Called once, after load_model: quantize, offload, and put the denoiser where it starts. With `parked` it stays on the CPU until
    `denoising`. What the architecture's own code has done already is left alone."""
    config, root = model.model_config, model.get_model_to_train()
    quantize(model)
    if getattr(config, "layer_offloading", False):
        offload_part(root, model.device_torch, config.layer_offloading_transformer_percent)
    offload_text_encoders(model)
    if not parked and not is_offloaded(root):
        root.to(model.device_torch)
    for network in (model.assistant_lora, model.recovery_adapter):
        if isinstance(network, nn.Module):
            network.to(model.device_torch)
    released.remember(model)


def quantize(model: Any) -> None:
    """Quantize the parts that the job's `model` section says, unless they are already."""
    if getattr(model.model_config, "quantize", False) or getattr(model.model_config, "quantize_te", False):
        from models.quantize import quantize_parts  # its library takes long to import, and few jobs need it

        quantize_parts(model)


def offload_text_encoders(model: Any) -> None:
    config = model.model_config
    if getattr(config, "layer_offloading", False):
        for encoder in text_encoders(model):
            offload_part(encoder, model.te_device_torch, config.layer_offloading_text_encoder_percent)


def offload_part(part: nn.Module, device: torch.device, share: float) -> None:
    """Stream the blocks of a frozen part, unless they are already."""
    if share > 0 and not is_offloaded(part):
        if not any(True for _ in find_blocks(part)):
            log.warning("%s has no list of blocks; layer_offloading does nothing for it", type(part).__name__)
        offload_blocks(part.requires_grad_(False), device, share)


def encoding(model: Any) -> None:
    """The time of the text encoder and the VAE begins."""
    if not is_low(model):
        return
    _move(model.get_model_to_train(), "cpu")
    for encoder in text_encoders(model):
        _move(encoder, model.te_device_torch)
    give_back()


def encoded(model: Any, spec: TrainSpec, *, previews: bool) -> None:
    """Everything that a training job can encode beforehand is: what neither steps nor previews need is released."""
    if spec.train.cache_text_embeddings and "text_encoder" not in model.absent:
        model.unload_text_encoder()
        if type(model).unload_text_encoder.__module__ != CONTRACT:  # a class that unloads it in a way of its own
            model.absent.add("text_encoder")
    if not previews and not steps_need_vae(spec):
        drop(model, "vae")
    denoising(model, steps_need_vae(spec), text_too=not spec.train.cache_text_embeddings)


def steps_need_vae(spec: TrainSpec) -> bool:
    """Whether a training step or a validation encodes: pictures that are not cached, control pictures where the data has some, or what
    conditions every step of an architecture for clips or sound (a first frame)."""
    datasets = [dataset for _, dataset in every_dataset(spec)]
    controlled = any(getattr(dataset, key) for dataset in datasets for key in CONTROL_FOLDERS)
    conditioned = CONDITIONED & set(catalog.arch(spec.model.arch).capabilities)
    return controlled or bool(conditioned) or not all(d.cache_latents or d.cache_latents_to_disk for d in datasets)


def denoising(model: Any, vae_too: bool = False, text_too: bool = False) -> None:
    """The time of the denoiser begins. The VAE leaves a GPU, unless steps need it (`vae_too`), and comes back when it is asked to work.
    With `low_vram` the text encoder leaves too, until `encoding`, unless steps encode captions (`text_too`): nothing else moves it."""
    if is_low(model) and not text_too:
        for encoder in text_encoders(model):
            _move(encoder, "cpu")
    if not vae_too:
        rest_vae(model)
    _move(model.get_model_to_train(), model.device_torch)
    give_back(YOUNG)


def rest_vae(model: Any) -> None:
    """The VAE leaves a GPU until encode_images or decode_latents move it back."""
    if model.device_torch.type != "cpu" and isinstance(model.vae, nn.Module):
        _move(model.vae, "cpu")
        give_back(YOUNG)


def drop(model: Any, name: str) -> None:
    """Release the part `text_encoder` or `vae`: its weights are freed even where other code still holds it, and `Absent` replaces it in the
    model and in its pipeline. Weights that the denoiser shares stay."""
    parts = released.parts_of(model, name)
    shared = {id(param) for param in model.get_model_to_train().parameters()}
    released.put_in_place(model, {id(each): Absent(each, name) for each in parts if not isinstance(each, Absent)})
    for each in parts:
        _empty(each, shared)
    if parts:
        model.absent.add(name)


def restore(model: Any, name: str) -> None:
    """Load the part `text_encoder` or `vae`, which an earlier job released, again, as it was after `settle`. Raises NotAlone where that
    takes the whole model, and what the loader raises."""
    before = [each.about for each in released.parts_of(model, name) if isinstance(each, Absent)]
    device = model.te_device_torch if name == "text_encoder" else model.vae_device_torch
    made = released.load_again(model, name, device)
    if name == "text_encoder":
        quantize(model)
        offload_text_encoders(model)
    if before != [released.description(part) for part in made]:
        raise NotAlone(f"the {released.NAMES[name]} alone is not what {type(model).__name__} makes of it")
    released.remember(model)
    model.absent.discard(name)


def is_low(model: Any) -> bool:
    return bool(getattr(model.model_config, "low_vram", False))


@contextlib.contextmanager
def tiled_vae(model: Any) -> Iterator[None]:
    """Inside, under `low_vram`, a VAE that can decodes in tiles. Only for previews: tiles change large pictures a little at their seams,
    and what is trained on must not depend on this."""
    vae = model.vae
    switch = is_low(model) and callable(getattr(vae, "enable_tiling", None)) and not getattr(vae, "use_tiling", False)
    if switch:
        vae.enable_tiling()
    try:
        yield
    finally:
        if switch:
            vae.disable_tiling()


def give_back(generation: int = 2) -> None:
    """Unused memory, to Python's allocator and the GPU's. What has long been there (`generation` 2) is looked through as well where
    memory is short or a whole model has gone: that takes a quarter of a second, since every library's objects are among it."""
    gc.collect(generation)
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def is_device_lost(error: BaseException | None) -> bool:
    """Whether this error, or one that led to it, is of a device whose every later operation in this process may fail: an illegal access, a
    failed assertion in a kernel. Memory that runs out is none."""
    while error is not None:
        by_class = isinstance(error, getattr(torch, "AcceleratorError", ()))  # torch 2.8 and later
        by_text = isinstance(error, RuntimeError) and any(words in str(error) for words in DEVICE_ERRORS)
        if (by_class or by_text) and not is_out_of_memory(error):
            return True
        error = error.__cause__ or error.__context__
    return False


def is_out_of_memory(error: BaseException) -> bool:
    """Of a GPU's memory or the computer's, however it is said."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    return isinstance(error, RuntimeError) and any(words in str(error).lower() for words in OUT_OF_MEMORY)


@contextlib.contextmanager
def explaining(told: str) -> Iterator[None]:
    """Inside, running out of memory is a UserError that says what to change (`told`)."""
    try:
        yield
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        raise _out_of_memory(error, told) from error


def _out_of_memory(error: BaseException, told: str) -> UserError:
    first = str(error).strip().splitlines()[:1]
    return UserError(f"out of memory: {first[0] if first else type(error).__name__}", code="out_of_memory", hint=told)


def _move(part: Any, device: torch.device | str) -> None:
    """Everything but what is streamed, which has its own places."""
    if isinstance(part, nn.Module) and not is_offloaded(part):
        part.to(device)


def _empty(part: nn.Module, shared: set[int]) -> None:
    for module in part.modules():
        tensors: tuple[dict[str, Any], ...] = (module._parameters, module._buffers)
        for own in tensors:
            for name, tensor in own.items():
                if tensor is not None and id(tensor) not in shared:
                    blank = torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")
                    own[name] = nn.Parameter(blank, requires_grad=False) if own is module._parameters else blank
        if (streamer := getattr(module, MARK, None)) is not None:
            streamer.clear()
            streamer.stores.clear()
