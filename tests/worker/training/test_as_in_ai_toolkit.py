"""`train.as_in_ai_toolkit` against the original's arithmetic, written here a second time from its description."""

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from diffusers import FlowMatchEulerDiscreteScheduler
from torch import nn

from models import catalog
from models.adapters.files import network_for
from models.base import BaseModel
from models.batch import Batch
from models.prompt_embeds import AdvancedPromptEmbeds
from models.spec import TrainSpec
from worker.data.batches import TrainBatch
from worker.seeds import seed_for
from worker.training.grids import Grids
from worker.training.optim import make_optimizer
from worker.training.schedule import lr_at
from worker.training.steps import Gathered, TrainStep
from worker.training.timesteps import WEIGHT_PLACES, WEIGHTS

SHAPE = (4, 16, 24)
RANK, SEED = 3, 42


class Pixelwise(BaseModel):
    """One linear layer over the channels."""

    is_flow_matching = True

    def __init__(self, scheduler: Any = None, boundaries: Any = ()) -> None:
        super().__init__("cpu", SimpleNamespace(), dtype="fp32", noise_scheduler=scheduler)
        torch.manual_seed(0)
        self.model = nn.ModuleDict({"out": nn.Linear(4, 4)})
        self.model.config = {"patch_size": 2}
        self.is_multistage = bool(boundaries)
        self.multistage_boundaries = list(boundaries)

    def get_noise_prediction(self, latent_model_input: Any, *_: Any, **__: Any) -> torch.Tensor:
        return self.model["out"](latent_model_input.movedim(1, -1)).movedim(-1, 1)


def spec_for(**train: Any) -> TrainSpec:
    made = catalog.parse_job(
        {
            "kind": "train",
            "name": "t",
            "model": {"arch": "pocket", "name_or_path": "random"},
            "network": {"linear": RANK, "linear_alpha": 1.0},
            "datasets": [{"folder_path": "colours"}],
            "train": {"as_in_ai_toolkit": True, "max_denoising_steps": 999, "seed": SEED, **train},
        }
    )
    assert isinstance(made, TrainSpec)
    return made


def grid(kind: str) -> list[float]:
    """The grid, from torch's generator as it stands."""
    if kind == "sigmoid":
        drawn = [1000 * (1 - 1 / (1 + math.exp(-x))) for x in torch.randn(1000).double().tolist()]
        return sorted(drawn, reverse=True)
    if kind == "lognorm_blend":
        x = [math.exp(0.333 * z) for z in torch.randn(750).double().tolist()]
        bell = [1000 * (1 - each / max(x)) for each in x]
        even = [1000 - i * 999 / 249 for i in range(250)]
        return [float(int(t)) for t in sorted(bell + even, reverse=True)]
    return [1000.0 - i for i in range(1000)]


@pytest.mark.parametrize("kind", ["linear", "weighted", "sigmoid", "lognorm_blend", "eight_step"])
def test_grids_are_the_originals(kind: str) -> None:
    grids = Grids(Pixelwise(), spec_for(timestep_type=kind).train)
    torch.manual_seed(7)
    made = grids.levels(SHAPE).tolist()
    torch.manual_seed(7)
    # fp32 may put a blended level on the other side of a whole number
    assert made == pytest.approx(grid(kind), abs=1 if kind == "lognorm_blend" else 2e-3)
    assert len(made) == 1000
    assert grids.levels(SHAPE).tolist() != made or kind not in ("sigmoid", "lognorm_blend")  # drawn anew at every step


@pytest.mark.parametrize("dynamic", [True, False])
@pytest.mark.parametrize("terminal", [None, 0.2])
def test_a_shifted_grid_is_that_of_the_description(dynamic: bool, terminal: float | None) -> None:
    scheduler = FlowMatchEulerDiscreteScheduler(shift=3.0, use_dynamic_shifting=dynamic, shift_terminal=terminal)
    train = spec_for().train.model_copy(update={"timestep_type": "shift"})  # which the bundled arch itself refuses
    made = Grids(Pixelwise(scheduler), train).levels(SHAPE).tolist()
    lowest = 0.001 if dynamic else 3 * 0.001 / (1 + 2 * 0.001)  # a static shift is in sigma_min already, and comes twice
    even = [1 + i / 999 * (lowest - 1) for i in range(1000)]
    mu = (1.15 - 0.5) / (4096 - 256) * (8 * 12 - 256) + 0.5
    shifted = [math.exp(mu) / (math.exp(mu) + 1 / s - 1) if dynamic else 3 * s / (1 + 2 * s) for s in even]
    if terminal:
        scale = (1 - shifted[-1]) / (1 - terminal)
        shifted = [1 - (1 - s) / scale for s in shifted]
    assert made == pytest.approx([1000 * s for s in shifted], rel=1e-5)


