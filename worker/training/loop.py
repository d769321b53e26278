"""The training loop and what stands around it: trainable weights, caches, saves, previews. Outward it knows only a Reporter."""

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import torch
from torch.nn.utils import clip_grad_norm_

from models import memory
from models.adapters.files import network_for
from models.base import BaseModel
from models.bundles import newest
from models.data.datasets import Survey
from models.precise import NotFinite, not_finite
from models.spec import TrainSpec
from worker.data import encoders
from worker.data.batches import Batches, TrainBatch
from worker.report import Asked, NonFiniteUntrained, Reporter, StepTold, Stop
from worker.sampling import preview
from worker.seeds import seed_for
from worker.training import validation
from worker.training.ema import Ema
from worker.training.optim import make_optimizer, rate_of, set_rate
from worker.training.saves import Saver
from worker.training.schedule import lr_at
from worker.training.state import TrainState
from worker.training.steps import Gathered, TrainStep


def train(
    model: BaseModel,
    spec: TrainSpec,
    surveys: list[Survey],
    controls: Mapping[str, Path],
    reporter: Reporter,
    network_start: Callable[[], Path] | None = None,
) -> None:
    """Train to `spec.train.steps`, going on from the newest whole bundle that the reporter knows; the adapter of a run without one
    starts from the file that `network_start` finds, if there is one; a run that goes on does not need it any more. Raises Stop (after
    saving) when asked to, NonFiniteLoss, UserError."""
    begins = network_start is not None and newest(reporter.bundles()) is None
    state = make_state(model, spec, network_start() if network_start and begins else None)
    if model.network is not None and model.network.applied is not None:
        reporter.log(f"the adapter starts from a file: {model.network.applied}")
    train_step = TrainStep(model, spec)
    saver = Saver(model, spec, state, reporter)
    saver.go_on()

    def show(skip: set[int]) -> None:
        """A round of previews. A checkpoint that is asked for meanwhile is saved between two pictures; before the first step, after
        that."""
        while True:
            try:
                with contextlib.ExitStack() as around:
                    if state.ema:
                        around.enter_context(state.ema.applied())
                    if state.step:
                        around.enter_context(reporter.heeding("checkpoint"))
                    preview.render(model, previews, reporter, step=state.step, skip=skip)
                break
            except Asked:
                saver.keep()
                skip = reporter.previews_at(state.step)
        reporter.answered("sample")
        reporter.phase("training")

    def validate() -> None:
        if spec.validation and validation.is_due(state.step, spec):
            reporter.flush()
            validation.Validation(train_step, data.held_out, state.ema, reporter).run(spec.validation, state.step)

    try:
        data = saver.data = Batches(model, spec, surveys)
        memory.encoding(model)
        data.cache(reporter)
        previews = preview.prepare(model, spec, controls, reporter, data.texts)
        if previews:
            encoders.need(model, "vae", reporter)
        memory.encoded(model, spec, previews=bool(previews))
        if preview.is_due(state.step, spec):
            show(reporter.previews_at(state.step))
        reporter.phase("training")
        validate()
        for _ in steps(train_step, spec, state, data, reporter):
            if state.step % spec.save.save_every == 0 or state.step == spec.train.steps or reporter.asked("checkpoint"):
                saver.keep()
            elif saver.recovery_is_due():
                saver.save(kept=False)
            validate()
            if preview.is_due(state.step, spec) or reporter.asked("sample"):
                reporter.flush()
                show(set())
        if saver.kept_step != state.step:  # no step was left, and what there is was saved without weights for users
            saver.keep()
    except Stop as stop:
        saver.leave(stop.wish)
        raise


def steps(train_step: TrainStep, spec: TrainSpec, state: TrainState, data: Batches, reporter: Reporter) -> Iterator[None]:
    """The loop: yields after every optimizer step, `state.step` being the number done; what is done until it is resumed is no step's time.
    With `on_non_finite: skip` a step whose loss or gradient is not finite leaves weights, optimizer and averages as they are; what
    depends on the step's number goes on."""
    params = list(state.params.values())
    accumulation = spec.train.gradient_accumulation
    batches = data.from_number(state.step * accumulation)
    skips, in_a_row = spec.train.on_non_finite == "skip", 0
    reporter.aside(began=0.0)
    while state.step < spec.train.steps:
        lr = lr_at(state.step, spec.train)
        set_rate(state.optimizer, lr)
        gathered = Gathered(spec)
        for _ in range(accumulation):
            reporter.check()  # what is gathered of this step is lost: a run goes on from whole steps
            taken = next(batches)
            with naming(taken):
                losses = train_step(taken)
                if state.step == 0 and not skips and not_finite(losses["loss"]):
                    raise NonFiniteUntrained(losses["loss"].item(), train_step.first_fault(taken))
                gathered.add(losses, len(taken.batch.latents))
        losses = gathered.mean(params)
        loss, grad_norm = losses.pop("loss"), clip_grad_norm_(params, spec.train.max_grad_norm)
        skipped = skips and not bool(loss.isfinite() & grad_norm.isfinite().to(loss.device))
        in_a_row = in_a_row + 1 if skipped else 0
        if not skipped:
            state.optimizer.step()
            if state.ema:
                state.ema.update()
        state.optimizer.zero_grad(set_to_none=True)
        state.step += 1
        reporter.step(StepTold(state.step, loss, grad_norm, rate_of(state.optimizer, lr), losses, in_a_row))
        began = time.monotonic()
        yield
        reporter.aside(began)


@contextlib.contextmanager
def naming(taken: TrainBatch) -> Iterator[None]:
    """Inside, what cannot be encoded in a step (a control picture) is said with the files of its batch."""
    try:
        yield
    except NotFinite as error:
        files = ", ".join(item.path for item in taken.batch.file_items)
        raise NotFinite(f"{error.message}; it belongs to {files}") from None


def make_state(model: BaseModel, spec: TrainSpec, network_start: Path | None = None) -> TrainState:
    """Freeze what is not trained; attach the adapter, or open all weights for a full fine-tune. Raises UserError for an adapter that
    could not be saved: on layers that have no public name."""
    root = model.get_model_to_train()
    root.requires_grad_(spec.network is None).train()
    torch.manual_seed(seed_for(spec.train.seed, "adapter"))
    if spec.network is not None:
        model.network = network_for(model, spec.network, spec.train.as_in_ai_toolkit, network_start)
        model.convert_lora_weights_before_save(model.network.public_state())
    trained = root if model.network is None else model.network
    if spec.train.gradient_checkpointing:
        model.enable_gradient_checkpointing()
    params = {name: param for name, param in trained.named_parameters() if param.requires_grad}
    ema = Ema(params, spec.train.ema_config.ema_decay) if spec.train.ema_config.use_ema else None
    return TrainState(params, make_optimizer(params.values(), spec.train), ema)
