"""What is wrong with a value is said in sentences that nobody has to know pydantic for."""

import re
from collections.abc import Iterator
from typing import Any

import pytest

from models import catalog
from models.errors import Problem, SpecError
from models.words import MOST_LISTED

PYDANTIC = re.compile(
    r"Input should|Field required|Extra inputs|String should|List should|Value error|valid (string|number|list)|Dictionary"
)
WRONG: list[Any] = [None, True, 0, 2.5, 10**30, float("inf"), " ", "x" * 20_000, [], [None], {"x": {}}]
TRAIN = {
    "kind": "train",
    "name": "n",
    "model": {"arch": "flux2_klein_4b", "name_or_path": "x"},
    "datasets": [{"folder_path": "x"}],
    "validation": {"dataset": {"folder_path": "y"}},
    "sample": {"samples": [{"prompt": "p"}]},
}
SAMPLE = {
    "kind": "sample",
    "name": "n",
    "model": {"arch": "pocket", "name_or_path": "x"},
    "adapters": [{"path": "a"}],
    "matrix": {"checkpoints": ["c"]},
    "samples": [{"prompt": "p"}],
}


def holders(value: Any) -> Iterator[dict[str, Any]]:
    """Every object inside a job."""
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from holders(inner)
    if isinstance(value, dict):
        yield value


def faults(job: Any) -> list[Problem]:
    try:
        catalog.parse_job(job)
    except SpecError as refused:
        return refused.problems
    return []


@pytest.mark.parametrize("job", [TRAIN, SAMPLE], ids=["train", "sample"])
def test_no_bad_value_of_any_key_is_answered_in_pydantics_words(job: Any) -> None:
    full = catalog.parse_job(job).model_dump(mode="json")
    messages = set()
    for holder in holders(full):
        for key, right in list(holder.items()):
            for wrong in WRONG:
                holder[key] = wrong
                messages |= {problem.message for problem in faults(full)}
            del holder[key]
            messages |= {problem.message for problem in faults(full)}
            holder[key] = right
    assert len(messages) > 50
    assert [said for said in messages if PYDANTIC.search(said) or "does not take" in said] == []


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"train": {"steps": "9"}}, ["/train/steps: must be a whole number, not '9'"]),
        ({"train": {"lr": None}}, ["/train/lr: must be a number, not null"]),
        ({"train": {"lr": 0}}, ["/train/lr: must be more than 0, not 0"]),
        ({"train": {"loss_type": "mes"}}, ["/train/loss_type: must be 'mse', 'mae' or 'huber', not 'mes'"]),
        ({"datasets": []}, ["/datasets: must have at least 1 item, not 0"]),
        ({"datasets": [{"folder_path": 3}]}, ["/datasets/0/folder_path: must be a text, not 3"]),
        ({"datasets": [{"caption_ext": "a b"}]}, [
            "/datasets/0/folder_path: must be given",
            "/datasets/0/caption_ext: must be an extension of at most 16 letters and digits, such as txt, not 'a b'",
        ]),
        ({"train": {"optimizer_kwargs": {"a": None}}}, [
            "/train/optimizer_kwargs/a: must be true or false, a whole number, a number, a text or a list, not null"
        ]),
        ({"network": {"only_if_contains": ["a", ""]}}, ["/network/only_if_contains/1: must not be blank"]),
        ({"network": {"ignore_if_contains": [" "]}}, ["/network/ignore_if_contains/0: must not be blank"]),
        ({"model": {"quantize": True, "quantize_kwargs": {"exclude": [""]}}}, ["/model/quantize_kwargs/exclude/0: must not be blank"]),
        ({"trigger_word": " "}, ["/trigger_word: must not be blank"]),
    ],
)  # fmt: skip
def test_what_a_key_takes_is_said_with_what_was_given(changes: Any, said: list[str]) -> None:
    assert [f"{problem.pointer}: {problem.message}" for problem in faults(catalog.merge(TRAIN, changes))] == said


def test_a_blank_checkpoint_of_a_matrix_is_refused() -> None:
    [fault] = faults({**SAMPLE, "matrix": {"checkpoints": ["a", " "]}})
    assert (fault.pointer, fault.message) == ("/matrix/checkpoints/1", "must not be blank")


def test_what_is_known_is_listed_once_and_not_at_length() -> None:
    found = faults(catalog.merge(TRAIN, {"train": {"xxxxx": 1, "yyyyy": 2, "learing_rate": 3}}))
    assert [problem.message.partition(";")[0] for problem in found] == [
        "unknown key 'xxxxx'", "unknown key 'yyyyy'", "unknown key 'learing_rate'"
    ]  # fmt: skip
    listed = [problem.message for problem in found if "known here" in problem.message]
    assert len(listed) == 1
    assert listed[0].count(", ") == MOST_LISTED - 1
    assert re.search(r" and \d+ more$", listed[0])


def test_only_a_name_like_a_known_one_counts_as_misspelt() -> None:
    wrong = {"train": {"step": 5, "loss_type": "hubr"}, "sample": {"width": 1000}}
    found = {problem.pointer: (problem.suggestion, problem.misspelt) for problem in faults(catalog.merge(TRAIN, wrong))}
    assert found == {"/train/step": ("steps", True), "/train/loss_type": ("huber", True)}
    [size] = faults(catalog.merge(TRAIN, {"sample": {"width": 1000}}))
    assert (size.suggestion, size.misspelt) == ("992", False)
