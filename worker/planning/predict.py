"""How much memory a job will need, found by running its own code on tensors without numbers.

Measured that way: the model as load_model leaves it (quantized, offloaded), the text encoder and the VAE at work on the job's longest
caption and largest picture, two optimizer steps of the loop on the largest batch, and the making of pictures (worker.planning.making).
Every operation's outputs count for as long as they live. Modelled: an optimizer whose step looks at numbers (it is run on zeros, one
tensor of each trained shape), and what the caches keep in memory. Not seen: what a kernel takes inside one operation, the CUDA context
(about half a gigabyte), fragmentation, an adapter's file while it is read, and the program itself.

The code runs as on a CPU; for a GPU what waits outside it (a resting VAE, a parked denoiser) is not counted.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from models import catalog, memory
from models.base import BaseModel, Embeds
from models.batch import Batch, GenerateImageConfig
from models.errors import UserError
from models.memory import text_encoders
from models.offload import is_offloaded
from models.prompt_embeds import concat_prompt_embeds
from models.spec import JobSpec, SampleSpec, TrainSpec
from worker.data.batches import TrainBatch
from worker.load import Places, load_model, trains_all_weights
from worker.planning.blank import Tracker, blank_module, blank_weights, new_mode, num_bytes, with_numbers
from worker.planning.making import taken
from worker.report import Reporter
from worker.sampling import preview
from worker.sampling.sample import adapter
from worker.training.loop import make_state, steps
from worker.training.optim import make_optimizer
from worker.training.state import TrainState
from worker.training.steps import TrainStep

PARTS = ("weights", "adapters", "gradients", "optimizer", "ema", "activations", "caches")
STEPS = 2  # the first makes the optimizer's state, the second is like all others


@dataclass(frozen=True)
class Data:
    """What of the datasets decides about memory: the largest picture (width, height in pixels, frames, control images), the longest
    caption, how many of each there are to cache, and whether latents are kept in memory. `batch` is the largest that a step has: width,
    height, frames and how many; None: as many of the largest picture as the job's batch_size."""

    size: tuple[int, int]
    caption: str
    num_frames: int = 1
    num_controls: int = 0
    num_pictures: int = 0
    num_captions: int = 0
    in_memory: bool = False
    batch: tuple[int, int, int, int] | None = None


@dataclass
class Prediction:
    """All in bytes. `parts` are those of the phase that takes most, and add up to `peak`."""

    peak: int
    phase: str
    parts: dict[str, int]
    phases: dict[str, int]
    trained_parameters: int
    disk: dict[str, int]
    notes: list[str] = field(default_factory=list)


def predict(spec: JobSpec, places: Places, data: Data | None = None, device: str = "cpu") -> Prediction:
    """`data` is a training job's. Raises what the model's code raises where it cannot run without numbers, and UserError as load_model
    does, or for an adapter that does not fit."""
    if places.model == "random":  # built blank, unless its code needs a number that it made
        with suppress(Exception):
            return _predict(spec, places, data, device, built_blank=True)
    return _predict(spec, places, data, device, built_blank=False)


def _predict(spec: JobSpec, places: Places, data: Data | None, device: str, built_blank: bool) -> Prediction:
    mode = new_mode()
    on_cpu = torch.device(device).type == "cpu"
    with blank_weights(mode):
        model = load_model(spec, Places(**{**vars(places), "cache": None}), "cpu", inside=mode if built_blank else None)
        for part in _modules(model):
            blank_module(part, mode)
        if isinstance(spec, SampleSpec):
            return _sampling(model, spec, places, mode, on_cpu)
        assert isinstance(spec, TrainSpec) and data is not None
        samples = [] if spec.train.disable_sampling else spec.sample.samples
        previews = preview.configs(spec.sample, samples, places.controls, spec.trigger_word)
        return _Training(model, spec, data, previews, mode, on_cpu).made()


