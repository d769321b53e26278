"""The trigger word in captions and prompts: where its placeholder stands, and whether a text holds it. Torch-free.

A word counts where it stands alone, in any case: `ohm` is in `Ohm, at sea` and in `ohm's`, not in `ohmmeter`.
"""

import re
import unicodedata
from functools import cache

PLACEHOLDER = re.compile(r"\[\s*(?:trigger|name)\s*\]", re.IGNORECASE)


def filled(text: str, word: str | None) -> str:
    """The text with the word in place of each placeholder; unchanged without a word."""
    return PLACEHOLDER.sub(lambda _: word, text) if word else text


def placeholder_in(text: str) -> str | None:
    """The first placeholder as it is written there."""
    found = PLACEHOLDER.search(text)
    return found[0] if found else None


def has_word(text: str, word: str) -> bool:
    return any(_stands_alone(text, found) for found in _pattern(word).finditer(text))


def replace_word(text: str, word: str, other: str) -> str:
    """The text with `other` wherever the word stands alone."""
    return _pattern(word).sub(lambda found: other if _stands_alone(text, found) else found[0], text)


@cache
def _pattern(word: str) -> re.Pattern[str]:
    """The word with any space between its parts, its accents as one character with the letter or as two."""
    forms = dict.fromkeys(unicodedata.normalize(form, word) for form in ("NFC", "NFD"))
    return re.compile("|".join(r"\s+".join(map(re.escape, form.split())) for form in forms), re.IGNORECASE)


def _stands_alone(text: str, found: re.Match[str]) -> bool:
    begin, end = found.span()
    runs_on_before = _joins(text[begin - 1 : begin]) and _joins(text[begin : begin + 1])
    return not (runs_on_before or (_joins(text[end - 1 : end]) and _joins(text[end : end + 1])))


def _joins(char: str) -> bool:
    """Whether a neighbour makes one word with this character. The wide letters of East Asia do not: words there have no space between."""
    if not char or unicodedata.east_asian_width(char) in "WF":
        return False
    return char == "_" or unicodedata.category(char)[0] in "LMN"