def drawn(model: BaseModel, count: int = 3000, stage_step: int = 0, **train: Any) -> list[float]:
    step = TrainStep(model, spec_for(batch_size=1, timestep_type="linear", **train))
    return step.draw(torch.zeros(count, 1, 1, 1), stage_step, 0).levels


def test_the_upper_index_is_never_drawn() -> None:
    assert set(drawn(Pixelwise(), 60, min_denoising_steps=0, max_denoising_steps=3)) == {1000, 999, 998}
    assert set(drawn(Pixelwise(), 20, min_denoising_steps=7, max_denoising_steps=8)) == {993}
    assert min(drawn(Pixelwise(), 20000)) == 2  # 999 as the maximum, as there, leaves index 999 out
    assert set(drawn(Pixelwise(), 99, max_denoising_steps=1000)) <= set(grid("linear"))


@pytest.mark.parametrize(("emphasis", "mean"), [("content", 1 / 4), ("style", 3 / 4)])
def test_emphasis_is_the_cube_of_an_even_number_rescaled_into_the_range(emphasis: str, mean: float) -> None:
    places = [1000 - t for t in drawn(Pixelwise(), content_or_style=emphasis)]
    assert sum(places) / len(places) / 1000 == pytest.approx(mean, abs=0.02)
    places = [1000 - t for t in drawn(Pixelwise(), content_or_style=emphasis, min_denoising_steps=200, max_denoising_steps=400)]
    assert min(places) >= 200 and max(places) <= 400
    assert (sum(places) / len(places) - 200) / 200 == pytest.approx(mean, abs=0.02)


@pytest.mark.parametrize(("kind", "levels"), [("one_step", [0]), ("two_step", [0, 499]), ("four_step", [0, 250, 500, 750])])
def test_few_step_kinds_have_the_originals_indices(kind: str, levels: list[int]) -> None:
    step = TrainStep(Pixelwise(), spec_for(timestep_type=kind))
    assert sorted({1000 - t for t in step.draw(torch.zeros(50, 1, 1, 1), 0, 0).levels}) == levels


def test_experts_get_the_indices_of_their_range_without_the_last() -> None:
    model = Pixelwise(boundaries=[0.875, 0.0])
    model.trainable_multistage_boundaries = [0, 1]
    assert (max(drawn(model, 6000)), min(drawn(model, 6000))) == (1000, 877)  # indices 0..123
    assert (max(drawn(model, 20000, stage_step=1)), min(drawn(model, 20000, stage_step=1))) == (875, 2)  # 125..998


CLEAN = torch.randn(6, *SHAPE, generator=torch.Generator().manual_seed(1))


def ours(steps: int, spec: TrainSpec) -> tuple[list[float], dict[str, torch.Tensor]]:
    model = Pixelwise()
    model.model.requires_grad_(False)
    torch.manual_seed(3)
    network = model.network = network_for(model, spec.network, spec.train.as_in_ai_toolkit)
    params = list(network.parameters())
    optimizer, step, told = make_optimizer(params, spec.train), TrainStep(model, spec), []
    for number in range(steps):
        optimizer.param_groups[0]["lr"] = lr_at(number, spec.train)
        gathered = Gathered(spec)
        for first in range(0, 6, 2):
            batch = Batch(CLEAN[first : first + 2], ["", ""])
            embeds = AdvancedPromptEmbeds(text_embeds=[torch.ones(1, 1)] * 2)
            gathered.add(step(TrainBatch(batch, embeds, number, first)), 2)
        told.append(float(gathered.mean(params)["loss"]))
        torch.nn.utils.clip_grad_norm_(params, 1.0)
        optimizer.step()
        optimizer.zero_grad()
    return told, {name: param.detach() for name, param in network.named_parameters()}


