"""A job's memory as workers predict it: asked for when a plan is looked at, remembered, and judged against every device."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from models import budget
from models.errors import Problem
from models.spec import JobSpec
from server.api.shapes import MemoryPlan
from server.store import plans
from server.store.tables import Worker

PENDING = "memory: being worked out; ask again"
TEXTS, NUMBERS = ("prompt", "neg"), ("seed", "walk_seed", "fps")
LETTERS = 100  # a prompt that is edited keeps its prediction while its length stays within as many


@dataclass
class Forecast:
    """What is known, what refuses the job, what is to be said beside it, and why nothing is known yet."""

    memory: MemoryPlan | None = None
    problems: list[Problem] = field(default_factory=list)
    warnings: list[Problem] = field(default_factory=list)
    unknown: str | None = None


def forecast(spec: JobSpec, summary: dict[str, Any], able: Sequence[Worker], ask: bool) -> Forecast:
    """A job is refused when it fits no device that can run it; not where fewer pictures at once would, which its run does by itself."""
    told = spec.model_dump(mode="json")
    digest = plans.digest_of(_about_memory(told), [dataset["buckets"] for dataset in summary.get("datasets", [])])
    known = plans.answer(digest)
    if known is None:
        if not able:
            return Forecast(unknown="memory: no worker")
        if not ask:
            return Forecast(unknown="memory: validate the job to have it worked out")
        newest = max(able, key=lambda worker: worker.seen_at)
        asked = plans.ask(newest.id, digest, told)
        return Forecast(unknown=PENDING if asked else "memory: the broker does not answer")
    if known.get("refuses"):
        return Forecast(problems=[Problem("", known["error"], known["hint"])])
    if "error" in known:
        return Forecast(unknown=f"memory: it could not be predicted: {known['error']}")
    made = known["plan"]
    found = Forecast(MemoryPlan.model_validate({name: made[name] for name in MemoryPlan.model_fields if name in made}))
    totals = [worker.memory_total for worker in able if worker.memory_total is not None]
    if totals and len(totals) == len(able) and made["peak"] > (most := max(totals)):
        count = budget.fewer_at_once(made, most)
        pointer, found_so = ("/sample/batch_size", found.warnings) if count else ("/model", found.problems)
        going_on = f"; it is run with {count} at once" if count else ""
        advice = budget.advice(made, most) or budget.general_advice(spec)
        found_so.append(Problem(pointer, budget.too_large(made, most) + going_on, advice))
    return found


def _about_memory(told: Any) -> Any:
    """The job without what changes no memory, so that what is known of it outlives an edit: seeds, and the words of prompts."""
    if isinstance(told, list):
        return [_about_memory(each) for each in told]
    if not isinstance(told, dict):
        return told
    return {
        key: -(-len(value) // LETTERS) if key in TEXTS and isinstance(value, str) else _about_memory(value)
        for key, value in told.items()
        if key not in NUMBERS
    }
