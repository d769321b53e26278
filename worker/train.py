"""The training loop and what stands around it: trainable weights, caches, saves, previews. Outward it knows only a Reporter."""

import contextlib
import re
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from torch.nn.utils import clip_grad_norm_

from models.adapters.lora import new_network
from models.base import BaseModel
from models.datasets import Survey
from models.spec import TrainSpec
from models.weights import DTYPES, json_metadata, save_tensors
from worker import checkpoint, preview
from worker.checkpoint import TrainState
from worker.data.batches import Batches
from worker.ema import Ema
from worker.optim import lr_at, make_optimizer
from worker.report import Reporter, StepTold, Stop
from worker.seeds import seed_for
from worker.steps import train_step

MAX_SAVING_SHARE = 0.02  # of the time; recovery bundles come less often where they would cost more


def train(model: BaseModel, spec: TrainSpec, surveys: list[Survey], controls: Mapping[str, Path], reporter: Reporter) -> None:
    """Train to `spec.train.steps`, going on from the newest whole bundle that the reporter knows. Raises Stop (after saving)
    when asked to, NonFiniteLoss, UserError."""
    state = make_state(model, spec)
    if bundle := checkpoint.newest(reporter.bundles()):
        checkpoint.load(bundle, state)
        reporter.log(f"goes on from step {state.step} ({bundle.name})")
    data = Batches(model, spec, surveys)
    data.cache(reporter)
    configs = preview.configs(spec.sample, spec.sample.samples, controls) if not spec.train.disable_sampling else []
    previews = preview.encode(model, configs, reporter)
    saver = Saver(model, spec, state, reporter)

    def show(skip: set[int]) -> None:
        with state.ema.applied() if state.ema else contextlib.nullcontext():
            preview.render(model, previews, reporter, step=state.step, skip=skip)
        reporter.phase("training")

    try:
        if preview_is_due(state.step, spec) and not (state.step == 0 and spec.train.skip_first_sample):
            show(reporter.previews_at(state.step))
        reporter.phase("training")
        for _ in steps(model, spec, state, data, reporter):
            if state.step % spec.save.save_every == 0 or state.step == spec.train.steps:
                saver.save(kept=True)
            elif saver.recovery_is_due():
                saver.save(kept=False)
            if preview_is_due(state.step, spec):
                reporter.flush()
                show(set())
    except Stop as stop:
        if stop.wish != "lost" and state.step > saver.saved_step:
            saver.save(kept=stop.wish == "cancel")
        raise


def preview_is_due(step: int, spec: TrainSpec) -> bool:
    """Also asked by a run that goes on from `step`, which may have been cut off amid its previews."""
    return step % spec.sample.sample_every == 0 or step == spec.train.steps


def steps(model: BaseModel, spec: TrainSpec, state: TrainState, data: Batches, reporter: Reporter) -> Iterator[None]:
    """The loop: yields after every optimizer step, `state.step` being the number done."""
    params = list(state.params.values())
    accumulation = spec.train.gradient_accumulation
    batches = data.from_number(state.step * accumulation)
    while state.step < spec.train.steps:
        reporter.check()
        began = time.monotonic()
        lr = lr_at(state.step, spec.train)
        for group in state.optimizer.param_groups:
            group["lr"] = lr
        total = torch.zeros((), device=model.device_torch)
        for micro in range(accumulation):
            batch, embeds = next(batches)
            loss = train_step(model, spec, batch, embeds, state.step, micro * spec.train.batch_size) / accumulation
            loss.backward()
            total += loss.detach()
        grad_norm = clip_grad_norm_(params, spec.train.max_grad_norm)
        state.optimizer.step()
        state.optimizer.zero_grad(set_to_none=True)
        if state.ema:
            state.ema.update()
        state.step += 1
        reporter.step(StepTold(state.step, total, grad_norm, lr, time.monotonic() - began))
        yield


def make_state(model: BaseModel, spec: TrainSpec) -> TrainState:
    """Freeze what is not trained; attach the adapter, or open all weights for a full fine-tune."""
    root = model.get_model_to_train()
    root.requires_grad_(spec.network is None).train()
    torch.manual_seed(seed_for(spec.train.seed, "adapter"))
    if spec.network is not None:
        network = spec.network
        only = network.only_if_contains or model.get_transformer_block_names() or []
        model.network = new_network(
            root, network.linear, network.linear_alpha, only, network.ignore_if_contains, model.target_lora_modules
        )
    trained = root if model.network is None else model.network
    if spec.train.gradient_checkpointing:
        model.enable_gradient_checkpointing()
    params = {name: param for name, param in trained.named_parameters() if param.requires_grad}
    ema = Ema(params, spec.train.ema_config.ema_decay) if spec.train.ema_config.use_ema else None
    return TrainState(params, make_optimizer(params.values(), spec.train), ema)


class Saver:
    """Writes bundles, tells of them, and removes those that are not needed any more."""

    def __init__(self, model: BaseModel, spec: TrainSpec, state: TrainState, reporter: Reporter) -> None:
        self.model, self.spec, self.state, self.reporter = model, spec, state, reporter
        self.saved_step = state.step
        self._saved_at = time.monotonic()
        self._seconds = 0.0

    def recovery_is_due(self) -> bool:
        wanted = max(self.spec.save.recover_every_seconds, self._seconds / MAX_SAVING_SHARE)
        return time.monotonic() - self._saved_at >= wanted

    def save(self, *, kept: bool) -> None:
        self.reporter.flush()  # raises NonFiniteLoss before bad weights are written
        self.reporter.phase("saving")
        began = time.monotonic()
        write = self._write_weights if kept else None
        folder = self.reporter.workdir / "bundles"
        bundle, weights = checkpoint.save(folder, self.state, kept=kept, write_weights=write, name=file_stem(self.spec.name))
        self.reporter.saved(bundle, self.state.step, weights)
        gone = checkpoint.obsolete(self.reporter.bundles(), self.spec.save.max_step_saves_to_keep)
        self.reporter.forget(gone)
        checkpoint.remove(gone)
        self.saved_step, self._saved_at = self.state.step, time.monotonic()
        self._seconds = self._saved_at - began
        self.reporter.phase("training")

    def _write_weights(self, path: Path) -> None:
        dtype = DTYPES[self.spec.save.dtype]
        job = self.spec.model_dump(mode="json")
        version = self.model.get_base_model_version()
        meta = json_metadata(
            format="pt",
            step=self.state.step,
            software="safelight",
            arch=self.spec.model.arch,
            ss_base_model_version=version,
            job=job,
        )
        with self.state.ema.applied() if self.state.ema else contextlib.nullcontext():
            if self.model.network is None:
                self.model.save_model(path, meta, dtype)
            else:
                tensors = self.model.convert_lora_weights_before_save(self.model.network.public_state())
                save_tensors({name: tensor.to(dtype) for name, tensor in tensors.items()}, path, meta)


def file_stem(name: str) -> str:
    """A job's name as the start of a file name: letters, digits, dots and dashes."""
    return re.sub(r"[^\w.-]+", "-", name).strip("-.") or "job"
