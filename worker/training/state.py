"""What training changes, as tensors and numbers that a file can hold: exact, whatever the optimizer keeps.

An optimizer's state is tensors, Python numbers and None for each parameter, in lists, tuples or dicts, and numbers in its groups that
steps change (Prodigy's `d`). A tensor keeps its dtype. It goes to the device of its parameter, so that a bundle written on a CPU goes on
on a GPU and the other way round, unless it lay on the CPU while its parameter did not, as a count of steps may. A float is written with
as many digits as it takes to read the same float back. Options that no step changes (betas, weight decay) are not state: a resumed run
takes them from the job.
"""

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from models.errors import UserError
from worker.training.ema import Ema

PARAM, OPTIM, GROUP, EMA = "param/", "optim/", "group/", "ema/"
SET_BY_THE_LOOP = ("params", "lr")

Tensors = dict[str, torch.Tensor]


@dataclass
class TrainState:
    """What training changes, by parameter name. Made before the first step, so that what steps change in a group can be told."""

    params: Mapping[str, torch.nn.Parameter]
    optimizer: torch.optim.Optimizer
    ema: Ema | None = None
    step: int = 0

    def __post_init__(self) -> None:
        self._fresh_groups = [copy.deepcopy(_options(group)) for group in self.optimizer.param_groups]

    def tensors(self) -> Tensors:
        """The live tensors under flat names; see `dump`."""
        return self.dump()[0]

    def dump(self) -> tuple[Tensors, dict[str, Any]]:
        """The live tensors under flat names, and all else as JSON that refers to them. Copies only what shares its memory with
        another. Raises UserError for an optimizer that keeps what cannot be written."""
        tensors: Tensors = {PARAM + name: param.detach() for name, param in self.params.items()}
        tensors |= {EMA + name: value for name, value in self.ema.shadow.items()} if self.ema else {}
        self._refuse_other_state()
        states, names = {}, dict[int, str]()
        for name, param in self.params.items():
            if param in self.optimizer.state:
                states[name] = _dump(dict(self.optimizer.state[param]), OPTIM + name, tensors, names, param.is_cpu)
        groups = []
        for index, (group, fresh) in enumerate(zip(self.optimizer.param_groups, self._fresh_groups, strict=True)):
            changed = {key: value for key, value in _options(group).items() if key not in fresh or not _same(value, fresh[key])}
            groups.append(_dump(changed, f"{GROUP}{index}", tensors, names, group["params"][0].is_cpu))
        return _apart(tensors), {"optim": states, "groups": groups}

    def _refuse_other_state(self) -> None:
        """Raises UserError for an optimizer that keeps something beside the state of its parameters: no bundle would hold it."""
        known = {id(param) for param in self.params.values()}
        other = [key for key in self.optimizer.state if id(key) not in known]
        if other:
            name = repr(other[0]) if isinstance(other[0], str | int) else f"a {type(other[0]).__name__}"
            raise UserError(
                f"the optimizer keeps state under {name}, which is no trained parameter, so no checkpoint can hold it; only what it "
                "keeps for each parameter or in its groups can be saved",
                code="bad_optimizer_state",
                hint="Take another optimizer.",
            )

    @torch.no_grad()
    def restore(self, tensors: Tensors, numbers: Mapping[str, Any] | None, step: int) -> None:
        """Take over what `dump()` gave, the optimizer's tensors themselves; without numbers, tensors alone are its state. Raises
        UserError when the bundle is of another model or adapter."""
        if {name.removeprefix(PARAM) for name in tensors if name.startswith(PARAM)} != set(self.params):
            raise UserError("the checkpoint holds other parameters than this job trains", code="bad_checkpoint")
        states = numbers["optim"] if numbers else {name: _by_name(tensors, f"{OPTIM}{name}/") for name in self.params}
        for name, param in self.params.items():
            param.copy_(tensors[PARAM + name])
            if name in states:
                self.optimizer.state[param] = _load(states[name], tensors, param.device)
            if self.ema:
                self.ema.shadow[name].copy_(tensors.get(EMA + name, param))
        for group, changed in zip(self.optimizer.param_groups, numbers["groups"] if numbers else (), strict=False):
            group.update(_load(changed, tensors, group["params"][0].device))
        self.step = step


def _options(group: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in group.items() if key not in SET_BY_THE_LOOP}


def _dump(value: Any, name: str, tensors: Tensors, names: dict[int, str], on_cpu: bool) -> Any:
    """`value` as JSON, its tensors put into `tensors` under names that begin with `name`; `names` has those of earlier ones by id.
    `on_cpu`: the parameter lies there, so that a tensor on the CPU lies beside it."""
    if isinstance(value, torch.Tensor):
        known = names.setdefault(id(value), name)  # one that is shared stays shared
        tensors[known] = value
        return {"tensor": known, "cpu": value.is_cpu and not on_cpu}
    if isinstance(value, dict):
        return {"dict": [[key, _dump(inner, f"{name}/{key}", tensors, names, on_cpu)] for key, inner in value.items()]}
    if isinstance(value, list | tuple):
        inner = [_dump(each, f"{name}/{index}", tensors, names, on_cpu) for index, each in enumerate(value)]
        return inner if isinstance(value, list) else {"tuple": inner}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise UserError(
        f"the optimizer keeps '{name}' as a {type(value).__name__}, which no checkpoint can hold; "
        "tensors, numbers, texts and None in lists, tuples and dicts can be saved",
        code="bad_optimizer_state",
        hint="Take another optimizer.",
    )


def _load(value: Any, tensors: Tensors, device: torch.device) -> Any:
    """What `_dump` was given; tensors go to `device`, once each, but for those marked as on the CPU."""
    if isinstance(value, list):
        return [_load(each, tensors, device) for each in value]
    if not isinstance(value, dict):
        return value
    if "tensor" in value:
        name = value["tensor"]
        tensors[name] = tensors[name].to("cpu" if value["cpu"] else device)
        return tensors[name]
    if "tuple" in value:
        return tuple(_load(each, tensors, device) for each in value["tuple"])
    return {key: _load(inner, tensors, device) for key, inner in value["dict"]}


def _by_name(tensors: Mapping[str, torch.Tensor], prefix: str) -> dict[str, Any]:
    """The state of a bundle that was written before bundles had numbers."""
    names = [name for name in tensors if name.startswith(prefix)]
    return {"dict": [[name.removeprefix(prefix), {"tensor": name, "cpu": False}] for name in names]}


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    return type(one) is type(other) and bool(one == other)


def _apart(tensors: Tensors) -> Tensors:
    """The same tensors, copied where two share memory: a file holds each by itself."""
    seen: set[int] = set()
    made = {}
    for name, tensor in tensors.items():
        place = tensor.untyped_storage().data_ptr()
        made[name] = tensor.clone() if place in seen and tensor.numel() else tensor
        seen.add(place)
    return made
