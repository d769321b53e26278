"""The prediction of a sampling job's memory, against what torch's profiler sees the allocator do in a real run."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import AutoencoderKLFlux2
from PIL import Image
from safetensors.torch import load_file

from models import budget, catalog, memory
from models.adapters import files
from models.archs.pocket.model import PocketModel
from models.batch import GenerateImageConfig
from models.errors import UserError
from models.spec import JobSpec, NetworkSpec, SampleSpec
from models.weights import save_tensors
from tests.worker.allocated import most_bytes
from worker import gpus, tiny
from worker.load import load_model
from worker.places import find_places
from worker.planning import before_run, making, plan, predict
from worker.planning.blank import Tracker, new_mode
from worker.report import Reporter
from worker.sampling.sample import sample

TOLERANCE = 0.10  # what is promised; most are within 2 %
POCKET, KLEIN = "pocket", "flux2_klein_4b"
ADAPTERS = [{"path": "one.safetensors", "weight": 0.5}, {"path": "two.safetensors"}]
SIDE = 128
FOUR = [{"prompt": f"colour {number}"} for number in range(4)]
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "adapters": {"adapters": ADAPTERS},
    "matrix": {"matrix": {"checkpoints": ["one.safetensors", "two.safetensors"], "weights": [0.5, 1.0]}},
    "no guidance": {"sample.guidance_scale": 1.0},
    "batch": {"samples": FOUR, "sample.batch_size": 3},
    "one that is larger": {"samples": [*FOUR, {"prompt": "large", "width": 192, "height": 256}], "sample.batch_size": 2},
    "heun": {"sample.sampler": "heun"},
    "qint8": {"model.quantize": True, "model.qtype": "qint8", "model.quantize_te": True, "model.qtype_te": "qint8"},
    "qint4": {"model.quantize": True, "model.qtype": "qint4", "adapters": ADAPTERS},
    "offloading": {"model.layer_offloading": True},
    "half": {
        "model.layer_offloading": True,
        "model.layer_offloading_transformer_percent": 0.5,
        "model.quantize": True,
    },
    "low_vram": {"model.low_vram": True},
    "random": {"model.name_or_path": "random"},
    "references": {"samples": [*FOUR, {"prompt": "edited", "ctrl_img": "picture.png", "ctrl_img_1": "picture.png"}]},
}


@pytest.fixture
def job(home: Path) -> Callable[..., SampleSpec]:
    """`job(arch, **changes)`: two guided pictures, one after the other, from a tiny checkpoint with two adapters beside it."""

    def make(arch: str = POCKET, **changes: Any) -> SampleSpec:
        folder = home / "models"
        tiny.need_tiny(catalog.arch(arch))(folder / arch)
        where = f"{arch}/pocket.safetensors" if arch == POCKET else arch
        told: dict[str, Any] = {
            "kind": "sample",
            "name": "a",
            "model": {"arch": arch, "name_or_path": where, "dtype": "fp32"},
            "sample": {"width": SIDE, "height": SIDE, "sample_steps": 2, "guidance_scale": 3.0, "batch_size": 1},
            "samples": FOUR[:2],
        }
        if arch == KLEIN:
            told["model"]["model_kwargs"] = {"max_text_length": 64}
            wide = AutoencoderKLFlux2(
                latent_channels=4, block_out_channels=(32,) * 4, layers_per_block=1, norm_num_groups=4, sample_size=64
            )
            wide.save_pretrained(folder / arch / "vae")  # kernels pad the tiny one's 8 channels to 16
        (home / "datasets").mkdir(exist_ok=True)
        Image.new("RGB", (192, 160)).save(home / "datasets" / "picture.png")
        adapters_for(catalog.parse_job(told), folder)
        for key, value in changes.items():
            section, _, name = key.rpartition(".")
            (told[section] if section else told)[name] = value
        spec = catalog.parse_job(told)
        assert isinstance(spec, SampleSpec)
        return spec

    return make


def adapters_for(spec: JobSpec, folder: Path) -> None:
    model = load_model(spec, find_places(spec), "cpu")
    for name, rank in (("one", 4), ("two", 16)):
        network = files.network_for(model, NetworkSpec(linear=rank, linear_alpha=float(rank)))
        for _, layer in network.pairs:
            torch.nn.init.normal_(layer.lora_B)  # type: ignore[arg-type]
        save_tensors(model.convert_lora_weights_before_save(network.public_state()), folder / f"{name}.safetensors")
        network.detach()


def measured(spec: SampleSpec, folder: Path) -> int:
    """The most bytes that were allocated from when the model was loaded to the last picture."""
    places = find_places(spec)

    def act(begin: Callable[[], None]) -> None:
        model = load_model(spec, places, "cpu")
        begin()
        sample(model, spec, places.adapters, places.checkpoints, places.controls, Reporter(folder, 1))

    settle = memory.settle

    def with_weights_of_its_own(model: Any, **how: Any) -> None:
        """On a CPU loaded weights are pages of their file, which are mapped, and counted, as a whole until the last of them goes."""
        for part in (model.model, model.vae, model.text_encoder):
            if isinstance(part, torch.nn.Module):
                part._apply(torch.clone)
        settle(model, **how)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(memory, "settle", with_weights_of_its_own)
        return most_bytes(act)


NOT_OF = {POCKET: ["references"], KLEIN: ["random", "heun"]}
CASES = [(arch, name) for arch in (POCKET, KLEIN) for name in OPTIONS if name not in NOT_OF[arch]]
QUICK = {(KLEIN, "adapters"), (KLEIN, "one that is larger"), (POCKET, "qint8"), (POCKET, "random")}  # the others take minutes


@pytest.mark.parametrize(
    ("arch", "name"), [case if case in QUICK else pytest.param(*case, marks=pytest.mark.slow) for case in CASES]
)
def test_a_sampling_jobs_peak_is_predicted(arch: str, name: str, job: Callable[..., SampleSpec], tmp_path: Path) -> None:
    spec = job(arch, **OPTIONS[name])
    found = predict.predict(spec, find_places(spec))
    assert found.peak == pytest.approx(measured(spec, tmp_path), rel=TOLERANCE)
    assert sum(found.parts.values()) == found.peak == max(found.phases.values()) and found.notes == []


def test_parts_are_what_they_are_called(job: Callable[..., SampleSpec], home: Path) -> None:
    """On a GPU the embeds wait outside, and with low_vram whatever is not at work. A checkpoint that is gone costs its cells only."""
    matrix = {"checkpoints": ["one.safetensors", "gone.safetensors", "two.safetensors"]}
    spec = job(**{"adapters": ADAPTERS[:1], "matrix": matrix, "model.low_vram": True})
    here, there = (predict.predict(spec, find_places(spec), device=device) for device in ("cpu", "cuda:0"))
    model = load_model(spec, find_places(spec), "cpu")
    denoiser, encoder = (4 * sum(param.numel() for param in part.parameters()) for part in (model.model, model.text_encoder))
    tensors = [load_file(home / "models" / f"{name}.safetensors").values() for name in ("one", "two")]
    held = 3 * 384 * 4  # two prompts and the empty one
    assert here.phase == "sampling" and set(here.parts) == {"weights", "adapters", "activations", "caches"}
    assert here.parts["weights"] == pytest.approx(denoiser + encoder, rel=1e-3)  # and a few buffers
    assert here.parts["adapters"] == sum(4 * tensor.numel() for part in tensors for tensor in part)
    assert (here.parts["caches"], here.trained_parameters, here.disk) == (held, 0, {})
    assert here.phases["encoding"] - there.phases["encoding"] == pytest.approx(denoiser + held, rel=1e-3)
    assert here.phases["sampling"] - there.phases["sampling"] == pytest.approx(encoder + held, rel=1e-3)
    assert [note.endswith("gone.safetensors is missing") for note in here.notes] == [True]
    save_tensors({"other": torch.zeros(1_000_000)}, home / "models" / "gone.safetensors")
    with pytest.raises(UserError, match=r"gone\.safetensors holds 'other', which is no adapter"):
        predict.predict(spec, find_places(spec))


def test_a_mask_with_numbers_picks_from_a_blank_tensor() -> None:
    mask = torch.tensor([[True, False, True], [False, False, True]])
    with new_mode():
        features = torch.empty(2, 3, 8)
    with Tracker() as tracker:
        assert features[mask].shape == (3, 8) and features[:, mask[0]].shape == (2, 2, 8)
    assert tracker.peak >= 3 * 8 * 4


def test_what_takes_most_is_made() -> None:
    def config(side: int, scale: float = 3.0, **more: Any) -> GenerateImageConfig:
        return GenerateImageConfig("a", width=side, height=side, guidance_scale=scale, **more)

    small, large, clip = config(64), config(128), config(64, num_frames=9)
    unguided, edited = config(256, 1.0), config(32, ctrl_img=Path("a.png"))
    assert making.heaviest([small, large], 4) == [[large]]
    assert making.heaviest([small] * 5 + [large], 4) == [[large]]
    assert making.heaviest([small] * 5 + [large], 5) == [[small] * 5, [large]]
    assert making.heaviest([small, clip, edited], 1) == [[clip], [edited]]
    assert making.heaviest([unguided, large, small], 4) == [[unguided], [large]]


def test_pictures_that_need_numbers_are_a_note(job: Callable[..., SampleSpec], monkeypatch: pytest.MonkeyPatch) -> None:
    def looks(self: Any, latents: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        return latents * float(latents.mean())

    monkeypatch.setattr("models.archs.pocket.model.PocketModel.decode_latents", looks)
    spec = job()
    found = predict.predict(spec, find_places(spec))
    assert found.notes == [
        "the making of pictures could not be predicted whole: DataDependentOutputException: aten._local_scalar_dense.default"
    ]
    assert found.parts["activations"] > 128 * 128 * 3 * 4  # until there


@pytest.mark.parametrize(
    ("total", "wanted"),
    [
        (100, []),
        (60, [({"model.low_vram": True}, 60), ({"sample.batch_size": 4}, 50)]),
        (30, [({"sample.batch_size": 2}, 30)]),
        (10, [({"model.low_vram": True, "sample.batch_size": 1}, 8)]),
        (5, []),
    ],
)
def test_a_plan_that_does_not_fit_says_what_would(
    total: int, wanted: list[Any], job: Callable[..., SampleSpec], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "predict", pictures_of_ten)
    monkeypatch.setattr(budget, "OPTIONS", [each for each in budget.OPTIONS if each[0] in ("model.low_vram", budget.AT_ONCE)])
    spec = job(**{"samples": FOUR * 3, "sample.batch_size": 9})
    made = plan.plan(spec, find_places(spec), "cpu", total)
    assert [(way["change"], way["peak"]) for way in made["fits_with"]] == wanted


def pictures_of_ten(spec: SampleSpec, *_: Any) -> predict.Prediction:
    peak = 10 + 10 * spec.sample.batch_size - 40 * spec.model.low_vram
    peak = max(peak, 8)
    return predict.Prediction(peak, "sampling", {}, {"encoding": 1, "sampling": peak}, 0, {})


def test_a_run_makes_as_many_at_once_as_fit(
    job: Callable[..., SampleSpec], run_here: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    asked: list[int] = []
    offered = PocketModel.generate_batch

    def generate(self: Any, pipeline: Any, configs: Any, *rest: Any) -> Any:
        asked.append(len(configs))
        return offered(self, pipeline, configs, *rest)

    monkeypatch.setattr(PocketModel, "generate_batch", generate)
    monkeypatch.setattr(plan, "predict", pictures_of_ten)
    monkeypatch.setattr(budget, "OPTIONS", [each for each in budget.OPTIONS if each[0] == budget.AT_ONCE])
    monkeypatch.setattr(gpus, "memory", lambda _: (0, 30))
    spec = job(**{"samples": FOUR, "sample.batch_size": 4, "sample.width": 16, "sample.height": 16})
    run_here(spec.model_dump(mode="json"))
    assert asked == [2, 2] and "memory suffices for sample.batch_size 2 only" in caplog.text
    monkeypatch.setattr(gpus, "memory", lambda _: (0, 5))
    with pytest.raises(UserError, match=r"the job needs 50 B of memory while sampling .*; the device has 5 B") as caught:
        run_here(spec.model_dump(mode="json"), folder="again")
    assert caught.value.code == "out_of_memory" and caught.value.hint == budget.NOTHING_HELPS
    assert asked == [2, 2]


@pytest.mark.parametrize(("side", "looked_at"), [(32, False), (4096, True)])
def test_a_small_model_is_looked_at_only_for_large_pictures(
    side: int, looked_at: bool, job: Callable[..., SampleSpec], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpus, "memory", lambda _: (0, 64 * 2**30))
    predicted: list[Any] = []
    monkeypatch.setattr(plan, "predict", lambda spec, *_: predicted.append(spec) or pictures_of_ten(spec))
    for name in ("random", "pocket/pocket.safetensors"):
        spec = job(**{"model.name_or_path": name, "sample.width": side, "sample.height": side})
        assert before_run.check(spec, find_places(spec), "cpu", []) is spec
    assert len(predicted) == 2 * looked_at
