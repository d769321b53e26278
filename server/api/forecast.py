"""A job's memory as workers predict it: asked for when a plan is looked at, remembered, and judged against every device."""

from collections.abc import Sequence
from typing import Any

from models import budget
from models.errors import Problem
from models.spec import TrainSpec
from server.api.shapes import MemoryPlan
from server.store import plans
from server.store.tables import Worker

PENDING = "memory: being worked out; ask again"


def forecast(
    spec: TrainSpec, summary: dict[str, Any], able: Sequence[Worker], ask: bool
) -> tuple[MemoryPlan | None, list[Problem], str | None]:
    """(what is known, what refuses the job, why nothing is known yet). A job is refused when it fits no device that can run it."""
    told = spec.model_dump(mode="json")
    digest = plans.digest_of(told, [dataset["buckets"] for dataset in summary.get("datasets", [])])
    known = plans.answer(digest)
    if known is None:
        if not able:
            return None, [], "memory: no worker"
        if not ask:
            return None, [], "memory: validate the job to have it worked out"
        newest = max(able, key=lambda worker: worker.seen_at)
        asked = plans.ask(newest.id, digest, told)
        return None, [], PENDING if asked else "memory: the broker does not answer"
    if "error" in known:
        return None, [], f"memory: it could not be predicted: {known['error']}"
    made = known["plan"]
    totals = [worker.memory_total for worker in able if worker.memory_total is not None]
    problems = []
    if totals and len(totals) == len(able) and made["peak"] > max(totals):
        problems.append(Problem("/model", budget.too_large(made, max(totals)), budget.advice(made, max(totals))))
    shared = {name: made[name] for name in MemoryPlan.model_fields if name in made}
    return MemoryPlan.model_validate(shared), problems, None
