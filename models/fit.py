"""What is wrong with a job although each of its keys alone is right: keys that do not go together, or not with the arch."""

from collections.abc import Iterator, Mapping
from typing import Any

from models.arch import Arch
from models.data.texts import is_blank
from models.data.trigger import placeholder_in
from models.errors import Problem
from models.spec import (
    OPTIMIZERS,
    DatasetSpec,
    JobSpec,
    SampleSpec,
    Spec,
    TrainSpec,
    hints,
    optimizer_options,
    previews,
    prompt_texts,
)
from models.spec.train import FEW_STEPS
from models.words import unknown

PRODIGY_LEAST = 0.1  # below it other trainers put 1.0 in silently
FLOW_ONLY = ("weighted", "shift", "lognorm_blend", "one_step", "two_step", "four_step", "eight_step")

TRAINING_ONLY = (  # keys of a dataset that mean nothing where it is held out
    *("num_repeats", "flip_x", "flip_y", "random_crop"),
    *("caption_dropout_rate", "shuffle_tokens", "token_dropout_rate", "keep_tokens"),
    *("is_reg", "prior_reg", "loss_multiplier"),
    *("mask_path", "on_missing_mask", "alpha_mask", "invert_mask", "mask_min_value"),
)


def misfits(card: Arch, spec: JobSpec, as_defaults: bool = False) -> Iterator[Problem]:
    """Every fault of a typed job, with its place. `as_defaults`, for a job of a card's defaults, lets keys be that mean nothing yet: they
    wait for what a job may set beside them."""
    yield from _needless(card, spec, as_defaults)
    if spec.model.name_or_path == "random" and not card.random_init:
        yield Problem("/model/name_or_path", f"arch '{card.name}' does not start from random weights; name a checkpoint")
    if spec.model.accuracy_recovery_adapter and spec.model.assistant_lora_path:
        yield Problem("/model/accuracy_recovery_adapter", "a recovery adapter and a training adapter do not go together")
    yield from _attention(spec)
    if isinstance(spec, TrainSpec):
        yield from _network(card, spec)
        yield from _precision(spec, as_defaults)
        yield from _optimizer(spec)
        yield from _rate(spec)
        yield from _noise_levels(card, spec)
        yield from _preservation(spec)
        yield from _validation(card, spec)
        for index, dataset in enumerate(spec.datasets):
            yield from _dataset(card, spec, dataset, f"/datasets/{index}")
        if all(dataset.is_reg for dataset in spec.datasets):
            yield Problem(
                "/datasets/0/is_reg", "every dataset is a regularisation set; at least one must be what is to be learned"
            )
        if spec.train.reg_weight != 1 and not any(dataset.is_reg for dataset in spec.datasets):
            yield Problem("/train/reg_weight", "reg_weight means nothing unless a dataset is a regularisation set (is_reg)")
    if isinstance(spec, SampleSpec) and spec.matrix:
        for key in ("checkpoints", "weights"):
            listed = getattr(spec.matrix, key)
            for place, value in enumerate(listed):
                if value in listed[:place]:
                    yield Problem(f"/matrix/{key}/{place}", f"{value!r} is listed twice")
    if isinstance(spec, TrainSpec | SampleSpec):
        yield from _sizes(card, "/sample", spec.sample)
        if spec.sample.sampler is not None and spec.sample.sampler not in card.samplers:
            known = f"known: {', '.join(card.samplers)}" if card.samplers else "it has one way of sampling; leave sampler out"
            message = f"arch '{card.name}' has no sampler '{spec.sample.sampler}'; {known}"
            yield unknown("/sample/sampler", message, spec.sample.sampler, card.samplers)
        for at, sample in previews(spec).items():
            yield from _sizes(card, at, sample)
        yield from _trigger_words(spec)


def _trigger_words(spec: TrainSpec | SampleSpec) -> Iterator[Problem]:
    """Trigger words that are none, and placeholders in prompts that nothing fills. Captions are looked at with the data."""
    words = {"": spec.trigger_word}
    if isinstance(spec, TrainSpec):
        words |= {f"/datasets/{index}": dataset.trigger_word for index, dataset in enumerate(spec.datasets)}
        words |= {"/validation/dataset": held.trigger_word} if spec.validation and (held := spec.validation.dataset) else {}
    for at, word in words.items():
        if word and "".join(word.splitlines()) != word:
            yield Problem(f"{at}/trigger_word", f"{word!r} holds a line break; a trigger word is one line")
        elif word and (is_blank(word) or placeholder_in(word)):
            yield Problem(f"{at}/trigger_word", f"{word!r} is no trigger word; give the word itself, for instance ohwx")
    for pointer, text in prompt_texts(spec).items() if spec.trigger_word is None else ():
        if found := placeholder_in(text):
            yield Problem(pointer, f"nothing fills {found}: give the job a trigger_word, or write the word itself")


