"""What training changes, into a file and back: exact, whatever an optimizer keeps."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import prodigyopt
import pytest
import torch
from transformers.optimization import Adafactor

from models.errors import UserError
from worker.training import checkpoint
from worker.training.ema import Ema
from worker.training.state import TrainState

Make = Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer]


class Odd(torch.optim.Optimizer):
    """Keeps all that an optimizer may: numbers, None and texts for a parameter, nested, in several dtypes, and numbers in its group that
    its steps use."""

    def __init__(self, params: Any, lr: float = 0.1, decay: float = 0.5) -> None:
        super().__init__(params, {"lr": lr, "decay": decay, "scale": 1.0, "count": 0, "seen": None})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            group["count"] += 1
            group["scale"] *= 1 / 3 + group["count"] * 1e-17
            group["seen"] = torch.full((2,), group["scale"], dtype=torch.float64)
            for param in group["params"]:
                state = self.state[param]
                if not state:
                    state.update(step=0, rms=math.inf, note="first", nothing=None, flag=False)
                    state["moments"] = [
                        torch.zeros_like(param, dtype=torch.bfloat16),
                        (torch.zeros((), dtype=torch.int64), {"a": 0.1}),
                    ]
                    state["same"] = state["moments"][0]  # two names for one piece of memory
                state["step"] += 1
                state["rms"] = float(param.grad.square().mean().sqrt()) / 3
                state["flag"] = not state["flag"]
                state["moments"][0].lerp_(param.grad.to(torch.bfloat16), 0.3)
                state["moments"][1][1]["a"] *= 0.7
                step = state["moments"][0].float() * group["scale"] * state["moments"][1][1]["a"] + state["rms"] * state["step"]
                param.sub_(step, alpha=group["lr"] * group["decay"])


def two_groups(params: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
    return prodigyopt.Prodigy([{"params": params[:2]}, {"params": params[2:], "weight_decay": 0.1}], lr=1.0)


OPTIMIZERS: dict[str, Make] = {
    "adamw": lambda params: torch.optim.AdamW(params, fused=True),
    "adamw, amsgrad": lambda params: torch.optim.AdamW(params, amsgrad=True),
    "sgd": lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9),
    "rmsprop": lambda params: torch.optim.RMSprop(params, centered=True),
    "nadam": torch.optim.NAdam,
    "radam": torch.optim.RAdam,
    "adagrad": torch.optim.Adagrad,
    "adafactor": lambda params: Adafactor(params, lr=1e-3, scale_parameter=False, relative_step=False, warmup_init=False),
    "adafactor, own rate": lambda params: Adafactor(params, lr=None, scale_parameter=True, relative_step=True, warmup_init=True),
    "prodigy": lambda params: prodigyopt.Prodigy(params, lr=1.0, safeguard_warmup=True, use_bias_correction=True),
    "prodigy, two groups": two_groups,
    "odd": Odd,
}


def fresh(make: Make, ema: bool = True, seed: int = 0, dtype: torch.dtype = torch.float32) -> TrainState:
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 2)).to(dtype)
    params = dict(model.named_parameters())
    return TrainState(params, make(list(params.values())), Ema(params, 0.9) if ema else None)


def advance(state: TrainState, steps: int = 1, lr: float = 0.01) -> TrainState:
    for _ in range(steps):
        torch.manual_seed(100 + state.step)
        sum((param * torch.randn_like(param)).sum() for param in state.params.values()).backward()
        for group in state.optimizer.param_groups:
            if not group.get("relative_step"):
                group["lr"] = lr * (state.step + 1)
        state.optimizer.step()
        state.optimizer.zero_grad()
        if state.ema:
            state.ema.update()
        state.step += 1
    return state


def equal(one: TrainState, other: TrainState) -> bool:
    """Bit for bit, with types and dtypes."""
    (mine, my_numbers), (theirs, their_numbers) = one.dump(), other.dump()
    tensors = set(mine) == set(theirs) and all(
        torch.equal(theirs[name], tensor) and theirs[name].dtype == tensor.dtype for name, tensor in mine.items()
    )
    return tensors and repr(my_numbers) == repr(their_numbers) and one.step == other.step


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("ema", [True, False], ids=["ema", "no ema"])
def test_a_resumed_optimizer_goes_on_bit_for_bit(tmp_path: Path, name: str, ema: bool) -> None:
    make = OPTIMIZERS[name]
    state, other = advance(fresh(make, ema), 3), fresh(make, ema, seed=1)
    bundle, _ = checkpoint.save(tmp_path, state, kept=False, write_weights=None, name="x")
    checkpoint.load(bundle, other)
    for _ in range(3):
        assert equal(state, other)
        advance(state)
        advance(other)


def test_half_precision_state_stays_what_it_is(tmp_path: Path) -> None:
    state, other = (fresh(OPTIMIZERS["adamw"], dtype=torch.bfloat16, seed=seed) for seed in (0, 1))
    bundle, _ = checkpoint.save(tmp_path, advance(state, 3), kept=False, write_weights=None, name="x")
    checkpoint.load(bundle, other)
    assert equal(advance(state), advance(other))


def test_numbers_come_back_as_what_they_were(tmp_path: Path) -> None:
    state, other = advance(fresh(Odd), 2), fresh(Odd, seed=1)
    bundle, _ = checkpoint.save(tmp_path, state, kept=False, write_weights=None, name="x")
    checkpoint.load(bundle, other)
    kept = other.optimizer.state[other.params["0.weight"]]
    assert (kept["step"], kept["note"], kept["nothing"], kept["flag"]) == (2, "first", None, False)
    assert isinstance(kept["moments"], list) and isinstance(kept["moments"][1], tuple)
    assert kept["moments"][1][0].dtype == torch.int64
    assert kept["same"] is kept["moments"][0]
    group = other.optimizer.param_groups[0]
    assert (group["count"], group["scale"], group["seen"].dtype) == (2, state.optimizer.param_groups[0]["scale"], torch.float64)


def test_an_option_that_was_edited_is_the_new_one_and_what_steps_changed_is_the_old(tmp_path: Path) -> None:
    bundle, _ = checkpoint.save(tmp_path, advance(fresh(Odd), 2), kept=False, write_weights=None, name="x")
    other = fresh(lambda params: Odd(params, lr=7.0, decay=0.25))
    checkpoint.load(bundle, other)
    group = other.optimizer.param_groups[0]
    assert (group["lr"], group["decay"], group["count"]) == (7.0, 0.25, 2)


def test_a_bundle_without_numbers_still_loads() -> None:
    state, other = advance(fresh(OPTIMIZERS["adamw"]), 3), fresh(OPTIMIZERS["adamw"], seed=1)
    other.restore({name: tensor.clone() for name, tensor in state.tensors().items()}, None, state.step)
    assert equal(advance(state), advance(other))


def test_what_no_file_can_hold_is_refused_by_name(tmp_path: Path) -> None:
    state = advance(fresh(OPTIMIZERS["sgd"]))
    state.optimizer.state[state.params["0.bias"]]["helper"] = object()
    with pytest.raises(UserError, match=r"keeps 'optim/0\.bias/helper' as a object") as error:
        checkpoint.save(tmp_path, state, kept=True, write_weights=None, name="x")
    assert error.value.code == "bad_optimizer_state"
    assert list(tmp_path.iterdir()) == []


def test_state_beside_the_parameters_is_refused_by_name(tmp_path: Path) -> None:
    state = advance(fresh(OPTIMIZERS["sgd"]))
    state.optimizer.state["global"] = {"count": 3}  # type: ignore[index]
    with pytest.raises(UserError, match="keeps state under 'global', which is no trained parameter") as error:
        checkpoint.save(tmp_path, state, kept=True, write_weights=None, name="x")
    assert error.value.code == "bad_optimizer_state"


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_bundle_written_on_a_cpu_goes_on_on_another_device(tmp_path: Path, name: str) -> None:
    """The device "meta" stands for a GPU: it has no numbers, but tensors of it cannot meet those of a CPU."""
    bundle, _ = checkpoint.save(tmp_path, advance(fresh(OPTIMIZERS[name]), 3), kept=False, write_weights=None, name="x")
    other = on_meta(OPTIMIZERS[name])
    checkpoint.load(bundle, other)
    found = [value for kept in other.optimizer.state.values() for value in tensors_in(kept)]
    assert found and {value.device.type for value in found} == {"meta"}


def test_a_count_that_a_gpu_run_keeps_on_the_cpu_stays_there() -> None:
    state, other = (on_meta(torch.optim.NAdam) for _ in range(2))
    for param in state.params.values():
        state.optimizer.state[param] = {"step": torch.tensor(3.0), "exp_avg": torch.zeros_like(param)}
    tensors, numbers = state.dump()
    other.restore(tensors, numbers, 3)
    kept = other.optimizer.state[other.params["0.weight"]]
    assert (kept["step"].device.type, kept["exp_avg"].device.type) == ("cpu", "meta")
    assert float(kept["step"]) == 3.0


def on_meta(make: Make) -> TrainState:
    params = {name: torch.nn.Parameter(param.detach().to("meta")) for name, param in fresh(make).params.items()}
    return TrainState(params, make(list(params.values())))


def tensors_in(value: Any) -> list[torch.Tensor]:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return [value] if isinstance(value, torch.Tensor) else [found for each in inner for found in tensors_in(each)]
