"""The prediction of a step's memory, against what torch's profiler sees the allocator do in a real run."""

import gc
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor

from models import budget, catalog, memory, quantize
from models.batch import Batch
from models.errors import UserError
from models.prompt_embeds import concat_prompt_embeds
from models.spec import TrainSpec
from tests.worker.allocated import most_bytes
from worker import gpus, tiny
from worker.data.batches import TrainBatch
from worker.load import Places, load_model
from worker.places import find_places
from worker.planning import plan, predict
from worker.planning.blank import Tracker, blank_module, blank_weights, new_mode, num_bytes
from worker.report import Reporter
from worker.training import loop as train
from worker.training.steps import TrainStep

TOLERANCE = 0.10  # what is promised; most are within 2 %
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "checkpointing": {"train.gradient_checkpointing": True},
    "batch": {"train.batch_size": 5},
    "accumulation": {"train.gradient_accumulation": 3},
    "ema": {"train.ema_config": {"use_ema": True}},
    "all weights": {"network": None},
    "adafactor": {"train.optimizer": "adafactor"},
    "prodigy": {"train.optimizer": "prodigy", "train.lr": 1.0},
    "sgd": {"train.optimizer": "sgd"},
    "qint8": {"model.quantize": True, "model.qtype": "qint8"},
    "qint4": {"model.quantize": True, "model.qtype": "qint4", "train.gradient_checkpointing": True},
    "offloading": {"model.layer_offloading": True, "train.gradient_checkpointing": True},
    "half": {"model.layer_offloading": True, "model.layer_offloading_transformer_percent": 0.5, "model.quantize": True},
}
SIZE = (32, 32)


@pytest.fixture
def job(pictures: Callable[..., Path], tiny_job: Callable[..., dict[str, Any]]) -> Callable[..., TrainSpec]:
    pictures()
    base = {"model.model_kwargs": {"channels": [32, 64]}, "network": {"linear": 8, "linear_alpha": 8.0}, "train.steps": 3}

    def make(**changes: Any) -> TrainSpec:
        made = catalog.parse_job(tiny_job(**{**base, **changes}))
        assert isinstance(made, TrainSpec)
        return made

    return make


class Silent(Reporter):
    def __init__(self) -> None:
        super().__init__(Path(), 3)

    def step(self, told: Any) -> None:
        gc.collect()  # torch's graphs have cycles; when Python breaks them is chance


def measured(spec: TrainSpec) -> int:
    """The most bytes that were allocated during three steps, counted from before the model was there."""
    count = spec.train.batch_size

    def act(begin: Callable[[], None]) -> None:
        model = load_model(spec, find_places(spec), "cpu")
        state = train.make_state(model, spec)
        with torch.no_grad():
            latents = model.encode_images(torch.rand(count, 3, *SIZE))
            embeds = concat_prompt_embeds([model.encode_prompt("colour")] * count)

        class Same:
            def from_number(self, _: int) -> Iterator[TrainBatch]:
                while True:
                    yield TrainBatch(Batch(latents, ["colour"] * count), embeds)

        memory.encoded(model, spec, previews=False)
        begin()
        for _ in train.steps(TrainStep(model, spec), spec, state, Same(), Silent()):  # type: ignore[arg-type]
            pass

    return most_bytes(act)


QUICK = ("qint8", "half")  # the others take minutes on two cores