def _attention(spec: JobSpec) -> Iterator[Problem]:
    """The flash kernel has no fp32 form. An architecture's own option comes before the model's."""
    own = getattr(spec.model.model_kwargs, "attention_backend", None)
    if (own or spec.model.attention_backend) == "flash" and spec.model.dtype == "fp32":
        at = "/model/model_kwargs/attention_backend" if own else "/model/attention_backend"
        message = "attention 'flash' computes in bf16 or fp16, and model.dtype is fp32; use native, or another dtype"
        yield Problem(at, message, "native")


def lacks(card: Arch, ui: Mapping[str, Any]) -> bool:
    """Whether a field with these hints needs capabilities of which the card names none."""
    return bool(ui.get("needs")) and not set(ui["needs"]) & set(card.capabilities)


def _needless(
    card: Arch, spec: Spec, as_defaults: bool, pointer: str = "", around: Spec | None = None, outer: str = ""
) -> Iterator[Problem]:
    """Keys that are set but mean nothing to this arch, or beside what stands next to them or in the object `around` theirs, whose place is
    `outer`."""
    for name, info in type(spec).model_fields.items():
        value = getattr(spec, name)
        ui = hints(info)
        is_set = (
            any((ui.get("needs"), ui.get("when"))) and value is not None and value != info.get_default(call_default_factory=True)
        )
        if is_set and lacks(card, ui):
            wanted = " or ".join(f"'{each}'" for each in ui["needs"])
            yield Problem(f"{pointer}/{name}", f"arch '{card.name}' has no use for {name}: it lacks {wanted}")
        for key, values in ui.get("when", {}).items() if is_set and not as_defaults else ():
            other = key.removeprefix("../")
            given = getattr(spec if other == key else around, other)
            named = f"{pointer if other == key else outer}/{other}"[1:].replace("/", ".")
            if given not in values and (said := _idle(name, named, given, values)):
                yield Problem(f"{pointer}/{name}", said)
        for place, inner in enumerate(value) if isinstance(value, list) else [("", value)]:
            if isinstance(inner, Spec):
                at = f"{pointer}/{name}" + (f"/{place}" if place != "" else "")
                yield from _needless(card, inner, as_defaults, at, spec, pointer)


def _idle(name: str, other: str, given: Any, values: list[Any]) -> str | None:
    """Why `name` means nothing while the key `other`, with the keys around it, is `given`; None where `given` is itself refused."""
    if other != "train.optimizer":
        words = [str(value).lower() if isinstance(value, bool) else str(value) for value in values]
        return f"{name} means nothing unless {other} is {' or '.join(words)}"
    if ":" in given:
        return f"{name} is an option of {', '.join(values)}; give the arguments of '{given}' in optimizer_kwargs"
    if given not in OPTIMIZERS:
        return None
    return f"optimizer '{given}' has no {name}, an option of {', '.join(values)}; it takes: {', '.join(optimizer_options(given))}"


def _precision(spec: TrainSpec, as_defaults: bool) -> Iterator[Problem]:
    """Gradients below 6e-8 are 0 in fp16. A card's defaults are those of sampling jobs too, which may have it."""
    if spec.network is not None and spec.model.dtype == "fp16" and not as_defaults:
        message = "training in fp16 loses small gradients; bf16 takes as little memory and keeps them, fp32 also runs where bf16 is slow"
        yield Problem("/model/dtype", message, "bf16")


