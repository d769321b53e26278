"""Sampling jobs: a model, adapters on it, pictures out. A picture is a step, so an interrupted job goes on where it was."""

from collections.abc import Mapping
from pathlib import Path

from models.adapters.lora import LoraNetwork, network_from_state
from models.base import BaseModel
from models.spec import SampleSpec
from models.weights import load_tensors
from worker import preview
from worker.report import Reporter


def sample(
    model: BaseModel, spec: SampleSpec, adapters: list[Path], controls: Mapping[str, Path], reporter: Reporter
) -> list[LoraNetwork]:
    """Make the pictures that are not made yet; the answer is the adapters put on the model. Raises UserError for an adapter that
    does not fit."""
    networks = []
    for path, reference in zip(adapters, spec.adapters, strict=True):
        state = model.convert_lora_weights_before_load(load_tensors(path))
        network = network_from_state(model.get_model_to_train(), state)
        network.multiplier = reference.weight
        networks.append(network)
    wanted = preview.encode(model, preview.configs(spec.sample, spec.samples, controls), reporter)
    preview.render(model, wanted, reporter, step=0, skip=set(range(reporter.done())), counts=True)
    return networks
