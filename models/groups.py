"""A round of previews: which pictures can share a forward pass, and how a group of them is made without a trace elsewhere."""

import contextlib
import random
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any

import numpy as np
import torch

from models import memory
from models.batch import Audio, Clip, GenerateImageConfig, Made
from models.precise import NotFinite, checked_sampling, not_finite
from models.prompt_embeds import concat_prompt_embeds


def groups(configs: Sequence[GenerateImageConfig], at_most: int) -> Iterator[list[int]]:
    """The places of `configs` in order, neighbours that can be made together in one list of at most `at_most`."""
    group: list[int] = []
    for place, config in enumerate(configs):
        kind = _kind(config)
        if group and (len(group) >= at_most or kind is None or kind != _kind(configs[group[0]])):
            yield group
            group = []
        group.append(place)
    if group:
        yield group


def offers_batches(model: Any) -> bool:
    """Whether the model's class has a `generate_batch` that goes with its `generate_single_image`: a class that overrides only the
    latter makes its pictures in another way than the class whose `generate_batch` it inherits."""
    classes = type(model).__mro__
    together, alone = (
        next(place for place, cls in enumerate(classes) if name in vars(cls))
        for name in ("generate_batch", "generate_single_image")
    )
    return together <= alone and classes[together].__module__ != "models.base"  # the contract's own only says that there is none


def make(
    model: Any, pipeline: Any, configs: Sequence[GenerateImageConfig], embeds: Callable[[GenerateImageConfig], tuple[Any, Any]]
) -> list[Made]:
    """The pictures of one group: in one pass if the model offers that, else one after the other.

    Each one's noise comes from its own seed; the global generators are neither read nor changed. A training adapter acts, with its
    sign turned, only here. Raises NotFinite, naming the part, where predictions, latents, pixels or a sound are not finite.
    """
    given = [tuple(part if part is None else part.to(model.device_torch) for part in embeds(config)) for config in configs]
    seeded = [torch.Generator("cpu").manual_seed(config.seed) for config in configs]
    with own_generators(model.device_torch), torch.no_grad(), memory.tiled_vae(model), checked_sampling(model):
        if model.assistant_lora is not None:
            model.assistant_lora.multiplier = -1.0
        try:
            if len(configs) > 1 and offers_batches(model):
                joined = [concat_prompt_embeds(parts, model.te_padding_side) for parts in zip(*given, strict=True)]
                made = model.generate_batch(pipeline, list(configs), *joined, seeded)
                if len(made) != len(configs):
                    raise ValueError(f"{type(model).__name__}.generate_batch made {len(made)} pictures, not {len(configs)}")
            else:
                made = [
                    model.generate_single_image(pipeline, config, *each, generator, dict(config.extra_kwargs))
                    for config, each, generator in zip(configs, given, seeded, strict=True)
                ]
        finally:
            if model.assistant_lora is not None:
                model.assistant_lora.multiplier = 0.0
    for each in made:
        sound = each.get("audio") if isinstance(each, dict) else each.audio if isinstance(each, Clip) else each
        if not_finite(sound.waveform if isinstance(sound, Audio) else sound if isinstance(sound, torch.Tensor) else None):
            raise NotFinite("the sound after decoding is not finite (NaN or infinite)")
    return [Clip(each, config.fps) if isinstance(each, list) else each for each, config in zip(made, configs, strict=True)]


@contextlib.contextmanager
def own_generators(device: torch.device) -> Iterator[None]:
    """Inside, whoever draws from the generators of torch, numpy or Python has them to itself; afterwards they are where they were."""
    numbers, arrays = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            yield
    finally:
        random.setstate(numbers)
        np.random.set_state(arrays)


def _kind(config: GenerateImageConfig) -> Hashable:
    """What pictures made together have in common; None for one that is made alone, for control images have sizes of their own."""
    if config.control_images or config.latents is not None or config.extra_kwargs:
        return None
    return (
        *(config.width, config.height, config.num_frames, config.fps, config.num_inference_steps),
        *(config.guidance_scale, config.sampler, config.network_multiplier, config.do_cfg_norm),
    )