def _network(card: Arch, spec: TrainSpec) -> Iterator[Problem]:
    network = spec.network
    if network is None and not card.trains_all_weights:
        yield Problem("/network", f"arch '{card.name}' trains adapters, not all of its weights; give a network")
    elif network is None and spec.model.dtype != "fp32":
        message = f"a full fine-tune trains the weights themselves and needs fp32; {spec.model.dtype} loses small updates"
        yield Problem("/model/dtype", message, "fp32")
    if network is None:
        for key in ("quantize", "layer_offloading"):
            if getattr(spec.model, key):
                yield Problem(
                    f"/model/{key}", f"a full fine-tune trains the weights themselves, so {key} does not fit; train a network"
                )
    elif network.type not in card.adapters:
        known = ", ".join(card.adapters)
        yield Problem("/network/type", f"'{network.type}' does not fit arch '{card.name}'; it takes: {known}")
    elif network.conv_alpha is not None and network.conv is None:
        yield Problem("/network/conv_alpha", "conv_alpha means nothing without network.conv, the convolutions' rank")


def _optimizer(spec: TrainSpec) -> Iterator[Problem]:
    train = spec.train
    if ":" not in train.optimizer:
        if train.optimizer not in OPTIMIZERS:
            message = f"optimizer '{train.optimizer}' is unknown; known: {', '.join(OPTIMIZERS)}, or package:Class"
            yield unknown("/train/optimizer", message, train.optimizer, OPTIMIZERS)
            return
        if train.optimizer_kwargs:
            yield Problem("/train/optimizer_kwargs", "optimizer_kwargs are for a package:Class optimizer; use optimizer_params")
    given = train.optimizer_params
    if train.optimizer == "sgd" and given.nesterov and not given.momentum:
        yield Problem("/train/optimizer_params/nesterov", "nesterov looks ahead along the momentum; give a momentum", "0.9")
    if train.optimizer == "adafactor" and given.warmup_init and not given.relative_step:
        yield Problem("/train/optimizer_params/warmup_init", "warmup_init means nothing unless relative_step is true")
    for key in sorted({"lr", "params"} & set(train.optimizer_kwargs if ":" in train.optimizer else ())):
        why = "the rate is train.lr" if key == "lr" else "what is trained follows from the job"
        yield Problem(f"/train/optimizer_kwargs/{key}", f"{key} does not go here: {why}")


def _rate(spec: TrainSpec) -> Iterator[Problem]:
    train = spec.train
    if train.lr_warmup_steps > train.steps:
        yield Problem("/train/lr_warmup_steps", f"{train.lr_warmup_steps} warm-up steps are more than the {train.steps} steps")
    if train.optimizer == "prodigy" and train.lr < PRODIGY_LEAST:
        message = f"prodigy finds the rate itself and multiplies it by lr; {train.lr:g} would all but stop it, 1.0 is usual"
        yield Problem("/train/lr", message, "1.0")
    if train.optimizer == "adafactor" and train.optimizer_params.relative_step:
        for key in ("lr_scheduler", "lr_warmup_steps"):
            if getattr(train, key) not in ("constant", 0):
                yield Problem(f"/train/{key}", f"with relative_step Adafactor chooses its own rate, so {key} means nothing")


def unfit_timesteps(card: Arch, kind: str) -> str | None:
    """Why the arch cannot be trained with this timestep_type; None if it can."""
    if kind in FLOW_ONLY and "epsilon" in card.capabilities:
        return f"timestep_type '{kind}' is for flow matching; arch '{card.name}' predicts noise: take linear or sigmoid"
    if kind == "shift" and "schedule" not in card.capabilities:
        return (
            f"timestep_type 'shift' follows the schedule of arch '{card.name}', and it has none; take sigmoid, linear or weighted"
        )
    return None