def theirs(steps: int, kind: str) -> tuple[list[float], dict[str, torch.Tensor]]:
    """LoRA with alpha := rank on y = W x + b; grids, weights, summed gradients, a clip and AdamW, each by hand in float64."""
    base = Pixelwise().model["out"]
    weight, bias = base.weight.detach().double(), base.bias.detach().double()
    torch.manual_seed(3)
    down = nn.init.kaiming_uniform_(torch.empty(RANK, 4), a=math.sqrt(5)).double()
    up = torch.zeros(4, RANK, dtype=torch.float64)
    state = [(torch.zeros_like(p), torch.zeros_like(p)) for p in (down, up)]
    told = []
    for number in range(steps):
        sums, losses = [torch.zeros_like(down), torch.zeros_like(up)], []
        for first in range(0, 6, 2):
            torch.manual_seed(seed_for(SEED, number, first, "grid"))
            levels, inputs, targets, weights = grid(kind), [], [], []
            for place in range(first, first + 2):
                torch.manual_seed(seed_for(SEED, number, place))
                index = int(torch.randint(0, 999, ()))
                t, noise = levels[index] / 1000, torch.randn(1, *SHAPE)[0].double()
                inputs.append((1 - t) * CLEAN[place].double() + t * noise)
                targets.append(noise - CLEAN[place].double())
                table = torch.tensor(WEIGHTS, dtype=torch.float64)
                right = max(1, next(i for i, at in enumerate(WEIGHT_PLACES) if at >= index))
                left = right - 1
                share = (index - WEIGHT_PLACES[left]) / (WEIGHT_PLACES[right] - WEIGHT_PLACES[left])
                weights.append(float(table[left] + share * (table[right] - table[left])) if kind == "weighted" else 1.0)
            x, target = (torch.stack(each).flatten(2).transpose(1, 2) for each in (inputs, targets))
            difference = x @ (weight + up @ down).T + bias - target
            scale = torch.tensor(weights, dtype=torch.float64)[:, None, None]
            losses.append(float((scale * difference**2).mean()))
            gradient = torch.einsum("bni,bnj->ij", 2 * scale * difference, x) / difference.numel()
            sums[0] += up.T @ gradient
            sums[1] += gradient @ down.T
        told.append(sum(losses) / 3)
        norm = math.sqrt(sum(float((each**2).sum()) for each in sums))
        for param, each, (first_moment, second_moment) in zip((down, up), sums, state, strict=True):
            each *= min(1.0, 1 / (norm + 1e-6))
            param *= 1 - 1e-2 * 1e-4
            first_moment.lerp_(each, 0.1)
            second_moment.lerp_(each**2, 0.001)
            corrected = (second_moment / (1 - 0.999 ** (number + 1))).sqrt() + 1e-6
            param -= 1e-2 * first_moment / (1 - 0.9 ** (number + 1)) / corrected
    return told, {"layers.out.lora_A": down, "layers.out.lora_B": up}


@pytest.mark.parametrize("kind", ["linear", "weighted", "sigmoid"])
def test_a_run_has_the_originals_losses_and_weights(kind: str) -> None:
    spec = spec_for(
        timestep_type=kind,
        batch_size=2,
        gradient_accumulation=3,
        lr=1e-2,
        optimizer_params={"weight_decay": 1e-4},
    )
    losses, weights = ours(5, spec)
    wanted_losses, wanted = theirs(5, kind)
    assert losses == pytest.approx(wanted_losses, rel=1e-5)
    assert set(weights) == set(wanted)
    for name, tensor in weights.items():  # fp32 against float64
        assert torch.allclose(tensor.double(), wanted[name], rtol=1e-4, atol=1e-6), name
    assert float(weights["layers.out.lora_B"].abs().max()) > 0.01


def test_the_presets_ask_for_it_with_its_usual_range() -> None:
    for arch in ("pocket", "flux2_klein_4b"):
        train = next(p for p in catalog.presets(arch) if p["name"] == "as_in_ai_toolkit")["spec"]["train"]
        assert train["as_in_ai_toolkit"] is True
        assert train["max_denoising_steps"] == 999
