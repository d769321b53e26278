"""Calls that hand over only what a function names: an architecture declares what it wants to receive.

Asked at every training step, so a function's signature is looked at once.
"""

import inspect
from collections.abc import Callable
from types import FunctionType
from typing import Any
from weakref import WeakKeyDictionary

_known: WeakKeyDictionary[FunctionType, tuple[frozenset[str], bool]] = WeakKeyDictionary()  # weak: a closure may hold a model


def declares(function: Callable[..., Any], name: str) -> bool:
    """Whether the function has a parameter of this name; a bare `**kwargs` has none."""
    return name in _parameters(function)[0]


def call_declared(function: Callable[..., Any], **arguments: Any) -> Any:
    """Call with those keyword arguments that the function names; all of them if it takes `**kwargs`."""
    names, takes_all = _parameters(function)
    return function(**(arguments if takes_all else {name: value for name, value in arguments.items() if name in names}))


def _parameters(function: Callable[..., Any]) -> tuple[frozenset[str], bool]:
    """(names, whether there is a `**kwargs`)."""
    plain = getattr(function, "__func__", function)
    if isinstance(plain, FunctionType) and (seen := _known.get(plain)) is not None:
        return seen
    parameters = inspect.signature(plain).parameters
    catching = [name for name, each in parameters.items() if each.kind is inspect.Parameter.VAR_KEYWORD]
    found = frozenset(parameters) - set(catching), bool(catching)
    if isinstance(plain, FunctionType):
        _known[plain] = found
    return found
