"""/v1/jobs: ask for a job, look at it, steer it."""

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Query, Response
from pydantic import StringConstraints

from models import catalog
from models.errors import Problem, SpecError
from server.api.deps import LARGEST, StrictJson, announce
from server.api.extensions import refresh
from server.api.plan import make_plan
from server.api.shapes import CancelMany, JobChange, JobList, JobView, Plan, ProblemBody, job_view
from server.store import jobs
from server.store.jobs import Conflict
from server.store.tables import Status

router = APIRouter(prefix="/v1/jobs", tags=["jobs"])

SPEC_BODY = {
    "requestBody": {"required": True, "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Job-Spec"}}}}
}
PATCH_BODY = {"requestBody": {"content": {"application/json": {"schema": {"type": "object", "additionalProperties": True}}}}}
BAD = {"model": ProblemBody, "content": {"application/problem+json": {}}}
ERRORS: dict[int | str, dict[str, Any]] = {404: BAD, 409: BAD, 422: BAD}
CATALOGUE = [Depends(refresh)]
Key = Annotated[str, StringConstraints(min_length=1, max_length=255)]


@router.post("", status_code=202, response_model=JobView, responses=ERRORS, openapi_extra=SPEC_BODY, dependencies=CATALOGUE)
def create(body: StrictJson, response: Response, idempotency_key: Annotated[Key | None, Header()] = None) -> JobView:
    """Queue a job. The same Idempotency-Key with the same body gives the same job again, also after a restart."""
    job = jobs.made_with(idempotency_key, body) if idempotency_key else None
    if job is None:
        spec = catalog.parse_job(body)
        plan = make_plan(spec)
        if not plan.ok:
            raise SpecError([Problem(p.pointer, p.message, p.suggestion) for p in plan.problems])
        job, told = jobs.add(spec.model_dump(mode="json"), idempotency_key, body)
        announce(told, ring=True)
    response.headers["Location"] = f"/v1/jobs/{job.id}"
    return _view(job.id)


@router.post("/validate", response_model=Plan, responses={422: BAD}, openapi_extra=SPEC_BODY, dependencies=CATALOGUE)
def validate(body: StrictJson) -> Plan:
    """What this job would do, before any GPU time; nothing is stored. 422 only when the body is no job at all."""
    if not isinstance(body, dict) or not isinstance(body.get("kind"), str):
        raise SpecError([Problem("" if not isinstance(body, dict) else "/kind", "a job is a JSON object with a kind")])
    return make_plan(body)


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
    places = jobs.queue_positions()
    return JobList(jobs=[job_view(row, places.get(row.id)) for row in rows], next_cursor=str(following) if following else None)


@router.post("/cancel", response_model=JobList)
def cancel_queued(body: CancelMany) -> JobList:
    """Clear the queue (`{"status": "queued"}`); running jobs are not touched."""
    if body.status != Status.QUEUED:
        raise SpecError([Problem("/status", f"only 'queued' jobs are canceled together, not '{body.status}'", "queued")])
    told = jobs.cancel_queued()
    announce(told)
    return JobList(jobs=[_view(job_id) for job_id in dict.fromkeys(event.job_id for event in told)], next_cursor=None)


@router.get("/{job_id}", response_model=JobView, responses={404: BAD})
def read(job_id: str) -> JobView:
    return _view(job_id)


@router.patch("/{job_id}", response_model=JobView, responses=ERRORS)
def change(job_id: str, body: JobChange) -> JobView:
    """Name, priority (higher starts first) and labels."""
    _, told = jobs.change(job_id, body.name, body.priority, body.labels)
    announce(told)
    return _view(job_id)


@router.delete("/{job_id}", status_code=204, responses=ERRORS)
def remove(job_id: str, files: bool = False) -> None:
    """Delete an ended or queued job, with `files=true` its folder too. 409 while it is active."""
    jobs.remove(job_id, files)


@router.post("/{job_id}/cancel", status_code=202, response_model=JobView, responses=ERRORS)
def cancel(job_id: str) -> JobView:
    """Stop within one unit of work; the work is saved."""
    _, told = jobs.cancel(job_id)
    announce(told)
    return _view(job_id)


@router.post(
    "/{job_id}/resume",
    status_code=202,
    response_model=JobView,
    responses=ERRORS,
    openapi_extra=PATCH_BODY,
    dependencies=CATALOGUE,
)
def resume(job_id: str, body: StrictJson) -> JobView:
    """Queue an ended job again; it goes on from its newest bundle. The body may change keys of the spec, for
    instance `{"train": {"steps": 3000}}`; what the saved weights depend on cannot change."""
    job = jobs.get(job_id)
    patched = None
    if not isinstance(body, dict | None):
        raise SpecError([Problem("", "a patch is a JSON object")])
    if body:
        spec = catalog.parse_job(catalog.merge(job.spec, body))
        patched = spec.model_dump(mode="json")
        before = catalog.parse_job(job.spec).model_dump(mode="json")  # in full, however old it is
        for key in ("kind", "model", "network"):
            if patched.get(key) != before.get(key):
                raise Conflict(f"'{key}' cannot change at resume: the saved weights depend on it; submit a new job instead")
        plan = make_plan(spec)
        if not plan.ok:
            raise SpecError([Problem(p.pointer, p.message, p.suggestion) for p in plan.problems])
    _, told = jobs.resume(job_id, patched)
    announce(told, ring=True)
    return _view(job_id)


def _view(job_id: str) -> JobView:
    job = jobs.get(job_id)
    return job_view(job, jobs.queue_positions().get(job_id) if job.status == Status.QUEUED else None)
