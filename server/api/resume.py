"""The one rule for going on with an edited job; docs/jobs.md says it for people, and a dry run of a resume shows it for one job.

A run goes on from its newest checkpoint under the edited job. Whatever a step draws or uses follows from (job, step, place in the step)
alone, so from that step on it is as if the job had always been what it is now; what was done stays as it was.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from models import catalog, choices
from models.errors import Problem, SpecError
from models.spec import JobSpec
from server.api.heldout import POINTER as HELD_OUT_SET
from server.api.heldout import Seen, seen_before
from server.api.plan import make_plan
from server.api.saved import Saved, newest
from server.api.shapes import ChangeView, Plan
from server.store import verbs
from server.store.jobs import Conflict, total_steps
from server.store.tables import Job

USE_EMA = "/train/ema_config/use_ema"
FIXED = {
    "/kind": "another kind of job is another job",
    "/model": "the saved weights belong to this model",
    "/network": "the saved weights belong to this adapter",
    "/train/optimizer": "the saved state belongs to this optimizer",
    USE_EMA: "averages begin with the run",
    "/train/as_in_ai_toolkit": "it says what the saved weights mean",
}
MEMORY_ONLY = (
    "/model/low_vram",
    "/model/layer_offloading",
    "/model/layer_offloading_transformer_percent",
    "/model/layer_offloading_text_encoder_percent",
    "/train/gradient_checkpointing",
)
LOW_VRAM = "memory and speed from now on; what is trained stays the same, previews' pixels may differ a little: the VAE may decode in tiles"
RATE = "from step {next} on the rate is what the schedule gives for that step of the total; there is no second warm-up"
HELD_OUT = "pictures that were trained on would be held out"
NEW_CELLS = "new cells are made; those made stay"
SIZE = "from step {next} on; the place in the data is as if every step had been of this size"
EFFECTS = {  # the longest that fits; {next} is the first step (or picture) still to be done
    "/name": "shown in lists, and in the names of files from now on",
    "/train/steps": "the run ends there; " + RATE,
    "/train/lr": RATE,
    "/train/lr_scheduler": RATE,
    "/train/lr_scheduler_params": RATE,
    "/train/lr_warmup_steps": RATE,
    "/train/batch_size": SIZE,
    "/train/gradient_accumulation": SIZE,
    "/train/seed": "from step {next} on noise, order and dropout come from the new seed",
    "/train/skip_first_sample": "concerns only a run that starts from the beginning",
    "/train/disable_sampling": "previews from now on; those made stay",
    USE_EMA: "averages end, and cannot begin again; previews and saves have the weights themselves from step {next} on",
    "/train": "from step {next} on",
    "/trigger_word": "in the captions from step {next} on",
    "/datasets": "from step {next} on pictures come in the new list's order, whichever were seen before",
    "/validation": "values from now on; earlier ones were measured as the job was then",
    "/save": "saves from now on; pinned checkpoints stay",
    "/sample": "previews from now on; those made stay",
}
PICTURES = "in pictures that are still to be made; those made stay"


@dataclass(frozen=True)
class Edit:
    """A job with a patch on it: `fixed` are changes that no resume can make, `problems` what else would refuse it, `taken_in` the places
    of files that a run that goes on does not read again, `notes` what the job's log says of keys that lost their meaning."""

    spec: JobSpec
    saved: Saved
    goes_on_from: int
    changes: list[ChangeView]
    fixed: list[Problem]
    problems: list[Problem]
    warnings: tuple[Problem, ...]
    taken_in: set[str]
    notes: list[str]

    def plan(self, ask_workers: bool = False) -> Plan:
        """The patched job's plan, with what changes. `ask_workers` is as for `make_plan`."""
        plan = make_plan(self.spec, ask_workers)
        needed = [p.model_dump() for p in plan.problems if p.pointer not in self.taken_in]
        problems = [p.as_dict() for p in (*self.fixed, *self.problems)] + needed
        more = {
            "changes": [change.model_dump() for change in self.changes],
            "goes_on_from": self.goes_on_from,
            "warnings": [p.model_dump() for p in plan.warnings] + [p.as_dict() for p in (*self.saved.warnings, *self.warnings)],
            "not_checked": [*self.saved.not_checked, *plan.not_checked],
        }
        return Plan.model_validate({**plan.model_dump(), **more, "problems": problems, "ok": not problems})

    def checked(self) -> Plan:
        """The plan of the job to go on with. Raises Conflict naming the keys that cannot change, SpecError for what else refuses it."""
        if self.fixed:
            named = "; ".join(f"'{problem.pointer}' {problem.message}" for problem in self.fixed)
            raise Conflict(f"{named}; submit a new job instead")
        plan = self.plan()
        if not plan.ok:
            raise SpecError([Problem(**p.model_dump()) for p in plan.problems])
        return plan