def _sampling(model: BaseModel, spec: SampleSpec, places: Places, mode: FakeTensorMode, on_cpu: bool) -> Prediction:
    """A sampling job: all is encoded, then all is made. The embeds wait on the CPU."""
    everything = num_bytes(_modules(model))
    parked = 0 if on_cpu else _parked(model, [model.get_model_to_train()])
    left = 0 if on_cpu else _parked(model, text_encoders(model))
    with ExitStack() as attached:
        adapters, notes = _attach(model, places, mode, attached)
        pictures = preview.configs(spec.sample, spec.samples, places.controls, spec.trigger_word)
        found = taken(model, pictures, spec.sample.batch_size, _Deaf())
    shared = {"adapters": adapters, "caches": found.held if on_cpu else 0}
    by_phase = {
        "encoding": {"weights": everything - parked, **shared, "activations": found.encoding},
        "sampling": {"weights": everything - left, **shared, "activations": found.making},
    }
    return _worst(by_phase, 0, {}, notes + found.notes)


def _attach(model: BaseModel, places: Places, mode: FakeTensorMode, attached: ExitStack) -> tuple[int, list[str]]:
    """Put the job's adapters on, and of the checkpoints that it compares the largest; the answer is what they take, and notes of those
    that are gone. Raises UserError for one that cannot be used, as a run does before its first picture."""
    networks, found, notes = [], [], []

    def put_on(path: Path) -> None:
        with with_numbers():  # architectures look at them, and the files are small
            networks.append(attached.enter_context(adapter(model, path)))
        blank_module(networks[-1], mode)

    for path in places.adapters:
        put_on(path)
    for find in places.checkpoints:
        try:
            found.append(find())
        except UserError as error:
            notes.append(error.message)
    for path in sorted(found, key=lambda path: path.stat().st_size, reverse=True):
        put_on(path)
        break
    return num_bytes(networks), notes


def _worst(by_phase: dict[str, dict[str, int]], trained_parameters: int, disk: dict[str, int], notes: list[str]) -> Prediction:
    totals = {phase: sum(parts.values()) for phase, parts in by_phase.items()}
    phase = max(totals, key=lambda name: totals[name])
    parts = {name: by_phase[phase].get(name, 0) for name in PARTS if any(name in each for each in by_phase.values())}
    return Prediction(totals[phase], phase, parts, totals, trained_parameters, disk, notes)


def _modules(model: BaseModel) -> list[nn.Module]:
    """All that has weights of its own, the job's adapters aside."""
    found = [model.get_model_to_train(), model.model, model.vae, *text_encoders(model)]
    found += [model.assistant_lora, model.recovery_adapter]
    return [part for part in found if isinstance(part, nn.Module)]


def _parked(model: BaseModel, parts: Sequence[nn.Module]) -> int:
    """What `low_vram` keeps outside a GPU while these parts rest. What is streamed stays where it is."""
    return num_bytes([part for part in parts if not is_offloaded(part)]) if memory.is_low(model) else 0


