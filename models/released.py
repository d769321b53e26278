"""Parts of a loaded model that were released because everything was encoded, and how one of them comes back alone.

The loaders of `models.components` leave on each part how it was made, its recipe. A part without one (a class from elsewhere that reads
its weights with functions of its own), or one that does not come back as it was, means that the whole model is loaded again: `NotAlone`.
"""

import hashlib
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Self

import torch
from torch import nn

NAMES: Mapping[str, str] = {"text_encoder": "text encoder", "vae": "VAE"}  # the parts, as people call them
RECIPE, ABOUT = "_safelight_recipe", "_safelight_about"
PLAIN = (bool, int, float, str, type(None))


class NotAlone(Exception):
    """A released part is needed, and cannot be loaded without the rest of its model; the text says why. For `worker.run`, which loads
    the whole model and begins again."""


class Absent(nn.Module):
    """Stands where a part was that was released: code that only looks at its dtype, device or config finds them."""

    def __init__(self, part: nn.Module, name: str) -> None:
        super().__init__()
        first = next(part.parameters(), None)
        given = getattr(part, "dtype", None) or (first.dtype if first is not None else torch.float32)
        self.dtype: torch.dtype = given
        self.device = torch.device(getattr(part, "device", "cpu"))
        self.name, self.config = name, getattr(part, "config", None)
        self.recipe: Callable[[], nn.Module] | None = vars(part).get(RECIPE)
        self.about: str | None = vars(part).get(ABOUT)

    def to(self, *args: Any, **kwargs: Any) -> Self:
        device, dtype, *_ = torch._C._nn._parse_to(*args, **kwargs)
        self.device, self.dtype = device or self.device, dtype or self.dtype
        return self

    def forward(self, *_: Any, **__: Any) -> Any:
        raise RuntimeError(f"the model's {self.name} was released once everything was encoded, and now something calls it")

    encode = decode = forward


def with_recipe(part: Any, load: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Record on `part` that `load(*args, **kwargs)` makes it again, from the very same files. Returns the part."""
    vars(part)[RECIPE] = partial(load, *args, **kwargs)
    return part


def parts_of(model: Any, name: str) -> list[nn.Module]:
    """The modules that are the model's `text_encoder` (most have one, some a list of them) or `vae`."""
    part = getattr(model, name)
    return [each for each in (part if isinstance(part, list | tuple) else [part]) if isinstance(each, nn.Module)]


def remember(model: Any) -> None:
    """Record of each part that has a recipe its description, now that the model is loaded whole."""
    for name in NAMES:
        for part in parts_of(model, name):
            if RECIPE in vars(part):
                vars(part)[ABOUT] = description(part)


def put_in_place(model: Any, made: Mapping[int, nn.Module]) -> None:
    """Put each of the new modules where the one with that id was, in the model and in its pipeline."""
    for owner in (model, getattr(model, "pipeline", None)):
        for key, value in list(getattr(owner, "__dict__", {}).items()):
            if id(value) in made:
                setattr(owner, key, made[id(value)])
            elif isinstance(value, list) and any(id(each) in made for each in value):
                value[:] = [made.get(id(each), each) for each in value]


def load_again(model: Any, name: str, device: torch.device) -> list[nn.Module]:
    """Make the released part by its recipe, on `device`, and put it in its place. Raises NotAlone where there is no recipe, and what
    the loader raises."""
    stubs = parts_of(model, name)
    recipes = {id(stub): stub.recipe for stub in stubs if isinstance(stub, Absent) and stub.recipe is not None}
    if not stubs or len(recipes) < len(stubs):
        raise NotAlone(f"its class {type(model).__name__} cannot load the {NAMES[name]} alone")
    made = {key: recipe().to(device) for key, recipe in recipes.items()}
    put_in_place(model, made)
    return [made[id(stub)] for stub in stubs]


def description(part: nn.Module) -> str:
    """Digest all of a part but the values of its weights: its modules with their hooks and settings, and each weight's
    name, shape and dtype. What an architecture changed after its loader returned shows here."""
    facts = [
        (
            path,
            type(module).__qualname__,
            sorted((key, value if isinstance(value, PLAIN) else len(value) if isinstance(value, dict) else None)
                   for key, value in vars(module).items() if key not in (RECIPE, ABOUT)),
            [(key, str(tensor.dtype), tuple(tensor.shape))
             for own in (module._parameters, module._buffers) for key, tensor in own.items() if tensor is not None],
        )
        for path, module in part.named_modules()
    ]  # fmt: skip
    return hashlib.sha256(repr(facts).encode()).hexdigest()
