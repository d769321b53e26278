"""All texts that a job has encoded, and in words which of them are longer than a text encoder reads. Torch-free."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from models.data.captions import CaptionRule, with_trigger
from models.data.datasets import Survey, every_dataset
from models.data.trigger import filled
from models.errors import Problem
from models.spec import JobSpec, SampleSpec, TrainSpec, prompt_texts
from models.words import named


@dataclass(frozen=True)
class Text:
    """`pointer` is its place in the job, `name` the file whose caption it is; "" for a prompt."""

    pointer: str
    name: str
    text: str


@dataclass(frozen=True)
class Cut:
    """A text of so many tokens, of which the text encoder reads fewer. Its own marks and a template's count as tokens too."""

    tokens: int
    read: int


def job_texts(spec: JobSpec, surveys: Sequence[Survey]) -> list[Text]:
    """Captions with their trigger word, by the surveys of `every_dataset`, and prompts; no empty ones."""
    found = []
    if isinstance(spec, TrainSpec):
        for (pointer, dataset), survey in zip(every_dataset(spec), surveys, strict=True):
            rule = CaptionRule.of(spec, dataset)
            found += [Text(f"{pointer}/folder_path", item.name, with_trigger(item.caption, rule)) for item in survey.items]
    word = spec.trigger_word if isinstance(spec, TrainSpec | SampleSpec) else None
    found += [Text(pointer, "", filled(text, word)) for pointer, text in prompt_texts(spec).items()]
    return [each for each in found if each.text]


def cut_notes(texts: Sequence[Text], cut: Mapping[str, Cut]) -> Iterator[Problem]:
    """A line for each dataset that has captions among `cut`, and for each such prompt."""
    long = [each for each in texts if each.text in cut]
    for pointer in dict.fromkeys(each.pointer for each in long if each.name):
        captions = [each for each in long if each.pointer == pointer]
        first = named([f"{each.name} ({cut[each.text].tokens})" for each in captions])
        read = cut[captions[0].text].read
        yield Problem(
            pointer, f"captions of more tokens than the {read} that the text encoder reads, which cuts them there: {first}"
        )
    for each in long:
        if not each.name:
            found = cut[each.text]
            message = (
                f"a prompt of {found.tokens} tokens, of which the text encoder reads the first {found.read}: {each.text!r:.60}"
            )
            yield Problem(each.pointer, message)
