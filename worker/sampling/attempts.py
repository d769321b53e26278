"""Making the pictures of a round: a picture that fails does not end the job, and too little memory means fewer at once."""

import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from torch import nn

from models import memory
from models.adapters.attach import AdapterNetwork
from models.base import BaseModel, Embeds
from models.batch import GenerateImageConfig, Made
from models.errors import DISK_FULL, UserError
from models.groups import groups, offers_batches, own_generators
from worker.report import PreviewTold, Reporter

MOST_LETTERS = 300  # of an error's text in a message

T = TypeVar("T")

log = logging.getLogger(__name__)


@dataclass
class Round:
    """Pictures to make, with the (conditional, unconditional) embeds of each.

    `batch_size` is how many are made at once at most; it falls for good when memory runs out. `names` are control files as the job
    names them, `about` what all records share, `networks` the adapters that act, each with its weight. `prompts` says which of the job's
    prompts they are, where some are left out.
    """

    configs: list[GenerateImageConfig]
    embeds: list[tuple[Embeds, Embeds]]
    batch_size: int = 1
    names: Mapping[Path, str] = field(default_factory=dict)
    about: dict[str, Any] = field(default_factory=dict)
    networks: list[tuple[AdapterNetwork, float]] = field(default_factory=list)
    prompts: Sequence[int] = ()

    def prompt(self, place: int) -> int:
        return self.prompts[place] if self.prompts else place

    def __len__(self) -> int:
        return len(self.configs)


@dataclass(frozen=True)
class Fault:
    """Why something could not be done. The exception is not kept: it would hold the memory that the next try needs."""

    text: str
    out_of_memory: bool = False
    disk_full: bool = False


def make(
    model: BaseModel,
    wanted: Round,
    places: Sequence[int],
    reporter: Reporter,
    *,
    write: Callable[[int, Made], PreviewTold],
    tell: Callable[[int, PreviewTold], None],
    name: Callable[[int], str],
) -> dict[int, str]:
    """Make the pictures at `places`, neighbours together where they can be; the answer is why others could not be made.

    `write` may fail; `tell` may not: what it raises ends the job. `name` says in a message which picture it is. What fails together is
    made again one by one, or half as many at once if memory ran out; what fails alone gets one more try, unless the disk is full.
    Raises Stop between two passes, when all that is made has been told.
    """
    failed: dict[int, str] = {}
    alone: set[int] = set()  # these have failed once
    todo = list(places)
    with evaluating(model), _vae_back_to_rest(model):
        pipeline = attempt(lambda: _pipeline(model))
        while todo:
            reporter.check()
            at_most = wanted.batch_size if offers_batches(model) and todo[0] not in alone else 1
            group = todo[: len(next(groups([wanted.configs[place] for place in todo], at_most)))]
            made = pipeline if isinstance(pipeline, Fault) else attempt(lambda: _made(model, pipeline, wanted, group))  # noqa: B023
            if not isinstance(made, Fault):
                del todo[: len(group)]
                again = []
                for place, one in zip(group, made, strict=True):
                    told = attempt(lambda: write(place, one))  # noqa: B023
                    if not isinstance(told, Fault):
                        tell(place, told)
                    elif place in alone or told.disk_full:
                        failed[place] = _give_up(reporter, name(place), told)
                    else:
                        again.append(place)
                alone.update(again)
                todo = again + todo
                continue
            memory.give_back()
            if made.out_of_memory and len(group) > 1:
                wanted.batch_size = len(group) // 2
                reporter.log(
                    f"memory does not suffice for {len(group)} pictures at once ({made.text}); now {wanted.batch_size}", "WARNING"
                )
            elif group[0] in alone or isinstance(pipeline, Fault):
                failed[group[0]] = _give_up(reporter, name(group[0]), made)
                del todo[0]
            else:
                log.warning("%s failed, and gets one more try: %s", name(group[0]), made.text)
                alone.update(group)
    return failed


def attempt(act: Callable[[], T]) -> T | Fault:
    """What `act` gives, or why it fails. Stop and its like are no failures and pass; so does the error of a device that this process cannot
    use any more, since what follows would fail as well."""
    try:
        return act()
    except Exception as error:
        if memory.is_device_lost(error):
            raise
        log.warning("while making a picture", exc_info=True)
        lines = str(error).strip().splitlines()
        said = lines[0][:MOST_LETTERS] if lines else ""
        text = said if isinstance(error, UserError) else f"{type(error).__name__}: {said}" if said else type(error).__name__
        return Fault(text, memory.is_out_of_memory(error), isinstance(error, OSError) and error.errno in DISK_FULL)


@contextlib.contextmanager
def evaluating(model: BaseModel) -> Iterator[None]:
    """Inside, denoiser and adapter are in evaluation mode; afterwards each of their modules in the mode that it was in."""
    roots = [part for part in (model.model, model.get_model_to_train(), model.network) if isinstance(part, nn.Module)]
    modes = {module: module.training for root in roots for module in root.modules()}
    try:
        for root in roots:
            root.eval()
        yield
    finally:
        for module, mode in modes.items():
            module.training = mode


def _pipeline(model: BaseModel) -> Any:
    with own_generators(model.device_torch):
        return model.get_generation_pipeline()


def _made(model: BaseModel, pipeline: Any, wanted: Round, group: Sequence[int]) -> list[Made]:
    configs = [wanted.configs[place] for place in group]
    embeds = {id(wanted.configs[place]): wanted.embeds[place] for place in group}
    try:
        for network, weight in wanted.networks:
            network.multiplier = weight * configs[0].network_multiplier
        return model.generate_group(pipeline, configs, lambda config: embeds[id(config)])
    finally:
        for network, weight in wanted.networks:
            network.multiplier = weight


def _give_up(reporter: Reporter, name: str, fault: Fault) -> str:
    reporter.log(f"{name} could not be made: {fault.text.rstrip('.')}. The job goes on without it.", "ERROR")
    return fault.text


@contextlib.contextmanager
def _vae_back_to_rest(model: BaseModel) -> Iterator[None]:
    """A VAE that was away from the device when the round began leaves it again at the end."""
    first = next(model.vae.parameters(), None) if isinstance(model.vae, nn.Module) else None
    away = first is not None and first.device != model.device_torch
    try:
        yield
    finally:
        if away:
            memory.rest_vae(model)
