"""The model that a job names: where its parts lie, how it is loaded, and the last one, kept for the next job."""

import importlib
import json
import logging
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from models import catalog, memory, quantized, weightfiles
from models.base import BaseModel
from models.data.datasets import Folders
from models.spec import JobSpec, TrainSpec
from server.store.files import stamp
from server.store.settings import settings
from worker.seeds import seed_for

log = logging.getLogger("safelight")


@dataclass(frozen=True)
class Places:
    """The paths that a job names, found and allowed. What is not a file (`random`, a hub's name) stays as it was. What a run that goes on
    may not need any more is found when it is called for, which raises UserError if it is not there. `controls` are by the path as given;
    of a training job's, those that are there."""

    model: Path | str
    text_encoder: Path | str | None = None
    vae: Path | str | None = None
    training_adapter: Path | str | None = None
    recovery_adapter: Path | str | None = None
    network_start: Callable[[], Path] | None = None
    datasets: list[Folders] = field(default_factory=list)
    adapters: list[Path] = field(default_factory=list)
    checkpoints: list[Callable[[], Path]] = field(default_factory=list)
    controls: dict[str, Path] = field(default_factory=dict)
    cache: Path | None = None


class Slot:
    """Keeps the last model loaded, for the next job on the same one. Parts that a job released are loaded again by the job that needs
    them (`memory.restore`). A model whose own weights were trained is not kept."""

    def __init__(self) -> None:
        self._key: str | None = None
        self._model: BaseModel | None = None
        self._recomputes = False  # gradient checkpointing was turned on, which cannot be undone

    def take(self, spec: JobSpec, places: Places, device: str, say: Callable[[str], None] = log.info) -> BaseModel:
        """The model for this job, loaded now or kept from before; `say` gets a line where one was kept."""
        seed = seed_for(spec.train.seed, "weights") if isinstance(spec, TrainSpec) else 0
        files = [
            stamp(place)
            for place in (places.model, places.text_encoder, places.vae, places.training_adapter, places.recovery_adapter)
        ]
        code = catalog.extensions()[spec.model.arch].digest if spec.model.arch in catalog.extensions() else None
        key = json.dumps([spec.model.model_dump(mode="json"), code, files, device, seed if places.model == "random" else None])
        recompute = isinstance(spec, TrainSpec) and spec.train.gradient_checkpointing
        unfit = self._recomputes and isinstance(spec, TrainSpec) and not recompute
        model, self._model = self._model, None
        if model is not None and (self._key != key or unfit):
            same = self._key == key
            why = "gradient checkpointing cannot be turned off again" if same else "it is another, or its files have changed"
            say(f"the model is loaded anew, since the one from the job before cannot be used: {why}")
            model = None
            memory.give_back()  # before the other one is loaded: both together may not fit
        elif model is not None:
            say("the model is still loaded from the job before")
        if model is None:
            torch.manual_seed(seed)
            model = load_model(spec, places, device)
            self._recomputes = False
        else:
            choose_attention(model, spec)
        self._recomputes = self._recomputes or recompute
        if trains_all_weights(spec):
            say("the model is not kept for the next job: its own weights are trained")
        else:
            self._key, self._model = key, model
        return model

    def clear(self) -> None:
        self._key = self._model = None


def trains_all_weights(spec: JobSpec) -> bool:
    return isinstance(spec, TrainSpec) and spec.network is None


def check_bases(spec: JobSpec, places: Places) -> None:
    """Raises UserError (`bad_weights`) saying what a file is that is not what a load would read there."""
    parts = weightfiles.parts_by_key(spec.model.te_name_or_path, spec.model.vae_path)
    starts_from = catalog.arch(spec.model.arch).starts_from
    for key, place in {"name_or_path": places.model, "te_name_or_path": places.text_encoder, "vae_path": places.vae}.items():
        if isinstance(place, Path):
            weightfiles.check_base(place, starts_from if key == "name_or_path" else weightfiles.ANY, parts[key])


def load_model(spec: JobSpec, places: Places, device: str, inside: AbstractContextManager[Any] | None = None) -> BaseModel:
    """The arch's model, built from the class that its card names. Its own code builds it `inside` a context. Raises UserError for files
    that are no weights, before any of that code sees them."""
    check_bases(spec, places)
    module, _, name = catalog.arch(spec.model.arch).code.partition(":")
    cls: type[BaseModel] = getattr(importlib.import_module(module), name)
    found = {
        "name_or_path": places.model,
        "te_name_or_path": places.text_encoder,
        "vae_path": places.vae,
        "assistant_lora_path": places.training_adapter,
        "accuracy_recovery_adapter": places.recovery_adapter,
    }
    config = spec.model.model_copy(update={key: place and str(place) for key, place in found.items()})
    model = cls(device, cls.configure(config), dtype=spec.model.dtype, noise_scheduler=cls.get_train_scheduler())
    model.cache_folder = places.cache
    extension = catalog.extensions().get(spec.model.arch)
    model.source = quantized.source_of(config.model_dump(mode="json"), extension.digest if extension else "")
    with inside or nullcontext():
        model.load_model()
    memory.settle(model, parked=memory.is_low(model) and not trains_all_weights(spec))
    if places.cache is not None:
        quantized.prune(places.cache / quantized.FOLDER, settings().quantized_cache_gb * 1e9)
    choose_attention(model, spec)
    return model


def choose_attention(model: BaseModel, spec: JobSpec) -> None:
    """Set the job's attention kernel, native too: part of the choice is the process's, not the model's (`attention.kept_to_this_job`)."""
    model.set_attention_backend(getattr(spec.model.model_kwargs, "attention_backend", None) or spec.model.attention_backend)
