"""What a folder's own `from_pretrained` finds missing or left over in weights, said where people look.

A folder from elsewhere calls diffusers and transformers itself, and they only warn in logs of their own. Its class cannot name what it
leaves out, as ours do; so the keys are named in the job's log, and the load goes on.
"""

import contextlib
import functools
import logging
from collections.abc import Callable, Collection, Iterator
from typing import Any

from models.base_weights import some_keys

log = logging.getLogger(__name__)


def reporting(load_model: Callable[..., Any]) -> Callable[..., Any]:
    """`load_model`, with a warning for every part that a library loads in it and that is not whole."""

    @functools.wraps(load_model)
    def load(*args: Any, **kwargs: Any) -> Any:
        with _watched():
            return load_model(*args, **kwargs)

    return load


@contextlib.contextmanager
def _watched() -> Iterator[None]:
    """Inside, each library's function that compares keys also logs them; every load by a path passes there."""
    import diffusers
    import transformers

    mixin: Any = diffusers.ModelMixin
    pretrained: Any = transformers.PreTrainedModel
    load = mixin.__dict__["_load_pretrained_model"]
    if load.__func__.__module__ == __name__:  # a class that calls its parent's load_model: the parent's words are enough
        yield
        return
    finish = pretrained.__dict__["_finalize_model_loading"]

    def loaded(cls: Any, model: Any, state: Any, files: Any, where: Any, *args: Any, **kwargs: Any) -> Any:
        found = load.__func__(cls, model, state, files, where, *args, **kwargs)
        _say(where, cls.__name__, found[1], found[2])
        return found

    def finished(model: Any, config: Any, info: Any) -> Any:
        found = finish.__func__(model, config, info)
        if (where := config.pretrained_model_name_or_path) is not None:  # our own loader gives none, and refuses
            _say(where, type(model).__name__, found.missing_keys, found.unexpected_keys)
        return found

    mixin._load_pretrained_model = classmethod(loaded)
    pretrained._finalize_model_loading = staticmethod(finished)
    try:
        yield
    finally:
        mixin._load_pretrained_model = load
        pretrained._finalize_model_loading = finish


def _say(where: Any, owner: str, missing: Collection[str], surplus: Collection[str]) -> None:
    if missing:
        log.warning("%s: %s, so %s begins with random numbers there", where, some_keys(sorted(missing), "missing"), owner)
    if surplus:
        log.warning("%s: %s for %s, and not used", where, some_keys(sorted(surplus), "too many"), owner)
