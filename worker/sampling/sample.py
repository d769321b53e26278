"""Sampling jobs: a model, adapters on it, pictures out. A picture is a step, so an interrupted job goes on where it was.

With a matrix every prompt is made for each checkpoint at each weight. Cells count prompts fastest, then weights, then checkpoints: each
checkpoint is read once, and the model itself never again.
"""

import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from models import memory
from models.adapters import files
from models.adapters.attach import AdapterNetwork
from models.adapters.files import put_on
from models.base import BaseModel
from models.errors import UserError
from models.spec import AdapterRef, SampleSpec
from models.words import named
from worker.data import encoders
from worker.data.encode import Texts, cache_of
from worker.report import PreviewTold, Reporter
from worker.sampling import attempts, preview
from worker.sampling.attempts import Fault, Round


@dataclass(frozen=True)
class Row:
    """The cells of one checkpoint at one weight: a picture for each prompt, the first being number `first`. A job without a matrix is
    one row without a checkpoint."""

    first: int
    checkpoint: str | None = None
    weight: float = 1.0

    def labels(self, index: int) -> dict[str, Any]:
        matrix = {} if self.checkpoint is None else {"checkpoint": self.checkpoint, "weight": self.weight}
        return {"prompt_index": index, **matrix}


def place(record: Mapping[str, Any]) -> tuple[Any, ...]:
    """What tells a picture from the job's others, also when the matrix has grown since and cells are others by number."""
    return record.get("checkpoint"), record.get("weight"), record["prompt_index"]


def sample(
    model: BaseModel,
    spec: SampleSpec,
    adapters: Sequence[Path],
    checkpoints: Sequence[Callable[[], Path]],
    controls: Mapping[str, Path],
    reporter: Reporter,
) -> None:
    """Make the pictures that are not made yet; afterwards the model is as it was. Raises UserError for adapters that cannot be used, before
    anything is made, and at the end if pictures could not be made: the others are kept."""
    known = {place(record): record["step"] for record in reporter.made()}
    done = {
        row.first + index
        for _, rows in blocks(spec, checkpoints)
        for row in rows
        for index in range(len(spec.samples))
        if place(row.labels(index)) in known
    }
    numbers = free_numbers([cell for cell in range(num_pictures(spec)) if cell not in done], set(known.values()))
    failed: dict[int, str] = {}
    with ExitStack() as attached:
        always = [
            (attached.enter_context(adapter(model, path)), reference.weight)
            for path, reference in zip(adapters, spec.adapters, strict=True)
        ]
        for network, _ in always:
            reporter.log(str(network.applied))
        check_checkpoints(model, spec, checkpoints, done)
        memory.encoding(model)
        # A training job that released the text encoder kept what it made of prompts. Of an encoder that is there nobody needs the cache:
        # to find anything in it, all of its weights are read.
        texts = Texts(model, spec, cache_of(model), cached=True) if "text_encoder" in model.absent else None
        pictures = preview.configs(spec.sample, spec.samples, controls, spec.trigger_word)
        wanted = preview.encode(model, pictures, reporter, texts)
        encoders.need(model, "vae", reporter)
        memory.denoising(model)
        wanted = replace(wanted, **preview.shared(spec, spec.sample, controls))
        for find, rows in blocks(spec, checkpoints):
            cells = {row.first + index for row in rows for index in range(len(wanted))}
            if cells <= done:
                continue
            with ExitStack() as for_now:
                own = None if find is None else _put_on(model, str(rows[0].checkpoint), find, for_now)
                if isinstance(own, Fault):
                    reporter.log(
                        f"checkpoint {rows[0].checkpoint} cannot be used: {own.text.rstrip('.')}. The job goes on without it.",
                        "ERROR",
                    )
                    failed |= dict.fromkeys(cells - done, own.text)
                    continue
                if own:
                    reporter.log(str(own.applied))
                for row in rows:
                    wanted.networks = [*always, *([(own, row.weight)] if own else [])]
                    failed |= _make_row(model, spec, wanted, row, done, numbers, reporter)
    if failed:
        raise UserError(
            f"{len(failed)} of {num_pictures(spec)} pictures could not be made: {by_cause(failed)}",
            code="pictures_failed",
            hint="The other pictures are kept; resume tries these again.",
        )


def check_checkpoints(
    model: BaseModel, spec: SampleSpec, checkpoints: Sequence[Callable[[], Path]], done: Collection[int]
) -> None:
    """Look at every file that the matrix still needs, before the first picture is made. Raises UserError naming those that cannot be
    used; one that is gone costs its own cells only, and is found missing again when it is needed."""
    bad = []
    for find, rows in blocks(spec, checkpoints):
        if find is None or all(row.first + index in done for row in rows for index in range(len(spec.samples))):
            continue
        try:
            path = find()
        except UserError:
            continue
        try:
            files.check(model, path)
        except UserError as error:
            if error.code != "missing_file":
                bad.append(by_name(error.message, path, str(rows[0].checkpoint)))
    if bad:
        raise UserError(
            f"{len(bad)} of {len(checkpoints)} checkpoints cannot be used: {named(bad, between='; ')}", code="bad_adapter"
        )


def by_name(said: str, path: Path, given: str) -> str:
    """A message about a file under the name that the job gives it."""
    text = said.replace(str(path), given)
    return text if given in text else f"{given}: {text}"