class _Training:
    """A training job's phases: caching, training, and the making of previews."""

    def __init__(
        self,
        model: BaseModel,
        spec: TrainSpec,
        data: Data,
        previews: Sequence[GenerateImageConfig],
        mode: FakeTensorMode,
        on_cpu: bool,
    ) -> None:
        self.model, self.spec, self.data, self.previews = model, spec, data, previews
        self.batch = data.batch or (*data.size, data.num_frames, spec.train.batch_size)
        self.mode, self.on_cpu = mode, on_cpu
        self.notes: list[str] = []

    def made(self) -> Prediction:
        model, spec = self.model, self.spec
        everything = num_bytes(_modules(model))
        latents, embeds, encoding = self._encode()
        making = taken(model, self.previews, 1, _Deaf())  # more at once are tried, and are no reason to refuse a job
        self.notes += making.notes
        memory.encoded(model, spec, previews=bool(self.previews))
        vae = num_bytes(model.vae) if isinstance(model.vae, nn.Module) else 0
        resting = vae if not (self.on_cpu or memory.steps_need_vae(spec)) else 0
        parked = 0 if self.on_cpu else _parked(model, [model.get_model_to_train()])
        parts = self._train(latents, embeds)
        parts["weights"] -= resting
        parts["caches"] = self._cached() + making.held if self.on_cpu else 0
        own = {name: parts[name] for name in ("adapters", "ema", "caches")}
        aside = parts["adapters"] if parts["ema"] else 0  # while averages are in their place
        weights = {
            "caching": everything - parked - (parts["adapters"] if trains_all_weights(spec) else 0),
            "training": parts["weights"],
            "sampling": parts["weights"] + resting,
        }
        by_phase = {
            "caching": {**own, "weights": weights["caching"], "activations": max(encoding, making.encoding)},
            "training": parts,
            "sampling": {
                **own,
                "weights": weights["sampling"],
                "optimizer": parts["optimizer"],
                "activations": making.making + aside,
            },
        }
        if not self.previews:
            del by_phase["sampling"]
        return _worst(by_phase, self.trained, self._disk(parts), self.notes)

    def _encode(self) -> tuple[torch.Tensor, Embeds, int]:
        """Latents of the largest batch and embeds of its captions, and what encoding takes beside the weights."""
        width, height = self.data.size
        wide, high, frames, count = self.batch
        with torch.no_grad(), Tracker() as tracker:
            embeds = self.model.encode_prompt(self.data.caption, self._control(height, width))
            one = self.model.encode_images([self._pixels(height, width, self.data.num_frames)])
        with torch.no_grad():
            trained = self.model.encode_images([self._pixels(high, wide, frames)])
        self.latent_bytes, self.text_bytes = num_bytes([one]), num_bytes(list(vars(embeds).values()))
        return self._blank(trained, count), concat_prompt_embeds([embeds] * count, self.model.te_padding_side), tracker.peak

    def _train(self, latents: torch.Tensor, embeds: Embeds) -> dict[str, int]:
        """The parts of a step's peak."""
        model, spec = self.model, self.spec
        make_optimizer([nn.Parameter(torch.zeros(1))], spec.train)  # what it imports is not for blank tensors
        with self.mode:
            state = make_state(model, spec)
        short = spec.model_copy(update={"train": spec.train.model_copy(update={"steps": STEPS, "lr_warmup_steps": 0})})
        params = list(state.params.values())
        self.trained = sum(param.numel() for param in params)
        trained = num_bytes(params)
        weights = num_bytes(_modules(model)) - (trained if model.network is None else 0)
        optimizer = _Optimizer(state, short)
        data = _Endless(self._batch(latents), embeds)
        with Tracker() as tracker:
            for _ in steps(TrainStep(model, short), short, state, data, _Deaf()):  # type: ignore[arg-type]
                pass
        self.notes += optimizer.notes
        held = optimizer.num_bytes
        peak = max(tracker.peak + held, trained + held + optimizer.moving) if optimizer.modelled else tracker.peak
        return {
            "weights": weights,
            "adapters": trained,
            "gradients": trained,
            "optimizer": held,
            "ema": num_bytes(list(state.ema.shadow.values())) if state.ema else 0,
            "activations": max(0, peak - held - trained),
        }

    def _pixels(self, height: int, width: int, frames: int) -> torch.Tensor:
        video = "video" in catalog.arch(self.spec.model.arch).capabilities
        return torch.zeros(*((frames,) if video else ()), 3, height, width)

    def _control(self, height: int, width: int) -> Any:
        """What a text encoder sees of control images, as encode_prompt takes it."""
        images = [torch.zeros(1, 3, height, width)] * self.data.num_controls
        return images if self.model.has_multiple_control_images else next(iter(images), None)

    def _batch(self, latents: torch.Tensor) -> Batch:
        """A batch like the job's largest, with as many control images as the data has."""
        width, height, frames, count = self.batch
        able = catalog.arch(self.spec.model.arch).capabilities
        images = [torch.zeros(3, height, width)] * self.data.num_controls
        several = len(images) > 1 or (
            bool(images) and (self.model.has_multiple_control_images or self.model.use_raw_control_images)
        )
        pixels = self._pixels(height, width, frames)
        return Batch(
            latents,
            [self.data.caption] * count,
            tensor=torch.stack([pixels] * count) if {"video", "i2v"} & set(able) else None,
            control_tensor=torch.stack([images[0]] * count) if images and not several else None,
            control_tensor_list=[images] * count if several else None,
            num_frames=frames,
        )

    def _blank(self, tensor: torch.Tensor, count: int) -> torch.Tensor:
        with self.mode:
            return torch.empty(count, *tensor.shape[1:], dtype=tensor.dtype)

    def _cached(self) -> int:
        """What the caches keep in memory."""
        pictures = self.data.num_pictures * self.latent_bytes if self.data.in_memory else 0
        return pictures + self.data.num_captions * self.text_bytes

    def _disk(self, parts: dict[str, int]) -> dict[str, int]:
        """A checkpoint holds what training goes on from and what users load."""
        shared = {"fp32": 4, "fp16": 2, "bf16": 2}[self.spec.save.dtype]
        one = parts["adapters"] + parts["optimizer"] + parts["ema"] + self.trained * shared
        caches = self.data.num_pictures * self.latent_bytes + self.data.num_captions * self.text_bytes
        return {"checkpoint": one, "checkpoints": one * (self.spec.save.max_step_saves_to_keep + 1), "caches": caches}