@pytest.mark.parametrize("name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in OPTIONS])
def test_a_steps_peak_is_predicted(name: str, job: Callable[..., TrainSpec]) -> None:
    spec = job(**OPTIONS[name])
    found = predict.predict(spec, find_places(spec), predict.Data(SIZE, "colour"))
    assert found.phases["training"] == pytest.approx(measured(spec), rel=TOLERANCE)
    assert sum(found.parts.values()) == found.peak == max(found.phases.values())


def test_parts_are_what_they_are_called(job: Callable[..., TrainSpec]) -> None:
    spec = job(**{"train.ema_config": {"use_ema": True}, "sample.samples": []})
    found = predict.predict(spec, find_places(spec), predict.Data((256, 256), "colour", num_captions=10))
    model = load_model(spec, find_places(spec), "cpu")
    weights = sum(param.numel() for param in model.model.parameters()) * 4
    state = train.make_state(model, spec)
    trained = sum(param.numel() for param in state.params.values())
    assert found.phase == "training" and found.trained_parameters == trained
    scalars = len(state.params) * 4  # AdamW's step counters
    wanted = {"weights": weights, "adapters": 4 * trained, "gradients": 4 * trained, "optimizer": 8 * trained + scalars}
    assert {name: found.parts[name] for name in wanted} == wanted
    assert found.parts["ema"] == 4 * trained
    assert found.parts["caches"] == 10 * 384 * 4
    assert "sampling" not in found.phases


def test_on_a_gpu_what_waits_outside_does_not_count(job: Callable[..., TrainSpec]) -> None:
    spec = job(**{"model.low_vram": True})
    data = predict.Data(SIZE, "colour", num_captions=10)
    here, there = (predict.predict(spec, find_places(spec), data, device) for device in ("cpu", "cuda:0"))
    denoiser = here.parts["weights"] - there.parts["weights"]
    embeds = (10 + 2) * 384 * 4  # the captions', and those of a preview's prompt and negative prompt
    assert here.phases["caching"] - there.phases["caching"] == denoiser + embeds
    assert here.phases["training"] - there.phases["training"] == embeds


@pytest.mark.parametrize("several", [True, False], ids=["several", "one at most"])
@pytest.mark.parametrize("count", [0, 1, 2])
def test_a_prediction_has_the_control_pictures_that_the_data_has(count: int, several: bool) -> None:
    planned: Any = SimpleNamespace(
        batch=(32, 64, 1, 3),
        data=predict.Data((32, 64), "a", num_controls=count),
        spec=SimpleNamespace(model=SimpleNamespace(arch="flux2_klein_4b")),
        model=SimpleNamespace(has_multiple_control_images=several, use_raw_control_images=False),
        _pixels=lambda *_: torch.zeros(3, 64, 32),
    )
    batch = predict._Training._batch(planned, torch.zeros(3, 1))
    shown = predict._Training._control(planned, 64, 32)
    if several or count > 1:
        assert [len(images) for images in batch.control_tensor_list or []] == ([count] * 3 if count else [])
        assert batch.control_tensor is None
    else:
        assert (batch.control_tensor is not None) == bool(count)
    assert (len(shown) if several else int(shown is not None)) == (count if several else min(count, 1))


def test_blank_weights_are_never_read(tmp_path: Path) -> None:
    arch = "flux2_klein_4b"
    tiny.need_tiny(catalog.arch(arch))(tmp_path)
    for file in tmp_path.rglob(
        "*.safetensors"
    ):  # only the header is left; whoever reads further finds zeros, as a sparse file has
        size, header = file.stat().st_size, int.from_bytes(file.read_bytes()[:8], "little") + 8
        with file.open("r+b") as opened:
            opened.truncate(header)
            opened.truncate(size)
    files = list(tmp_path.iterdir())
    where = files[0] if len(files) == 1 and files[0].is_file() else tmp_path
    spec = catalog.parse_job(
        {"kind": "sample", "name": "a", "model": {"arch": arch, "name_or_path": str(where)}, "samples": [{"prompt": ""}]}
    )
    mode = new_mode()
    real_apply = nn.Module._apply
    with blank_weights(mode):
        model = load_model(spec, Places(where), "cpu")
    parts = [part for part in (model.model, model.vae, model.text_encoder) if isinstance(part, nn.Module)]
    blank = [isinstance(param.data, FakeTensor) for part in parts for param in part.parameters()]
    assert blank and all(blank)
    assert nn.Module._apply is real_apply


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("qtype", ["qint2", "qint4", "qint8", "qfloat8"])
def test_blank_weights_quantize_to_the_size_of_real_ones(qtype: str, dtype: torch.dtype) -> None:
    sizes = []
    for is_blank in (False, True):
        layers, mode = nn.Sequential(nn.Linear(256, 128)).to(dtype), new_mode()
        with blank_weights(mode):
            if is_blank:
                blank_module(layers, mode)
            quantize.quantize_layers(layers, {"0": qtype})
            assert layers(torch.zeros(3, 256, dtype=dtype)).shape == (3, 128)
        sizes.append(num_bytes(layers))
    assert sizes[0] == sizes[1]


def test_the_tracker_counts_what_lives() -> None:
    before = torch.zeros(1000)
    with Tracker() as tracker:
        first = before + 1
        view = before[10:]
        assert tracker.now == 4000
        second = first.reshape(10, 100) * 2
        del first
        assert tracker.now == 4000
        second += 1
        del second, view
    assert (tracker.now, tracker.peak) == (0, 8000)
    assert num_bytes([before, before[5:], nn.Linear(2, 3)]) == 4000 + 4 * 9


@pytest.mark.parametrize(
    ("total", "wanted"),
    [
        (100, []),
        (60, [({"train.gradient_checkpointing": True}, 60), ({"train.batch_size": 1}, 50)]),
        (50, [({"train.batch_size": 1}, 50)]),
        (15, [({"train.gradient_checkpointing": True, "train.batch_size": 1}, 10)]),
        (5, []),
    ],
)
def test_a_plan_that_does_not_fit_says_what_would(
    total: int, wanted: list[Any], job: Callable[..., TrainSpec], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def stub(spec: TrainSpec, *_: Any) -> predict.Prediction:
        asked.append(spec)
        peak = 100 - 40 * spec.train.gradient_checkpointing - 50 * (spec.train.batch_size == 1)
        return predict.Prediction(peak, "training", {}, {"caching": 1, "training": peak}, 1, {})

    monkeypatch.setattr(plan, "predict", stub)
    options = [option for option in budget.OPTIONS if option[0].startswith("train.") or option[0] == "model.quantize_te"]
    monkeypatch.setattr(budget, "OPTIONS", options)
    spec = job(**{"train.batch_size": 8, "train.gradient_checkpointing": False})
    made = plan.plan(spec, find_places(spec), "cpu", total)
    assert [(way["change"], way["peak"]) for way in made["fits_with"]] == wanted
    assert not any(each.model.quantize_te for each in asked)  # which saves nothing while training


def test_a_run_that_cannot_fit_ends_before_it_loads(
    job: Callable[..., TrainSpec], run_here: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny.need_tiny(catalog.arch("pocket"))(tmp_path / "tiny")
    (file,) = (tmp_path / "tiny").iterdir()
    spec = job(model={"arch": "pocket", "name_or_path": str(file), "dtype": "fp32"})
    monkeypatch.setattr(gpus, "memory", lambda _: (0, 2**20))
    monkeypatch.setattr(budget, "OPTIONS", budget.OPTIONS[:1])
    with pytest.raises(UserError, match=r"the job needs .* MiB of memory while caching .*; the device has 1.0 MiB") as caught:
        run_here(spec.model_dump(mode="json"))
    assert caught.value.code == "out_of_memory" and caught.value.hint == budget.NOTHING_HELPS
    monkeypatch.setattr(gpus, "memory", lambda _: (0, 2**40))
    monkeypatch.setattr(plan, "plan", lambda *_: pytest.fail("predicted although it is sure to fit"))
    run_here(spec.model_dump(mode="json"), folder="again")


def test_running_out_of_memory_ends_with_advice(
    job: Callable[..., TrainSpec], run_here: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    monkeypatch.setattr(TrainStep, "__call__", full)
    with pytest.raises(UserError, match=r"out of memory: CUDA out of memory\. Tried to allocate 2\.00 GiB\.") as caught:
        run_here(job().model_dump(mode="json"))
    assert "train.batch_size: 1" in str(caught.value.hint)