def num_pictures(spec: SampleSpec) -> int:
    """Of every prompt one, or one for each checkpoint at each weight."""
    return len(spec.samples) * (len(spec.matrix.checkpoints) * len(spec.matrix.weights) if spec.matrix else 1)


def free_numbers(cells: Sequence[int], taken: Collection[int]) -> dict[int, int]:
    """For each cell the number (`step`) that its picture gets: the cell's, counted from 1, or else the next that is free. Two pictures of a
    job never share one, since their files are named by it."""
    after = itertools.count(max([0, *(cell + 1 for cell in cells), *taken]) + 1)
    return {cell: cell + 1 if cell + 1 not in taken else next(after) for cell in cells}


def by_cause(failed: Mapping[int, str]) -> str:
    """`number 2: out of luck; numbers 4 to 6, 9: no such file`: each cause once, with its cells counted from 1."""
    cells: dict[str, list[int]] = {}
    for cell in sorted(failed):
        cells.setdefault(failed[cell], []).append(cell + 1)
    said = [f"number{'s' if len(numbers) > 1 else ''} {named(_runs(numbers))}: {why}" for why, numbers in cells.items()]
    return named(said, between="; ")


def _runs(numbers: Sequence[int]) -> list[str]:
    """Of ascending numbers, `4 to 6` for those that follow each other."""
    ends = [place for place, number in enumerate(numbers) if number + 1 not in numbers[place + 1 : place + 2]]
    starts = [0, *(end + 1 for end in ends)]
    pairs = [(numbers[start], numbers[end]) for start, end in zip(starts, ends, strict=False)]
    return [str(first) if first == last else f"{first} to {last}" for first, last in pairs]


def blocks(spec: SampleSpec, checkpoints: Sequence[Callable[[], Path]]) -> Iterator[tuple[Callable[[], Path] | None, list[Row]]]:
    """What finds each checkpoint's file, with its rows, a row for each weight."""
    if spec.matrix is None:
        yield None, [Row(0)]
        return
    count = 0
    for given, find in zip(spec.matrix.checkpoints, checkpoints, strict=True):
        rows = []
        for weight in spec.matrix.weights:
            rows.append(Row(count, given, weight))
            count += len(spec.samples)
        yield find, rows


@contextmanager
def adapter(model: BaseModel, path: Path) -> Iterator[AdapterNetwork]:
    """Inside, the adapter in this file acts on the model. Raises UserError if it does not fit."""
    network = put_on(model, path)
    try:
        yield network
    finally:
        network.detach()


def recipe(spec: SampleSpec, row: Row, index: int, seed: int) -> dict[str, Any]:
    """A sampling job that makes just this picture, as JSON."""
    of_matrix = [] if row.checkpoint is None else [AdapterRef(path=row.checkpoint, weight=row.weight)]
    prompt = spec.samples[index].model_dump(mode="json", exclude_none=True)
    return {
        "kind": "sample",
        "name": spec.name,
        "trigger_word": spec.trigger_word,
        "model": spec.model.model_dump(mode="json"),
        "adapters": [each.model_dump(mode="json") for each in (*spec.adapters, *of_matrix)],
        "sample": spec.sample.model_dump(mode="json"),
        "samples": [{**prompt, "seed": seed}],
    }


def _put_on(model: BaseModel, given: str, find: Callable[[], Path], for_now: ExitStack) -> AdapterNetwork | Fault:
    """A checkpoint's adapter, on the model until `for_now` ends. Why it cannot be used is told under the name that the job gives it."""
    path = attempts.attempt(find)
    own = path if isinstance(path, Fault) else attempts.attempt(lambda: for_now.enter_context(adapter(model, path)))
    if not isinstance(own, Fault):
        return own
    return replace(own, text=by_name(own.text, path if isinstance(path, Path) else Path(given), given))


def _make_row(
    model: BaseModel, spec: SampleSpec, wanted: Round, row: Row, done: set[int], numbers: Mapping[int, int], reporter: Reporter
) -> dict[int, str]:
    """Make the row's pictures that are not in `done`, which grows by them; the answer is why others could not be made, by cell. `numbers`
    are the pictures', by cell."""
    todo = [index for index in range(len(wanted)) if row.first + index not in done]
    reporter.phase("sampling", len(done), num_pictures(spec))

    def record(index: int) -> dict[str, Any]:
        again = recipe(spec, row, index, wanted.configs[index].seed)
        labels = {"step": numbers[row.first + index], **row.labels(index)}
        applied = [str(network.applied) for network, _ in wanted.networks]
        return preview.record(wanted, index, **labels, adapters=again["adapters"], applied=applied, recipe=again)

    def put(index: int, made: Any) -> PreviewTold:
        return preview.keep(reporter.workdir / "samples", made, record(index))

    def tell(index: int, told: PreviewTold) -> None:
        done.add(row.first + index)
        reporter.preview(told, len(done))

    def name(index: int) -> str:
        at = "" if row.checkpoint is None else f" with {row.checkpoint} at weight {row.weight:g}"
        return f"picture {row.first + index + 1}, {preview.described(wanted, index)}{at},"

    made = attempts.make(model, wanted, todo, reporter, write=put, tell=tell, name=name)
    return {row.first + index: why for index, why in made.items()}
