"""/v1/jobs: ask for a job, look at it, steer it."""

from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Path, Query, Response
from fastapi.responses import JSONResponse
from pydantic import Field, StringConstraints

from models import catalog
from models.errors import Problem, SpecError
from server.api.deps import LARGEST, StrictJson, StrictJsonOrNone, announce
from server.api.extensions import refresh
from server.api.http import Route
from server.api.plan import make_plan
from server.api.resume import edit
from server.api.shapes import (
    CancelMany,
    FileList,
    JobChange,
    JobList,
    JobView,
    PinChange,
    Plan,
    ProblemBody,
    ProblemItem,
    file_view,
    job_view,
)
from server.store import jobs, verbs
from server.store.tables import Job, Status

router = APIRouter(prefix="/v1/jobs", tags=["jobs"], route_class=Route)

SPEC_BODY = {
    "requestBody": {"required": True, "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Job-Spec"}}}}
}
PATCH_BODY = {"requestBody": {"content": {"application/json": {"schema": {"type": "object", "additionalProperties": True}}}}}
BAD = {"model": ProblemBody, "content": {"application/problem+json": {}}}
ERRORS: dict[int | str, dict[str, Any]] = {404: BAD, 409: BAD, 422: BAD}
CATALOGUE = [Depends(refresh)]
Key = Annotated[str, StringConstraints(min_length=1, max_length=255)]


class QueuedJob(JobView):
    """A job that was just queued, with what its plan warns of; of one that an earlier request made, without."""

    warnings: list[ProblemItem] = Field(default_factory=list)


@router.post("", status_code=202, response_model=QueuedJob, responses=ERRORS, openapi_extra=SPEC_BODY, dependencies=CATALOGUE)
def create(body: StrictJson, response: Response, idempotency_key: Annotated[Key | None, Header()] = None) -> QueuedJob:
    """Queue a job. The same Idempotency-Key with the same body gives the same job again, also after a restart."""
    job = jobs.made_with(idempotency_key, body) if idempotency_key else None
    warnings: list[ProblemItem] = []
    if job is None:
        spec = catalog.parse_job(body)
        plan = make_plan(spec)
        if not plan.ok:
            raise SpecError([Problem(**p.model_dump()) for p in plan.problems])
        job, told = jobs.add(spec.model_dump(mode="json"), idempotency_key, body)
        announce(told, ring=True)
        warnings = plan.warnings
    response.headers["Location"] = f"/v1/jobs/{job.id}"
    return _queued(job.id, warnings)


@router.post("/validate", response_model=Plan, responses={422: BAD}, openapi_extra=SPEC_BODY, dependencies=CATALOGUE)
def validate(body: StrictJson) -> Plan:
    """What this job would do, before any GPU time; nothing is stored. 422 only when the body is no job at all."""
    if not isinstance(body, dict) or not isinstance(body.get("kind"), str):
        catalog.parse_job(body)  # raises what a POST would
    return make_plan(body, ask_workers=True)


@router.get("", response_model=JobList)
def listing(
    status: Annotated[list[Status] | None, Query()] = None,
    kind: str | None = None,
    q: str | None = None,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
    cursor: Annotated[int | None, Query(ge=0, le=LARGEST)] = None,
) -> JobList:
    """Jobs, newest first. `status` may stand several times; `q` is looked for in name, id and arch."""
    rows, following = jobs.listing(status or (), kind, q, limit, cursor)
    return JobList(jobs=_views(rows), next_cursor=str(following) if following else None)


@router.post("/cancel", response_model=JobList)
def cancel_queued(body: CancelMany) -> JobList:
    """Clear the queue (`{"status": "queued"}`); running jobs are not touched."""
    if body.status != Status.QUEUED:
        raise SpecError([Problem("/status", f"only 'queued' jobs are canceled together, not '{body.status}'", "queued")])
    told = verbs.cancel_queued()
    announce(told)
    return JobList(jobs=[_view(job_id) for job_id in dict.fromkeys(event.job_id for event in told)], next_cursor=None)


@router.get("/{job_id}", response_model=JobView, responses={404: BAD})
def read(job_id: str) -> JobView:
    return _view(job_id)


