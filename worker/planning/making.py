"""What making pictures takes, found by making them of blank tensors (see worker.planning.blank): the job's own encoding and sampling, for
the pictures that take most."""

import gc
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace

import torch

from models.base import BaseModel
from models.batch import GenerateImageConfig
from models.groups import groups, offers_batches
from worker.planning.blank import Tracker, num_bytes
from worker.report import Reporter
from worker.sampling import preview
from worker.sampling.attempts import evaluating

STEPS = 2  # both experts of a model that has two; both ends of a step of heun


@dataclass
class Taken:
    """In bytes, beside the weights: what encoding takes, what making takes, and what the embeds of all pictures take while they wait."""

    encoding: int = 0
    making: int = 0
    held: int = 0
    notes: list[str] = field(default_factory=list)


def taken(model: BaseModel, configs: Sequence[GenerateImageConfig], at_most: int, reporter: Reporter) -> Taken:
    """For pictures of which at most `at_most` are made at once. Each is given the longest of their texts."""
    found = Taken()
    if not configs:
        return found
    prompt = max((config.prompt for config in configs), key=len)
    neg = max((config.negative_prompt for config in configs), key=len)
    alike = [
        replace(each, prompt=prompt, negative_prompt=neg, num_inference_steps=min(STEPS, each.num_inference_steps))
        for each in configs
    ]
    one = left = 0
    for group in heaviest(alike, at_most if offers_batches(model) else 1):
        encoding, making = Tracker(), Tracker()
        try:
            with torch.no_grad(), encoding:
                wanted = preview.encode(model, group, reporter)
            embeds = {id(config): pair for config, pair in zip(wanted.configs, wanted.embeds, strict=True)}
            texts = [list(vars(each).values()) for pair in wanted.embeds for each in pair]
            one = max(one, *(num_bytes(each) for each in texts))
            gc.collect()
            left = max(left, encoding.now - num_bytes(texts))  # the block that was streamed last, say
            with evaluating(model), making:
                model.generate_group(model.get_generation_pipeline(), group, lambda config: embeds[id(config)])  # noqa: B023
        except Exception as error:  # it looks at numbers
            found.notes.append(f"the making of pictures could not be predicted whole: {type(error).__name__}: {error}")
        found.encoding = max(found.encoding, encoding.peak)
        found.making = max(found.making, left + making.peak)
    found.held = one * num_embeds(model, configs)
    return found


def heaviest(configs: Sequence[GenerateImageConfig], at_most: int) -> list[list[GenerateImageConfig]]:
    """Of the groups that are made together, those that no other exceeds in everything that takes memory."""
    rated: dict[tuple[int, ...], list[GenerateImageConfig]] = {}
    for places in groups(configs, at_most):
        first = configs[places[0]]
        pixels = first.width * first.height * first.num_frames
        rate = pixels * len(places), pixels, int(first.guidance_scale > 1), len(first.control_images)
        rated.setdefault(rate, [configs[place] for place in places])
    return [
        group
        for rate, group in rated.items()
        if not any(rate != other and all(a <= b for a, b in zip(rate, other, strict=True)) for other in rated)
    ]


def num_embeds(model: BaseModel, configs: Sequence[GenerateImageConfig]) -> int:
    """How many different ones preview.encode makes of these."""
    if type(model).prepare_sample_prompt_context is not BaseModel.prepare_sample_prompt_context:
        return 2 * len(configs)
    known: set[Hashable] = set()
    for config in configs:
        controls = tuple(config.control_images) if model.encode_control_in_text_embeddings else ()
        known |= {(config.prompt, controls), (config.negative_prompt, controls)}
    return len(known)
