"""Adapter files: what a model reads and writes, where it has several experts, and the adapter of a distilled model's training."""

import contextlib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from models.adapterkeys import stripped
from models.adapters.alphas import add_outside_alphas
from models.adapters.attach import AdapterNetwork, Applied, merge_into_base, new_network, trainable_layers
from models.adapters.load import Name, load_into, network_from_state
from models.errors import UserError
from models.weightfiles import check_adapter_file
from models.weights import load_tensors, save_tensors

EXPERTS = ("transformer_1", "transformer_2")  # the submodules of a denoiser of two experts, by stage
ENDINGS = ("_high_noise", "_low_noise")  # of their files, by stage


def save_lora(model: Any, state: Mapping[str, torch.Tensor], path: Path, metadata: Mapping[str, str]) -> None:
    """`state`, under public keys, as the file `path`; experts' adapters as a file for each, NAME_high_noise and NAME_low_noise, whose
    keys do not name the expert, unless the job's network has split_multistage_loras off."""
    if not model.is_multistage or not getattr(model.network.network_config, "split_multistage_loras", True):
        save_tensors(state, path, metadata)
        return
    for ending, part in zip(ENDINGS, _split(model, state), strict=True):
        if part:
            save_tensors(part, path.with_stem(path.stem + ending), metadata)


def load_lora(model: Any, path: Path) -> dict[str, torch.Tensor]:
    """An adapter file under public keys. Of a pair of experts' files, either name gives both. Raises UserError for a file that is no
    adapter, or one of a kind that is not read here."""
    check_adapter_file(path)
    ending = next((ending for ending in ENDINGS if path.stem.endswith(ending)), None)
    if ending is None or not model.is_multistage:
        return load_tensors(path)
    trained = model.trainable_multistage_boundaries
    both = _experts(model)
    state: dict[str, torch.Tensor] = {}
    for stage, (name, own) in enumerate(zip(EXPERTS, ENDINGS, strict=True)):
        file = path.with_stem(path.stem.removesuffix(ending) + own)
        if (both or stage in trained) and file.exists():
            check_adapter_file(file)
            state |= {_named(key, name) if both else key: tensor for key, tensor in load_tensors(file).items()}
    if not state:
        raise UserError(f"{path.name} is for an expert that this model does not train", code="bad_adapter")
    return state


def network_for(model: Any, network: Any, alpha_is_rank: bool = False, start: Path | None = None) -> AdapterNetwork:
    """The fresh adapter that a job's network section asks for, on a loaded model; with `start`, with the weights of that file. Without
    `only_if_contains` it goes where the architecture says. `alpha_is_rank` leaves linear_alpha and conv_alpha aside, as ai-toolkit
    does but for a LoKr under the old names. Raises UserError for patterns that match no layer and for a file that is of another kind,
    rank or set of layers."""
    root = model.get_model_to_train()
    old_format = network.type == "lokr" and network.old_lokr_format
    alpha_is_rank = alpha_is_rank and not old_format
    made = new_network(
        root,
        network.linear,
        float(network.linear) if alpha_is_rank or network.linear_alpha is None else network.linear_alpha,
        network.only_if_contains or model.get_transformer_block_names() or (),
        network.ignore_if_contains,
        model.target_lora_modules,
        kind=network.type,
        conv=network.conv,
        conv_alpha=None if alpha_is_rank else network.conv_alpha,
        dropout=network.dropout,
        full_rank=network.lokr_full_rank,
        factor=network.lokr_factor,
        old_format=old_format,
        network_config=network,
        device=model.device_torch,
    )
    if start is not None:
        with reading(model, start) as (state, name, num_layers, alphas):
            load_into(made, root, state, name)
            made.applied = Applied(start.name, num_layers, len(made.pairs), len(trainable_layers(root)), alphas)
    return made


def put_on(model: Any, path: Path, device: Any = None) -> AdapterNetwork:
    """The adapter of a file on the model's denoiser, as it was trained; `applied` says on how many layers. Raises UserError, naming the
    file and its keys, if it does not fit."""
    root = model.get_model_to_train()
    with reading(model, path) as (state, name, num_layers, alphas):
        network = network_from_state(root, state, device or model.device_torch, name)
        network.applied = Applied(path.name, num_layers, len(network.pairs), len(trainable_layers(root)), alphas)
        return network


def check(model: Any, path: Path) -> None:
    """Raises UserError as `put_on` does; afterwards the model is as it was."""
    put_on(model, path, "cpu").detach()


@contextlib.contextmanager
def reading(model: Any, path: Path) -> Iterator[tuple[Mapping[str, torch.Tensor], Name, int, str]]:
    """Inside, an adapter file's tensors under our keys, 8-bit floats as fp32; a function that gives for one of these the key in the file;
    how many layers the file names; and words on alphas from outside its tensors. A UserError that is raised inside names the file.
    Raises UserError for numbers that are not finite."""
    try:
        given, alphas = add_outside_alphas(path, model.load_lora(str(path)))
        given = {key: _without_8_bits(tensor) for key, tensor in given.items()}
        check_numbers(given)
        layers = _by_layer(given)
        yield model.convert_lora_weights_before_load(given), lambda key: _key_in_file(model, layers, key), len(layers), alphas
    except UserError as error:
        if str(path) in error.message:
            raise
        raise UserError(f"{path}: {error.message}", code=error.code, hint=error.hint) from None


