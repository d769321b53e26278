"""LoRA (Hu et al. 2021): y = W x + multiplier * (alpha / rank) * B A x, trained in fp32 beside a frozen W.

The base model is not changed: each layer is a forward hook, so the base keeps its own state dict, quantization and checkpointing.
"""

import math
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import nn

from models.errors import UserError

PREFIX = "transformer."
CONVENTION = ("lora_A.weight", "lora_B.weight", "alpha")


class LoraLayer(nn.Module):
    """A (rank, in) starts random, B (out, rank) at zero: a new adapter changes nothing."""

    def __init__(self, base: nn.Linear, rank: int, alpha: float) -> None:
        super().__init__()
        device = base.weight.device
        self.lora_A = nn.Parameter(torch.empty(rank, base.in_features, device=device))
        self.lora_B = nn.Parameter(torch.zeros(base.out_features, rank, device=device))
        self.alpha = alpha
        self.scale = alpha / rank
        nn.init.kaiming_uniform_(self.lora_A, a=math.sqrt(5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x.to(self.lora_A) @ self.lora_A.T @ self.lora_B.T) * self.scale


class LoraNetwork(nn.Module):
    """The adapters of all chosen layers of `root`. `multiplier` 1 is as trained, 0 is off."""

    def __init__(self, layers: Mapping[str, nn.Linear], rank: Mapping[str, int], alpha: Mapping[str, float]) -> None:
        super().__init__()
        self.multiplier = 1.0
        self.layers = nn.ModuleDict()
        self._hooks = []
        self.pairs: list[tuple[nn.Linear, LoraLayer]] = []
        for path, base in layers.items():
            layer = LoraLayer(base, rank[path], alpha[path])
            self.layers[path.replace(".", "$")] = layer  # a module's name may hold no dot
            self.pairs.append((base, layer))
            self._hooks.append(base.register_forward_hook(self._hook(layer)))

    def named_layers(self) -> Iterator[tuple[str, LoraLayer]]:
        """(path in the base model, layer)."""
        for name, layer in self.layers.items():
            assert isinstance(layer, LoraLayer)
            yield name.replace("$", "."), layer

    def detach(self) -> None:
        """Take the adapters off the model."""
        for hook in self._hooks:
            hook.remove()

    def _hook(self, layer: LoraLayer):  # type: ignore[no-untyped-def]
        def add(_module: nn.Module, args: tuple[torch.Tensor, ...], output: torch.Tensor) -> torch.Tensor:
            return output if self.multiplier == 0 else output + (self.multiplier * layer(args[0])).to(output.dtype)

        return add

    def public_state(self) -> dict[str, torch.Tensor]:
        """`transformer.PATH.lora_A.weight` and `.lora_B.weight` for every layer. alpha / rank is folded into B and no `.alpha` is
        written, because readers differ in whether they look at one; all agree that without it the scale is 1."""
        state: dict[str, torch.Tensor] = {}
        for name, layer in self.named_layers():
            path = PREFIX + name
            state |= {f"{path}.lora_A.weight": layer.lora_A, f"{path}.lora_B.weight": layer.lora_B * layer.scale}
        return state


def new_network(
    root: nn.Module,
    rank: int,
    alpha: float,
    only: Sequence[str] = (),
    ignore: Sequence[str] = (),
    within: Sequence[str] = (),
) -> LoraNetwork:
    """A fresh adapter on the linear layers of `root` whose path contains one of `only` (if given) and none of `ignore`; with
    `within`, only on those inside a module of such a class.

    Raises UserError naming layers that exist when a pattern matches none, or when nothing is left to train.
    """
    homes = [f"{path}." if path else "" for path, module in root.named_modules() if type(module).__name__ in within]
    linears = {path: layer for path, layer in _linears(root).items() if not within or path.startswith(tuple(homes))}
    for pattern in (*only, *ignore):
        if not any(pattern in path for path in linears):
            raise UserError(f"network: no layer's name contains {pattern!r}; there are: {_some(linears)}", code="no_such_layer")
    chosen = {
        path: layer
        for path, layer in linears.items()
        if (not only or any(p in path for p in only)) and not any(p in path for p in ignore)
    }
    if not chosen:
        raise UserError(f"network: the filters leave no layer to train, of: {_some(linears)}", code="no_such_layer")
    return LoraNetwork(chosen, dict.fromkeys(chosen, rank), dict.fromkeys(chosen, alpha))


def network_from_state(root: nn.Module, state: Mapping[str, torch.Tensor]) -> LoraNetwork:
    """The adapter that `state` (our keys) describes, with its weights. A missing alpha means alpha = rank. Raises UserError if
    any key does not belong to a layer of `root`."""
    linears = _linears(root)
    found: dict[str, dict[str, torch.Tensor]] = {}
    for key, tensor in state.items():
        suffix = next((s for s in CONVENTION if key.endswith("." + s)), None)
        path = key.removeprefix(PREFIX).removesuffix(f".{suffix}")
        if suffix is None or path not in linears:
            raise UserError(
                f"the adapter's key '{key}' fits no layer of this model; layers are: {_some(linears)}", code="bad_adapter"
            )
        found.setdefault(path, {})[suffix] = tensor
    ranks = {path: part["lora_A.weight"].shape[0] for path, part in found.items()}
    alphas = {path: float(part["alpha"]) if "alpha" in part else float(ranks[path]) for path, part in found.items()}
    network = LoraNetwork({path: linears[path] for path in found}, ranks, alphas)
    with torch.no_grad():
        for name, layer in network.named_layers():
            part = found[name]
            layer.lora_A.copy_(part["lora_A.weight"])
            layer.lora_B.copy_(part["lora_B.weight"])
    return network


@torch.no_grad()
def merge_into_base(network: LoraNetwork, weight: float = 1.0) -> None:
    """W <- W + weight * (alpha / rank) * B A for every layer: afterwards the base acts as if the adapter were on."""
    for base, layer in network.pairs:
        base.weight += weight * layer.scale * (layer.lora_B @ layer.lora_A).to(base.weight)


def _linears(root: nn.Module) -> dict[str, nn.Linear]:
    return {path: module for path, module in root.named_modules() if isinstance(module, nn.Linear)}


def _some(paths: Mapping[str, object]) -> str:
    names = list(paths)
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
