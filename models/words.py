"""What pydantic finds wrong, in plain sentences: what the key takes, and what was given."""

import difflib
import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pydantic.fields import FieldInfo

from models.errors import Problem

NAMED = 5  # names, or causes, in one message before it says "and N more"
MOST_LISTED = 12  # known names in one message
MOST_LETTERS = 60  # of a value that is repeated

NOT_BLANK = r"\S"
EXTENSION = r"^\.?[A-Za-z0-9_-]{1,16}$"
OPTIMIZER = r"^([A-Za-z0-9_]+|[A-Za-z_][\w.]*:[A-Za-z_]\w*)$"
ONE_LINE = r"^[^/\\\x00-\x1f\x7f-\x9f]*$"
TEXTS = {  # what these patterns of a text mean
    NOT_BLANK: "must not be blank",
    EXTENSION: "must be an extension of at most 16 letters and digits, such as txt",
    OPTIMIZER: "must be the name of an optimizer, or package.module:Class",
    ONE_LINE: "must be one line without a slash",
}

KINDS = {
    "bool_type": "true or false", "bool_parsing": "true or false",
    "int_type": "a whole number", "int_parsing": "a whole number", "int_from_float": "a whole number",
    "int_parsing_size": "a whole number of fewer digits",
    "float_type": "a number", "float_parsing": "a number", "finite_number": "a finite number",
    "string_type": "a text", "string_unicode": "a text without half a character", "string_sub_type": "a text",
    "list_type": "a list", "tuple_type": "a list", "set_type": "a list",
    "dict_type": "an object", "model_type": "an object", "model_attributes_type": "an object", "mapping_type": "an object",
    "none_required": "null",
}  # fmt: skip
BOUNDS = {
    "greater_than": "more than {gt}", "greater_than_equal": "at least {ge}", "less_than": "less than {lt}",
    "less_than_equal": "at most {le}", "multiple_of": "a multiple of {multiple_of}", "literal_error": "{expected}",
    "enum": "{expected}",
}  # fmt: skip
LENGTHS = {
    "string_too_short": ("must have at least", "min_length", "character"),
    "string_too_long": ("may have at most", "max_length", "character"),
    "too_short": ("must have at least", "min_length", "item"),
    "too_long": ("may have at most", "max_length", "item"),
}


def problems(errors: Sequence[Any], raw: Any, fields: Any = None) -> list[Problem]:
    """Pydantic's `errors` about `raw` as Problems, one for each place. `fields(place)` are the keys, with their declarations, that the
    object at a place may have; what is known there is listed once. `raw` is None where only the errors are at hand."""
    found = []
    listed: set[tuple[str, ...]] = set()
    for (place, kind), group in itertools.groupby(errors, key=lambda error: _place(error, raw)):
        several = list(group)
        pointer = "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in place)
        known: Mapping[str, FieldInfo] = fields(place[:-1]) if fields and kind == "extra_forbidden" else {}
        meant = _meant(place[-1], known) if known else _choice(several[0])
        message = sentence(several) if kind != "extra_forbidden" else f"unknown key {place[-1]!r}"
        if known and not meant and tuple(known) not in listed:
            listed.add(tuple(known))
            message += f"; known here: {names(known)}"
        found.append(Problem(pointer, message, meant, meant is not None))
    return found


def unknown(pointer: str, message: str, word: Any, known: Iterable[str]) -> Problem:
    """The Problem of a name that is none of those known, with the one most like it."""
    near = nearest(str(word), known)
    return Problem(pointer, message, near, near is not None)


def sentence(errors: Sequence[Any]) -> str:
    """What is wrong with one value; of a value that may be of several kinds, each has its error."""
    error = errors[0]
    kind, about, value = error["type"], error.get("ctx", {}), error["input"]
    takes = list(dict.fromkeys(text for each in errors if (text := _takes(each))))
    if takes:
        return f"must be {_either(takes)}, not {given(value)}"
    if kind == "missing":
        return "must be given"
    if kind == "string_too_short" and about["min_length"] == 1:
        return "must not be empty"
    if kind == "string_pattern_mismatch":
        said = TEXTS.get(about["pattern"], f"must have the form {about['pattern']}")
        return said if about["pattern"] == NOT_BLANK else f"{said}, not {given(value)}"
    if kind in LENGTHS:
        limit, bound, unit = LENGTHS[kind]
        return f"{limit} {about[bound]} {unit}{'' if about[bound] == 1 else 's'}, not {len(value)}"
    if kind == "value_error":
        return str(about["error"])
    if kind == "json_invalid":
        return f"is not JSON: {about['error']}"
    if kind == "option":  # see models.extensions
        return str(error["msg"])
    return f"does not take {given(value)}"


def given(value: Any) -> str:
    """A value as people wrote it, if it is short."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, list | dict):
        return "a list" if isinstance(value, list) else "an object"
    text = repr(value)
    return text if len(text) <= MOST_LETTERS else f"{text[: MOST_LETTERS - 3]}..."


def _either(takes: Sequence[str]) -> str:
    return " or ".join(filter(None, [", ".join(takes[:-1]), takes[-1]]))


def named(texts: Sequence[str], most: int = NAMED, total: int | None = None, between: str = ", ") -> str:
    """The first few of the texts, and how many more there are of `total` (None: of the texts)."""
    more = (len(texts) if total is None else total) - most
    return between.join(texts[:most]) + (f"{between.rstrip(', ')} and {more} more" if more > 0 else "")


def names(known: Iterable[str]) -> str:
    """All known names in a row, or the first where there are many."""
    every = list(known)
    return named(every, MOST_LISTED if len(every) > MOST_LISTED + 1 else len(every))


def nearest(word: str, known: Any) -> str | None:
    """The known word most like `word`, small and capital letters being the same, or None."""
    spelled = {str(each).lower(): each for each in known}
    return spelled.get(next(iter(difflib.get_close_matches(str(word).lower(), list(spelled), n=1, cutoff=0.6)), ""))


def _meant(word: str | int, known: Mapping[str, FieldInfo]) -> str | None:
    """The key most like `word`, or the key whose title is: `learing_rate` means `lr`."""
    titles = {(info.title or key).lower().replace(" ", "_"): key for key, info in known.items()}
    return nearest(str(word), known) or titles.get(nearest(str(word), titles) or "")


def _choice(error: Any) -> str | None:
    """Of a few fixed texts, the one most like the text that was given."""
    fixed = re.findall("'([^']*)'", error["ctx"]["expected"]) if error["type"] == "literal_error" else ()
    return nearest(error["input"], fixed) if isinstance(error["input"], str) else None


def _takes(error: Any) -> str | None:
    kind = error["type"]
    if kind not in BOUNDS:
        return KINDS.get(kind)
    limits = {
        key: int(value) if isinstance(value, float) and value.is_integer() else value for key, value in error["ctx"].items()
    }
    return BOUNDS[kind].format(**limits)


def _place(error: Any, raw: Any) -> tuple[tuple[str | int, ...], str]:
    """Where the value is. Pydantic adds which of several kinds of value it tried; errors of one value share their place, and the kind
    `extra_forbidden` or nothing."""
    place, kind = error["loc"], error["type"]
    if kind in ("missing", "extra_forbidden"):
        return tuple(place), kind
    if raw is None:
        return tuple(place), ""
    depth = 0
    for part in place:
        inside = part in raw if isinstance(raw, dict) else isinstance(raw, list) and isinstance(part, int) and part < len(raw)
        if not inside:
            break
        raw, depth = raw[part], depth + 1
    return tuple(place[:depth]), ""
