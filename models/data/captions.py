"""Captions: how they are read from files, and what a step makes of one. Torch-free.

A caption's line breaks become spaces; commas and all else stay byte for byte, unless a dataset shuffles or drops its tags.
"""

import random
from dataclasses import dataclass
from pathlib import Path

from models.data.texts import BadText, is_blank, parse_json, read_text, unusable_in
from models.data.trigger import filled, has_word, replace_word
from models.spec import DatasetSpec, TrainSpec

KEYS = ("caption", "text", "prompt")  # where a JSON object may hold its caption, the first one found counts


def read_caption(path: Path | str) -> str:
    """The caption in `path`, stripped, line breaks as spaces; "" if there is no such file. A .json file is an object with one of
    KEYS. Raises UnicodeDecodeError for other encodings than `read_text` knows (a caption is never guessed), BadText for JSON that is
    broken or has no caption, for control characters, and for files that are too large to be one."""
    try:
        text = read_text(path)
    except FileNotFoundError:
        return ""
    if not str(path).lower().endswith(".json") or not text.strip():
        return one_line(text)
    return one_line(caption_in(parse_json(text)))


def one_line(text: str) -> str:
    """Stripped, with line breaks as spaces; "" for a text in which nothing can be seen."""
    if is_blank(text):
        return ""
    return " ".join(line.strip() for line in text.splitlines() if line.strip())


def caption_in(value: object) -> str:
    """The caption that a JSON object holds; null is an empty one. Raises BadText."""
    if not isinstance(value, dict):
        raise BadText(f"a JSON {type(value).__name__} is no object with a key {', '.join(KEYS)}")
    found = [key for key in KEYS if key in value]
    if not found:
        raise BadText(f"none of the keys {', '.join(KEYS)} is there")
    caption = value[found[0]]
    if caption is not None and not isinstance(caption, str):
        raise BadText(f"{found[0]} is not a text: {caption!r:.40}")
    if unusable := unusable_in(caption or ""):
        raise BadText(f"{found[0]} holds {unusable}")
    return caption or ""


@dataclass(frozen=True)
class CaptionRule:
    """What is done with the captions of a dataset. `kept` are the tags in front that are neither shuffled nor dropped."""

    trigger: str | None = None
    is_reg: bool = False
    dropout: float = 0.0
    shuffle: bool = False
    token_dropout: float = 0.0
    kept: int = 0
    preserved_class: str | None = None

    @classmethod
    def of(cls, spec: TrainSpec, dataset: DatasetSpec) -> "CaptionRule":
        train = spec.train
        return cls(
            trigger=dataset.trigger_word or spec.trigger_word,
            is_reg=dataset.is_reg,
            dropout=dataset.caption_dropout_rate,
            shuffle=dataset.shuffle_tokens,
            token_dropout=dataset.token_dropout_rate,
            kept=dataset.keep_tokens,
            preserved_class=train.diff_output_preservation_class if train.diff_output_preservation else None,
        )

    @property
    def word(self) -> str | None:
        """The trigger word that captions get; a regularisation set's get none."""
        return None if self.is_reg else self.trigger

    @property
    def plain(self) -> "CaptionRule":
        """The same without anything random."""
        return CaptionRule(self.trigger, self.is_reg, preserved_class=self.preserved_class)


def caption_at(caption: str, rule: CaptionRule, seed: int, step: int, place: int) -> str:
    """The caption of the sample at this place of an optimizer step's whole batch: empty where it is dropped, else with its tags
    shuffled and dropped as the rule says, and then with the trigger word."""
    draw = random.Random(f"{seed}/{step}/{place}/caption")
    if draw.random() < rule.dropout:
        return ""
    if rule.shuffle or rule.token_dropout:
        caption = _shaken(caption, rule, draw)
    return with_trigger(caption, rule)


def with_trigger(caption: str, rule: CaptionRule) -> str:
    """The caption with the trigger word in place of [trigger] and [name]; in front, if the text does not hold the word. Without a word
    the text stays as it is: `models.data.problems` refuses a placeholder that nothing fills."""
    if rule.word is None:
        return caption
    caption = filled(caption, rule.word)
    if has_word(caption, rule.word):
        return caption
    return f"{rule.word} {caption}" if caption else rule.word


def every_caption(caption: str, rule: CaptionRule) -> list[str]:
    """All captions that `caption_at` can give, and those that preserving the class compares with; what a cache must hold. Raises
    ValueError where tags are shuffled or dropped, which makes too many."""
    if rule.shuffle or rule.token_dropout:
        raise ValueError("captions whose tags are shuffled or dropped cannot be listed")
    own = [with_trigger(caption, rule), *([""] if rule.dropout else [])]
    return list(dict.fromkeys([*own, *(preservation_caption(each, rule) for each in own)]))


def preservation_caption(caption: str, rule: CaptionRule) -> str:
    """A finished caption with the class in place of the trigger word; unchanged without diff_output_preservation."""
    if rule.preserved_class is None or not rule.word:
        return caption
    return replace_word(caption, rule.word, rule.preserved_class)


def _shaken(caption: str, rule: CaptionRule, draw: random.Random) -> str:
    tags = [tag.strip() for tag in caption.split(",") if tag.strip()]
    kept, loose = tags[: rule.kept], tags[rule.kept :]
    loose = [tag for tag in loose if draw.random() >= rule.token_dropout]
    if rule.shuffle:
        draw.shuffle(loose)
    return ", ".join([*kept, *loose])