@router.patch("/{job_id}", response_model=JobView, responses=ERRORS)
def change(job_id: str, body: JobChange) -> JobView:
    """Name, priority (higher starts first) and labels."""
    _, told = verbs.change(job_id, body.name, body.priority, body.labels)
    announce(told)
    return _view(job_id)


@router.delete("/{job_id}", status_code=204, responses=ERRORS)
def remove(job_id: str, files: bool = False) -> None:
    """Delete an ended or queued job, with `files=true` its folder too. 409 while it is active."""
    verbs.remove(job_id, files)


@router.post("/{job_id}/cancel", status_code=202, response_model=JobView, responses=ERRORS)
def cancel(job_id: str) -> JobView:
    """Stop within one unit of work; the work is saved, with weights to use."""
    _, told = verbs.cancel(job_id)
    announce(told)
    return _view(job_id)


@router.post("/{job_id}/pause", status_code=202, response_model=JobView, responses=ERRORS)
def pause(job_id: str) -> JobView:
    """Stop within one unit of work, save, and give the device's memory back; `resume` goes on."""
    _, told = verbs.pause(job_id)
    announce(told)
    return _view(job_id)


@router.post("/{job_id}/sample", status_code=202, response_model=JobView, responses=ERRORS)
def sample_now(job_id: str) -> JobView:
    """Make previews within one unit of work, or as soon as training has begun. Presses before that are answered together."""
    _, told = verbs.ask(job_id, "sample")
    announce(told)
    return _view(job_id)


@router.post("/{job_id}/checkpoint", status_code=202, response_model=JobView, responses=ERRORS)
def checkpoint_now(job_id: str) -> JobView:
    """Keep a checkpoint, with weights to use, within one unit of work, or as soon as training has begun."""
    _, told = verbs.ask(job_id, "checkpoint")
    announce(told)
    return _view(job_id)


@router.post("/{job_id}/checkpoints/{step}/pin", response_model=FileList, responses=ERRORS)
def pin(job_id: str, step: Annotated[int, Path(ge=0, le=LARGEST)], body: PinChange | None = None) -> FileList:
    """Keep this step's checkpoint whatever `save.max_step_saves_to_keep` says, and do not count it; `{"pinned": false}` lets it go
    again. In any state. The answer is its files."""
    announce(verbs.pin(job_id, step, (body or PinChange()).pinned))
    rows = {row.name: row for row in jobs.job_files(job_id, "weights") if row.step == step}
    return FileList(files=[file_view(row) for row in rows.values()])


@router.post(
    "/{job_id}/resume",
    status_code=202,
    response_model=QueuedJob,
    responses={200: {"model": Plan, "description": "The plan, of a dry run."}, **ERRORS},
    openapi_extra=PATCH_BODY,
    dependencies=CATALOGUE,
)
def resume(job_id: str, body: StrictJsonOrNone, dry_run: bool = False) -> Any:
    """Queue a paused or ended job again; it goes on from its newest checkpoint. The body may change keys of the spec, for instance
    `{"train": {"steps": 3000}}`; what the saved weights depend on cannot change. With `dry_run`, nothing is queued: the plan says
    what would change and from which step the job would go on."""
    job = jobs.get(job_id)
    if not isinstance(body, dict | None):
        raise SpecError([Problem("", "a patch is a JSON object")])
    if dry_run:
        return JSONResponse(edit(job, body or {}).plan(ask_workers=True).model_dump(mode="json"))
    edited = edit(job, body) if body else None
    plan = edited.checked() if edited else None
    _, told = verbs.resume(job_id, plan.spec if plan else None, edited.notes if edited else ())
    announce(told, ring=True)
    return _queued(job_id, plan.warnings if plan else [])


def _view(job_id: str) -> JobView:
    return _views([jobs.get(job_id)])[0]


def _queued(job_id: str, warnings: Sequence[ProblemItem]) -> QueuedJob:
    return QueuedJob(**dict(_view(job_id)), warnings=list(warnings))


def _views(rows: Sequence[Job]) -> list[JobView]:
    saved = verbs.saved_steps(rows)
    places = jobs.queue_positions() if any(row.status == Status.QUEUED for row in rows) else {}
    return [job_view(row, saved[row.id], places.get(row.id)) for row in rows]