class _Optimizer:
    """Stands in for the state's optimizer: its own step, or, where that looks at numbers, a model of it."""

    def __init__(self, state: TrainState, spec: TrainSpec) -> None:
        self.state, self.spec = state, spec
        self.modelled, self.moving, self._modelled_bytes = False, 0, 0
        self.notes: list[str] = []
        self._step: Any = state.optimizer.step
        state.optimizer.step = self.step  # type: ignore[method-assign, assignment]

    def step(self) -> None:
        if self.modelled:
            return
        try:
            self._step()
        except Exception as error:
            self.notes.append(f"{self.spec.train.optimizer} was run on zeros instead: {type(error).__name__}")
            self.modelled = True
            self.state.optimizer.state.clear()
            self._model()

    @property
    def num_bytes(self) -> int:
        """What it keeps between steps."""
        if self.modelled:
            return self._modelled_bytes
        return num_bytes([value for kept in self.state.optimizer.state.values() for value in kept.values()])

    def _model(self) -> None:
        counts: dict[torch.Size, int] = {}
        for param in self.state.params.values():
            counts[param.shape] = counts.get(param.shape, 0) + 1
        params = {shape: nn.Parameter(torch.zeros(shape)) for shape in counts}
        for param in params.values():
            param.grad = torch.full_like(param, 1e-3)
        with torch.utils._python_dispatch._disable_current_modes(), Tracker() as tracker:
            optimizer = make_optimizer(params.values(), self.spec.train)
            optimizer.step()
        kept = {shape: num_bytes(list(optimizer.state[param].values())) for shape, param in params.items()}
        self._modelled_bytes = sum(kept[shape] * count for shape, count in counts.items())
        self.moving = max(0, tracker.peak - sum(kept.values()))


class _Endless:
    """The same batch for ever."""

    def __init__(self, batch: Batch, embeds: Embeds) -> None:
        self.batch, self.embeds = batch, embeds

    def from_number(self, _first: int) -> Iterator[TrainBatch]:
        while True:
            yield TrainBatch(self.batch, self.embeds)


class _Deaf(Reporter):
    """Nothing is told, and no number is read."""

    def __init__(self) -> None:
        super().__init__(Path(), STEPS)

    def step(self, told: Any) -> None:
        pass
