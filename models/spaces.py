"""The names that cached encodings are kept under."""

from typing import Any


class SpaceVersion:
    """A text that changes whenever an encoding's numbers do: the model's `arch`, until a class or an instance says another one. Without
    a setter of its own, so that both `self.latent_space_version = "v2"` and a property in a subclass take its place."""

    def __get__(self, model: Any, owner: type) -> Any:
        return self if model is None else model.arch
