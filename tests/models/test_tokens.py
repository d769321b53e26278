"""Which texts a text encoder does not read whole, seen at whichever tokenizers the model's own code calls."""

from typing import Any

import pytest
import torch

from models.base import BaseModel
from models.data.lengths import Cut
from models.prompt_embeds import AdvancedPromptEmbeds
from models.tiny import byte_tokenizer
from models.tokens import cut_texts

SHORT, LONG = 12, 40


class Reader(BaseModel):
    """Its encoder counts its runs; a tokenizer reads one token a letter."""

    runs = 0

    def __init__(self, *limits: int | None) -> None:
        super().__init__("cpu", None, "fp32")
        self.limits = limits
        self.tokenizer = [byte_tokenizer() for _ in limits]

    def get_prompt_embeds(self, prompt: list[str], control_images: Any = None) -> AdvancedPromptEmbeds:
        for tokenizer, limit in zip(self.tokenizer, self.limits, strict=True):
            for text in prompt:
                cutting = {} if limit is None else {"truncation": True, "max_length": limit}
                tokenizer([text], padding="max_length", return_tensors="pt", **cutting)
        self.runs += 1
        return AdvancedPromptEmbeds(text_embeds=[torch.zeros(1, 1) for _ in prompt])


@pytest.mark.parametrize(
    ("limits", "letters", "cut"),
    [
        ([LONG], LONG, None),
        ([LONG], LONG + 1, Cut(LONG + 1, LONG)),
        ([SHORT, LONG], LONG, None),  # the second reads it whole
        ([SHORT, LONG], LONG + 1, Cut(LONG + 1, LONG)),
        ([LONG, SHORT], LONG + 2, Cut(LONG + 2, LONG)),
    ],
)
def test_a_text_is_cut_where_no_tokenizer_reads_it_whole(limits, letters, cut) -> None:
    model = Reader(*limits)
    texts = ["a" * letters, "\u00e9" * (letters // 2) + "a" * (letters % 2)]  # as many bytes
    assert cut_texts(model, texts) == (dict.fromkeys(texts, cut) if cut else {})
    assert model.runs == 0


def test_a_model_without_a_limit_that_can_be_seen_is_unknown() -> None:
    assert cut_texts(Reader(None), ["a" * 1000]) is None
    assert cut_texts(BaseModel("cpu", None, "fp32"), ["a"]) is None


def test_a_tokenizer_that_texts_never_meet_is_not_waited_for() -> None:
    model = Reader(LONG)
    model.spare = byte_tokenizer()  # type: ignore[attr-defined]
    assert cut_texts(model, ["a" * 50, "b" * 60]) == {"a" * 50: Cut(50, LONG), "b" * 60: Cut(60, LONG)}
    assert model.runs == 1  # of the empty text, which shows which tokenizers there are
