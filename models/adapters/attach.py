"""Where adapters go: which layers of a model, and the hooks that add to what those layers give.

The base model is not changed: each adapter is a forward hook, so the base keeps its own state dict, quantization and checkpointing.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from models.adapters.lokr import LokrLayer, new_lokr
from models.adapters.lora import Base, LoraLayer
from models.errors import UserError
from models.words import named

PREFIX = "transformer."
LYCORIS = "lycoris_"
MOST_PATHS = 8  # of layers, in one message

AdapterLayer = LoraLayer | LokrLayer
Device = torch.device | str | None


@dataclass(frozen=True)
class Applied:
    """What was made of an adapter file: all of the `in_file` layers that it names, or it would have been refused, beside `layers` of the
    `of_model` layers that an adapter could stand beside (a layer that is fused in the file is several here). `alphas` says where alphas
    come from that stand outside the tensors."""

    file: str
    in_file: int
    layers: int
    of_model: int
    alphas: str = ""

    def __str__(self) -> str:
        counts = f"applied {self.in_file} of {self.in_file} layers of {self.file}"
        more = f"; {self.alphas}" if self.alphas else ""
        return f"{counts}: {self.layers} of the model's {self.of_model} layers{more}"


class AdapterNetwork(nn.Module):
    """Adapter layers, each beside a layer of the model. `multiplier` 1 is as trained, 0 is off.

    `network_config` is the job's network section, where there is one; architectures that save files of their own look into it.
    """

    def __init__(
        self, layers: Mapping[str, tuple[Base, AdapterLayer]], old_format: bool = False, network_config: Any = None
    ) -> None:
        super().__init__()
        self.multiplier = 1.0
        self.applied: Applied | None = None  # of one that comes from a file
        self.old_format, self.network_config = old_format, network_config
        self.layers = nn.ModuleDict()
        self.pairs: list[tuple[Base, AdapterLayer]] = list(layers.values())
        self._hooks: list[RemovableHandle] = []
        for path, (base, layer) in layers.items():
            self.layers[path.replace(".", "$")] = layer  # a module's name may hold no dot
            self._hooks.append(base.register_forward_hook(self._hook(layer)))

    @property
    def kind(self) -> str:
        """lora or lokr."""
        return self.pairs[0][1].kind

    def named_layers(self) -> Iterator[tuple[str, Any]]:
        """(path in the base model, layer)."""
        for name, layer in self.layers.items():
            yield name.replace("$", "."), layer

    def detach(self) -> None:
        """Take the adapters off the model."""
        for hook in self._hooks:
            hook.remove()

    def _hook(self, layer: AdapterLayer) -> Callable[[Any, tuple[torch.Tensor, ...], torch.Tensor], torch.Tensor]:
        def add(base: Any, args: tuple[torch.Tensor, ...], output: torch.Tensor) -> torch.Tensor:
            return output if self.multiplier == 0 else output + layer(args[0], base, self.multiplier).to(output.dtype)

        return add

    def public_state(self) -> dict[str, torch.Tensor]:
        """`transformer.PATH.lora_A.weight` and so on for every layer; LoKr in the old format `lycoris_PATH_WITH_UNDERSCORES.lokr_w1`.
        Raises UserError if two layers would get one name."""
        stems = {path: LYCORIS + path.replace(".", "_") if self.old_format else PREFIX + path for path, _ in self.named_layers()}
        if len(set(stems.values())) < len(stems):
            raise UserError("two layers have the same name in the old format; turn old_lokr_format off", code="bad_adapter")
        return {f"{stems[path]}.{name}": tensor for path, layer in self.named_layers() for name, tensor in layer.state().items()}


def new_network(
    root: nn.Module,
    rank: int,
    alpha: float,
    only: Sequence[str] = (),
    ignore: Sequence[str] = (),
    within: Sequence[str] = (),
    *,
    kind: str = "lora",
    conv: int | None = None,
    conv_alpha: float | None = None,
    dropout: float = 0.0,
    full_rank: bool = True,
    factor: int = -1,
    old_format: bool = False,
    network_config: Any = None,
    device: Device = None,
) -> AdapterNetwork:
    """A fresh adapter on those layers of `root` whose name (`transformer.PATH`) contains one of `only` (if given) and none of
    `ignore`; with `within`, only on those inside a module of such a class.

    Layers are linear ones and 1x1 convolutions, with `rank` and `alpha`; other 2-D convolutions too if `conv` gives them a rank.
    Convolutions in groups are left alone. `full_rank` and `factor` are LoKr's. Raises UserError naming layers that exist when a
    pattern matches none, and when nothing is left to train.
    """
    if kind == "lokr" and dropout:
        raise UserError(f"network.dropout {dropout:g} is for lora; lokr has no inner layer to drop from", code="no_dropout")
    homes = [f"{path}." if path else "" for path, module in root.named_modules() if type(module).__name__ in within]
    every = {path: layer for path, layer in trainable_layers(root).items() if not within or path.startswith(tuple(homes))}
    layers = {path: layer for path, layer in every.items() if conv or not is_wide(layer)}
    for pattern in (*only, *ignore):
        if not _matching(layers, pattern):
            hint = "; it names convolutions, which network.conv gives a rank" if _matching(every, pattern) else ""
            raise UserError(
                f"network: no layer's name contains {pattern!r}{hint}; there are: {some(layers)}", code="no_such_layer"
            )
    wanted = [path for path in layers if not only or any(pattern in PREFIX + path for pattern in only)]
    chosen = [path for path in wanted if not any(pattern in PREFIX + path for pattern in ignore)]
    if not chosen:
        raise UserError(f"network: the filters leave no layer to train, of: {some(layers)}", code="no_such_layer")
    if conv and not any(is_wide(layers[path]) for path in chosen):
        raise UserError(
            f"network.conv {conv} is a rank for convolutions larger than 1x1, and there is none among: {some(dict.fromkeys(chosen))}",
            code="no_such_layer",
        )

    def make(base: Base) -> AdapterLayer:
        own_rank, own_alpha = rank, alpha
        if conv and is_wide(base):
            own_rank, own_alpha = conv, conv_alpha or float(conv)
        if kind == "lokr":
            return new_lokr(base, own_rank, own_alpha, factor, full_rank, device)
        return LoraLayer(base, own_rank, own_alpha, dropout, device)

    return AdapterNetwork({path: (layers[path], make(layers[path])) for path in chosen}, old_format, network_config)


@torch.no_grad()
def merge_into_base(network: AdapterNetwork, weight: float = 1.0) -> None:
    """W <- W + weight * delta for every layer: afterwards the base acts as if the adapter were on. Raises UserError, before anything
    is changed, for a quantized base: its few levels would swallow the change."""
    for path, (base, _) in zip(network.layers, network.pairs, strict=True):
        if type(base.weight.data) is not torch.Tensor:
            raise UserError(
                f"the adapter cannot be merged into layer '{path.replace('$', '.')}', which is quantized "
                f"({type(base.weight.data).__name__}); merge before quantizing, or turn quantize off",
                code="quantized_base",
            )
    for base, layer in network.pairs:
        base.weight += (weight * layer.delta()).to(base.weight)


def trainable_layers(root: nn.Module) -> dict[str, Base]:
    """By path, what an adapter can stand beside: linear layers and ungrouped 2-D convolutions, quantized or not."""
    return {
        path: module
        for path, module in root.named_modules()
        if isinstance(module, nn.Linear) or (isinstance(module, nn.Conv2d) and module.groups == 1)
    }


def is_wide(layer: Base) -> bool:
    """Whether it is a convolution that sees more than one pixel."""
    return isinstance(layer, nn.Conv2d) and tuple(layer.kernel_size) != (1, 1)


def some(paths: Iterable[str]) -> str:
    """The first few paths of layers, for a message."""
    return named(list(paths), MOST_PATHS)


def _matching(layers: Mapping[str, Base], pattern: str) -> bool:
    return any(pattern in PREFIX + path for path in layers)
