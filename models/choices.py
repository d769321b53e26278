"""Keys that belong to a choice: `when` says which values of other keys give them a meaning, and another choice takes it away."""

import copy
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, get_args

from pydantic_core import PydanticUndefined

from models.spec import Spec, hints


@dataclass(frozen=True)
class Scope:
    """An object of a job as JSON, with its declaration, and the object around it."""

    declared: type[Spec]
    value: Mapping[str, Any]
    around: "Scope | None" = None

    def get(self, key: str) -> Any:
        """The key's value, its default where there is none; "../key" is one of the object around."""
        if key.startswith("../"):
            return self.around.get(key[3:]) if self.around else None
        return self.value.get(key, default_of(self.declared, key))

    def meets(self, when: Mapping[str, Any]) -> bool:
        return all(self.get(key) in values for key, values in when.items())


@dataclass(frozen=True)
class Dropped:
    """A key at `path` that lost its meaning, since the key `choice`, named with those around it, has another value now."""

    path: tuple[str | int, ...]
    choice: str
    chosen: Any

    @property
    def effect(self) -> str:
        chosen = self.chosen if isinstance(self.chosen, str) else json.dumps(self.chosen)
        return f"back to its default, since it means nothing with {self.choice} {chosen}"

    @property
    def pointer(self) -> str:
        return "".join(f"/{part}" for part in self.path)


def patched(declared: type[Spec], before: Mapping[str, Any], patch: Any, after: Any) -> Any:
    """`after`, which is `before` with the patch, where each key that lost its meaning by the patch is at its default again, unless the
    patch itself sets it: that is for the check to refuse."""
    after = copy.deepcopy(after)
    while named := [each for each in lost(declared, before, after) if not _gives(patch, each[0].path)]:
        for each, default in named:  # one that goes back may be another's choice
            _at(after, each.path[:-1])[each.path[-1]] = default
    return after


def dropped(declared: type[Spec], before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Dropped]:
    """By pointer, the keys that went back to their defaults from `before` to `after` because they lost their meaning."""
    return {each.pointer: each for each, _ in _walk(Scope(declared, before), Scope(declared, after), ())}


def lost(declared: type[Spec], before: Mapping[str, Any], after: Any) -> Iterator[tuple[Dropped, Any]]:
    """Each key that has a value of its own in `after`, where it means nothing, although it did in `before`; with its default."""
    for each, default in _walk(Scope(declared, before), Scope(declared, after), ()) if isinstance(after, Mapping) else ():
        if _at(after, each.path) != default:
            yield each, default


def default_of(declared: type[Spec], key: str) -> Any:
    """A key's default as JSON; None for a key that must be given."""
    default = declared.model_fields[key].get_default(call_default_factory=True)
    return default.model_dump(mode="json") if isinstance(default, Spec) else None if default is PydanticUndefined else default


def inner_spec(annotation: Any) -> type[Spec] | None:
    """The Spec inside `S`, `S | None` or `list[S]`."""
    for candidate in (annotation, *get_args(annotation)):
        if isinstance(candidate, type) and issubclass(candidate, Spec):
            return candidate
    return None


def _walk(before: Scope, after: Scope, path: tuple[str | int, ...]) -> Iterator[tuple[Dropped, Any]]:
    """The keys, with their defaults, whose condition is met before and not after."""
    for key, info in after.declared.model_fields.items():
        when = hints(info).get("when", {})
        if when and key in after.value and before.meets(when) and not after.meets(when):
            choice = next(other for other, values in when.items() if after.get(other) not in values)
            yield Dropped((*path, key), _named(choice, path), after.get(choice)), default_of(after.declared, key)
        elif inner := inner_spec(info.annotation):
            old, new = before.value.get(key), after.value.get(key)
            pairs = zip(old, new, strict=False) if isinstance(old, list) and isinstance(new, list) else [(old, new)]
            for place, (was, now) in enumerate(pairs):
                if isinstance(was, Mapping) and isinstance(now, Mapping):
                    at = (*path, key, place) if isinstance(new, list) else (*path, key)
                    yield from _walk(Scope(inner, was, before), Scope(inner, now, after), at)


def _named(choice: str, path: tuple[str | int, ...]) -> str:
    """The key that a `when` names as seen from an object at `path`, with the keys around it."""
    if choice.startswith("../"):
        path = path[: -2 if isinstance(path[-1], int) else -1]
    return ".".join(map(str, (*path, choice.removeprefix("../"))))


def _gives(patch: Any, path: tuple[Any, ...]) -> bool:
    for part in path:
        inside = part in patch if isinstance(patch, Mapping) else isinstance(patch, list) and part in range(len(patch))
        if not inside:
            return False
        patch = patch[part]
    return True


def _at(value: Any, path: tuple[str | int, ...]) -> Any:
    for part in path:
        value = value[part]
    return value
