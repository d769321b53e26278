"""Predictions about a job that only workers can make: its memory, judged against every device, and which of its texts are cut. They are
requested for a plan, and remembered."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from models import budget
from models.data.lengths import Text
from models.errors import Problem
from models.spec import JobSpec
from server.api.shapes import MemoryPlan
from server.store import plans
from server.store.tables import Worker

PENDING = "being worked out; ask again"
MEMORY, LENGTHS = "memory", "texts longer than the text encoder reads"
TEXTS, NUMBERS = ("prompt", "neg"), ("seed", "walk_seed", "fps")
LETTERS = 100  # a prompt that is edited keeps its prediction while its length stays within as many


@dataclass
class Forecast:
    """What is known, what refuses the job, what is to be said beside it, and why nothing is known yet."""

    memory: MemoryPlan | None = None
    problems: list[Problem] = field(default_factory=list)
    warnings: list[Problem] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)


def forecast(spec: JobSpec, summary: dict[str, Any], texts: Sequence[Text], able: Sequence[Worker], ask: bool) -> Forecast:
    """Predict from the answers that are there, and request the others from a worker. A job is refused when it fits no device that can run
    it; not where fewer pictures at once would, which its run does by itself."""
    job = spec.model_dump(mode="json")
    digest = plans.digest_of(_about_memory(job), [dataset["buckets"] for dataset in summary.get("datasets", [])])
    lengths = plans.digest_of({"model": job["model"]}, [[each.pointer, each.name, each.text] for each in texts]) if texts else ""
    known, counted = plans.answer(digest), plans.answer(lengths) if lengths else {"cut": []}
    found = _memory(spec, known, able) if known else Forecast()
    if counted:
        found.warnings += [Problem(note["pointer"], note["message"]) for note in counted.get("cut") or []]
        if "error" in counted:
            found.unknown.append(f"{LENGTHS}: {counted['error']}")
        elif counted["cut"] is None:
            found.unknown.append(f"{LENGTHS}: arch '{spec.model.arch}' shows no limit")
    missing = {MEMORY: digest} if known is None else {}
    missing |= {LENGTHS: lengths} if counted is None else {}
    if missing:
        why = _ask(job, missing, able) if able and ask else "validate the job to have it worked out" if able else "no worker"
        found.unknown += [f"{what}: {why}" for what in missing]
    return found


def _ask(job: dict[str, Any], missing: dict[str, str], able: Sequence[Worker]) -> str:
    """Ask a worker for the answers with these digests. Returns why they are not known yet."""
    newest = max(able, key=lambda worker: worker.seen_at)
    asked = plans.ask(newest.id, missing.get(MEMORY, ""), job, missing.get(LENGTHS, ""))
    return PENDING if asked else "the broker does not answer"


def _memory(spec: JobSpec, known: dict[str, Any], able: Sequence[Worker]) -> Forecast:
    if known.get("refuses"):
        return Forecast(problems=[Problem("", known["error"], known["hint"])])
    if "error" in known:
        return Forecast(unknown=[f"memory: it could not be predicted: {known['error']}"])
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