def edit(job: Job, patch: dict[str, Any]) -> Edit:
    """The job with this patch; a choice that the patch changes takes along what belonged to it. Raises Conflict when the job's state does
    not allow a resume, SpecError when the patched job is none."""
    verbs.check_rests(job)
    known = catalog.parse_job(job.spec)
    before = known.model_dump(mode="json")  # in full, however old it is
    spec = catalog.parse_job(choices.patched(type(known), before, patch, catalog.merge(job.spec, patch)))
    after = spec.model_dump(mode="json")
    verbs.check_has_more(job, after)
    made = verbs.made(job.id) if job.kind != "train" else set()
    saved = newest(job) if job.kind == "train" else Saved(len(made & verbs.cells(after)))
    start = saved.step
    seen = seen_before(known, spec) if start else Seen()
    gone = choices.dropped(type(known), before, after)
    changed = []
    fixed = []
    for at, old, new in leaves(before, after):
        held_out = start > 0 and (holds_out(at, new) or (seen.trained and _brings_dataset(at, new)))
        said = gone[at].effect if at in gone else effect(job.kind, at, new, start, held_out)
        changed.append(ChangeView(pointer=at, before=old, after=new, effect=said))
        reasons = () if at in gone else _reasons(at, new, after, held_out)
        fixed += [Problem(at, f"cannot change at resume: {reason}") for reason in reasons]
    problems = list(_too_few(after, start)) if job.kind == "train" else []
    notes = [
        f"{at[1:].replace('/', '.')} was {json.dumps(old)}: {gone[at].effect}"
        for at, old, _ in leaves(before, after)
        if at in gone
    ]
    return Edit(spec, saved, start, changed, fixed, problems, seen.warnings, _taken_in(after, start, made), notes)


def leaves(before: Any, after: Any, pointer: str = "") -> Iterator[tuple[str, Any, Any]]:
    """(JSON pointer, old, new) of every key that differs, as deep as both have the same shape; None where there is nothing."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key in {**before, **after}:
            name = str(key).replace("~", "~0").replace("/", "~1")
            yield from leaves(before.get(key), after.get(key), f"{pointer}/{name}")
    elif isinstance(before, list) and isinstance(after, list) and any(isinstance(each, dict) for each in [*before, *after]):
        for place, (old, new) in enumerate(zip_longest(before, after)):
            yield from leaves(old, new, f"{pointer}/{place}")
    elif before != after:
        yield pointer, before, after


def holds_out(pointer: str, after: Any) -> bool:
    """Whether this change keeps back a share of the pictures for validation, or another one than before."""
    if pointer == "/validation" and after:
        return bool(after.get("fraction"))
    return pointer == "/validation/fraction" and bool(after)


def _brings_dataset(pointer: str, after: Any) -> bool:
    if pointer == "/validation":
        return bool(after and after.get("dataset"))
    return pointer in (HELD_OUT_SET, f"{HELD_OUT_SET}/folder_path")


def effect(kind: str, pointer: str, new: Any, start: int, held_out: bool = False) -> str:
    """What changing this key to `new` does to a run that goes on from `start`."""
    reason = HELD_OUT if held_out else _fixed(pointer, new)
    if reason:
        return f"cannot change at resume: {reason}"
    if pointer == "/model/low_vram":
        return LOW_VRAM
    if pointer in MEMORY_ONLY:
        return "memory and speed from now on; the numbers stay the same"
    if pointer.startswith("/matrix"):
        return NEW_CELLS
    if kind != "train" and pointer != "/name":
        return PICTURES
    return (_longest(EFFECTS, pointer) or EFFECTS["/train"]).format(next=start + 1)


def _fixed(pointer: str, new: Any) -> str | None:
    """Why a key can never change to this. Without averages the weights are what they would be if there had never been any."""
    return None if pointer == USE_EMA and new is False else _longest(FIXED, pointer)


def _longest(table: dict[str, str], pointer: str) -> str | None:
    """The entry whose pointer is the longest that this one lies at or under."""
    if pointer in MEMORY_ONLY:
        return None
    fitting = [key for key in table if pointer == key or pointer.startswith(key + "/")]
    return table[max(fitting, key=len)] if fitting else None


def _reasons(pointer: str, new: Any, after: dict[str, Any], held_out: bool) -> Iterator[str]:
    """Why this key cannot change."""
    if held_out:
        yield HELD_OUT
    if reason := _fixed(pointer, new):
        yield reason
    elif pointer == "/train/seed" and after["network"] and after["model"]["name_or_path"] == "random":
        yield "the frozen weights under the adapter come from it"


def _too_few(after: dict[str, Any], start: int) -> Iterator[Problem]:
    if (total := total_steps(after)) < start:
        yield Problem("/train/steps", f"{total} steps are fewer than the {start} that are done", str(start))


def _taken_in(after: dict[str, Any], start: int, made: set[tuple[Any, ...]]) -> set[str]:
    """The places of files that are not needed again: what an adapter began with, and the checkpoints of cells that are all made."""
    if after["kind"] == "train":
        return {"/network/pretrained_lora_path"} if start else set()
    compared = (after["matrix"] or {}).get("checkpoints", [])
    missing = {checkpoint for checkpoint, *_ in verbs.cells(after) - made}
    return {f"/matrix/checkpoints/{place}" for place, given in enumerate(compared) if given not in missing}