def _without_8_bits(tensor: torch.Tensor) -> torch.Tensor:
    """torch has no arithmetic for 8-bit floats; each of their values is one of fp32."""
    return tensor.float() if tensor.is_floating_point() and tensor.element_size() == 1 else tensor


def check_numbers(state: Mapping[str, torch.Tensor]) -> None:
    """Raises UserError, naming a key, for tensors with values that are NaN or infinite, without values, or of a form that no adapter has,
    and for an alpha of 0 or below. The alpha of a LoKr whose factors are whole means nothing and is let pass, as its readers do."""
    bad = {}
    for key, tensor in state.items():
        path, _, part = key.rpartition(".")
        if part == "alpha" and tensor.numel() != 1:
            raise UserError(f"the adapter's '{key}' holds {tensor.numel()} numbers, not one", code="bad_adapter")
        if part != "alpha" and (tensor.ndim < 2 or not tensor.numel()):
            raise UserError(f"the adapter's '{key}' has the shape {tuple(tensor.shape)}, which is no matrix", code="bad_adapter")
        unused = part == "alpha" and {f"{path}.lokr_w1", f"{path}.lokr_w2"} <= set(state)
        if type(tensor) is torch.Tensor and not unused and (count := int((~tensor.float().isfinite()).sum())):
            bad[key] = f"{count} of {tensor.numel()}"
        elif type(tensor) is torch.Tensor and part == "alpha" and not unused and float(tensor) <= 0:
            why = "and the layer would change nothing" if float(tensor) == 0 else "and the layer would undo what was trained"
            raise UserError(f"the adapter's '{key}' is {float(tensor):g}, {why}; it has to be above 0", code="bad_adapter")
    if bad:
        key = next(iter(bad))
        more = f", and {len(bad) - 1} more of its {len(state)} tensors have such" if len(bad) > 1 else ""
        raise UserError(
            f"{bad[key]} numbers in the adapter's '{key}' are not finite (NaN or infinite){more}; the file is damaged, or its training "
            "broke down; take an earlier save",
            code="bad_adapter",
        )


def _by_layer(state: Mapping[str, torch.Tensor]) -> dict[str, dict[str, torch.Tensor]]:
    """A file's tensors by the layers that it names."""
    found: dict[str, dict[str, torch.Tensor]] = {}
    for key, tensor in state.items():
        found.setdefault(re.sub(r"\.(lora_\w+|lokr_\w+|alpha)\b.*", "", key), {})[key] = tensor
    return found


def _key_in_file(model: Any, layers: Mapping[str, Mapping[str, torch.Tensor]], ours: str) -> str:
    """The key, or one of the keys, that our key was made of: looked for layer by layer, for messages only."""
    for state in layers.values():
        with contextlib.suppress(Exception):  # a layer alone need not make sense to every architecture
            if ours in (made := model.convert_lora_weights_before_load(state)):
                same = [key for key, tensor in state.items() if tensor is made[ours]]
                return next(iter([*same, *state]))
    return ours


def put_training_adapter(model: Any, path: Path) -> AdapterNetwork:
    """The adapter merged into the frozen weights, and at rest: with a multiplier of -1 it takes itself off again."""
    network = put_on(model, path)
    merge_into_base(network)
    network.multiplier = 0.0
    return network.requires_grad_(False)


def _experts(model: Any) -> bool:
    """Whether adapters go on a denoiser that holds both experts; else on the one that is trained."""
    return all(hasattr(model.get_model_to_train(), name) for name in EXPERTS)


def _split(model: Any, state: Mapping[str, torch.Tensor]) -> list[dict[str, torch.Tensor]]:
    """By stage, the keys without the expert's name."""
    if not _experts(model):
        only = model.trainable_multistage_boundaries[0]
        return [dict(state) if stage == only else {} for stage in range(len(EXPERTS))]
    parts: list[dict[str, torch.Tensor]] = [{} for _ in EXPERTS]
    for key, tensor in state.items():
        stage = next((stage for stage, name in enumerate(EXPERTS) if re.search(rf"[._]{name}[._]", key)), None)
        if stage is None:
            raise UserError(
                f"the adapter's key '{key}' belongs to no expert; turn split_multistage_loras off", code="bad_adapter"
            )
        parts[stage][re.sub(rf"(?<=[._]){EXPERTS[stage]}[._]", "", key, count=1)] = tensor
    return parts


def _named(key: str, name: str) -> str:
    """A key of an expert's file with the expert's name in front of the layer's path."""
    path, is_flat = stripped(key)
    return f"{key.removesuffix(path)}{name}{'_' if is_flat else '.'}{path}"
