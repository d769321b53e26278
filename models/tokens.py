"""How many tokens of a text a model's text encoder reads, seen at the tokenizers that the model's own code calls with a limit."""

import logging
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from transformers import PreTrainedTokenizerBase

from models.base import BaseModel
from models.data.lengths import Cut

WHOLE = (None, False, "do_not_truncate")  # values of `truncation` with which a tokenizer cuts nothing

log = logging.getLogger(__name__)


class _AllRead(BaseException):
    """Every tokenizer has had the text. Not an Exception, so that no model's code swallows it."""


def cut_texts(model: BaseModel, texts: Iterable[str]) -> dict[str, Cut] | None:
    """Of the texts those that no tokenizer of the model reads whole. None if that cannot be seen: the model's code uses no tokenizer of
    transformers, or none with a limit. The text encoder is not run, so it need not be there."""
    try:
        known = _readings(model, "", {id(each) for each in _tokenizers(model)})
        if not known:
            return None
        longest = max(known.values(), key=lambda reading: reading.read)
        found = {}
        for text in dict.fromkeys(texts):
            if text.isascii() and len(text) + longest.tokens <= longest.read:
                continue  # a token is at least a byte
            readings = _readings(model, text, known.keys()).values()
            if readings and all(each.tokens > each.read for each in readings):
                found[text] = max(readings, key=lambda reading: reading.read)
    except Exception as error:
        log.info("the tokens of texts cannot be counted: %s: %s", type(error).__name__, error)
        return None
    return found


def _readings(model: BaseModel, text: str, wanted: Collection[int]) -> dict[int, Cut]:
    """What each tokenizer makes of the text, by its id; encoding ends as soon as the `wanted` ones have had it."""
    seen: dict[int, Cut] = {}
    with _watching(seen, wanted):
        model.encode_prompt(text)
    return seen


@contextmanager
def _watching(seen: dict[int, Cut], wanted: Collection[int]) -> Iterator[None]:
    real = PreTrainedTokenizerBase.__call__

    def watched(self: Any, text: Any = None, *args: Any, **options: Any) -> Any:
        made = real(self, text, *args, **options)
        if options.get("truncation") not in WHOLE:
            limit = options.get("max_length") or self.model_max_length
            seen[id(self)] = Cut(_count(real, self, text, options), limit)
            if seen.keys() >= set(wanted):
                raise _AllRead
        return made

    PreTrainedTokenizerBase.__call__ = watched  # type: ignore[method-assign]
    try:
        yield
    except _AllRead:
        pass
    finally:
        PreTrainedTokenizerBase.__call__ = real  # type: ignore[method-assign]


def _count(call: Any, tokenizer: Any, text: Any, options: dict[str, Any]) -> int:
    special = options.get("add_special_tokens", True)
    ids = call(tokenizer, text, add_special_tokens=special, truncation=False, padding=False, verbose=False)["input_ids"]
    return len(ids[0] if ids and isinstance(ids[0], list) else ids)


def _tokenizers(model: BaseModel) -> list[PreTrainedTokenizerBase]:
    """Those that the model holds: as attributes, in lists, in processors and in pipelines."""
    held = [each for value in vars(model).values() for each in (value if isinstance(value, list | tuple) else [value])]
    held += [part for each in held for name, part in getattr(each, "__dict__", {}).items() if name.startswith("tokenizer")]
    return [each for each in held if isinstance(each, PreTrainedTokenizerBase)]