def _noise_levels(card: Arch, spec: TrainSpec) -> Iterator[Problem]:
    train = spec.train
    kind, first, last = train.timestep_type, train.min_denoising_steps, train.max_denoising_steps
    if first >= last:
        yield Problem("/train/max_denoising_steps", f"no noise level lies between {first} and {last}")
        return
    if message := unfit_timesteps(card, kind):
        yield Problem("/train/timestep_type", message, "linear")
    if kind in FEW_STEPS:
        levels = range(0, 1000, 1000 // FEW_STEPS[kind])
        if not any(first <= level < last for level in levels):
            known = ", ".join(map(str, levels))
            message = f"timestep_type '{kind}' has the levels {known} of 1000, and none from {first} up to {last}"
            yield Problem("/train/max_denoising_steps", message)


def _preservation(spec: TrainSpec) -> Iterator[Problem]:
    train = spec.train
    if train.diff_output_preservation and train.blank_prompt_preservation:
        yield Problem("/train/blank_prompt_preservation", "keep either the class or the empty prompt as it was, not both")
    for key in ("diff_output_preservation", "blank_prompt_preservation"):
        if getattr(train, key) and spec.network is None:
            yield Problem(f"/train/{key}", f"{key} compares with the model without its adapter; train a network")
    if train.diff_output_preservation:
        if not train.diff_output_preservation_class.strip():
            yield Problem("/train/diff_output_preservation_class", "name the class that the trigger word stands for")
        if not (spec.trigger_word or any(dataset.trigger_word for dataset in spec.datasets)):
            yield Problem("/trigger_word", "diff_output_preservation replaces the trigger word by its class; give a trigger word")


def _validation(card: Arch, spec: TrainSpec) -> Iterator[Problem]:
    if spec.validation is None:
        return
    if (spec.validation.fraction is None) == (spec.validation.dataset is None):
        yield Problem("/validation", "give either fraction, a share of the pictures to hold out, or dataset, a folder of its own")
    levels = [f"{level:g}" for level in spec.validation.timesteps]  # as the series are named
    for place, level in enumerate(levels):
        if level in levels[:place]:
            yield Problem(f"/validation/timesteps/{place}", f"{level} is listed twice")
    if held := spec.validation.dataset:
        yield from _resolutions(card, held, "/validation/dataset")
        for key in TRAINING_ONLY:
            if getattr(held, key) != DatasetSpec.model_fields[key].default:
                message = f"{key} means nothing here: what is held out is shown once, plain, with no mask and no weight"
                yield Problem(f"/validation/dataset/{key}", message)


def _dataset(card: Arch, spec: TrainSpec, dataset: DatasetSpec, pointer: str) -> Iterator[Problem]:
    yield from _resolutions(card, dataset, pointer)
    if dataset.mask_path and dataset.alpha_mask:
        yield Problem(f"{pointer}/alpha_mask", "take masks either from mask_path or from alpha, not from both")
    if dataset.on_missing_mask != "stop" and not dataset.mask_path:
        yield Problem(f"{pointer}/on_missing_mask", "on_missing_mask means nothing without mask_path")
    if not (dataset.mask_path or dataset.alpha_mask):
        for key in ("invert_mask", "mask_min_value"):
            if getattr(dataset, key):
                yield Problem(f"{pointer}/{key}", f"{key} means nothing without mask_path or alpha_mask")
    for key in ("shuffle_tokens", "token_dropout_rate"):
        if getattr(dataset, key) and spec.train.cache_text_embeddings:
            message = f"{key} makes a new caption at every step; set train.cache_text_embeddings to false"
            yield Problem(f"{pointer}/{key}", message)
    if dataset.keep_tokens and not (dataset.shuffle_tokens or dataset.token_dropout_rate):
        yield Problem(f"{pointer}/keep_tokens", "keep_tokens means nothing without shuffle_tokens or token_dropout_rate")
    if dataset.prior_reg and spec.network is None:
        yield Problem(f"{pointer}/prior_reg", "prior_reg learns what the model without its adapter predicts; train a network")


def _resolutions(card: Arch, dataset: DatasetSpec, pointer: str) -> Iterator[Problem]:
    fixed = max(card.fixed_size) if card.fixed_size else None
    for place, resolution in enumerate(dataset.resolution):
        yield from _size(card, f"{pointer}/resolution/{place}", resolution, fixed)


def _sizes(card: Arch, pointer: str, shown: Any) -> Iterator[Problem]:
    """The width and height of a preview, or of all of them."""
    width, height = card.fixed_size or (None, None)
    yield from _size(card, f"{pointer}/width", shown.width, width)
    yield from _size(card, f"{pointer}/height", shown.height, height)


def _size(card: Arch, pointer: str, pixels: int | None, fixed: int | None = None) -> Iterator[Problem]:
    if pixels is not None and fixed is not None and pixels != fixed:
        wide, high = card.fixed_size or (fixed, fixed)
        yield Problem(pointer, f"arch '{card.name}' makes pictures of {wide}x{high} only; {pixels} must be {fixed}", str(fixed))
        return
    multiple = card.bucket_divisibility
    if pixels is not None and pixels % multiple:
        below = pixels // multiple * multiple
        near = [n for n in (below, below + multiple) if n]
        message = f"{pixels} must be a multiple of {multiple}; nearest: {', '.join(map(str, near))}"
        yield Problem(pointer, message, str(min(near, key=lambda n: abs(n - pixels))))
