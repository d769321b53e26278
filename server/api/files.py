"""A job's previews and files, as bytes. Only files with a row exist; a path from a URL is looked up, never opened."""

import asyncio
import time
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Request, Response
from fastapi.responses import FileResponse

from server.api.deps import LARGEST, WakesDep
from server.api.shapes import FileList, SamplePage, file_view, sample_view
from server.store import jobs
from server.store.files import job_folder
from server.store.jobs import NotFound
from server.store.tables import ENDED, File, Job

router = APIRouter(prefix="/v1/jobs/{job_id}", tags=["files"])

PICTURE_TYPES = {"png": "image/png", "webp": "image/webp"}
BINARY = {"schema": {"type": "string", "format": "binary"}}
BYTES: dict[int | str, dict[str, Any]] = {
    200: {"content": {"image/png": BINARY}, "description": "The preview's bytes."},
    204: {"description": "None yet."},
    304: {"description": "None newer."},
}
FILE: dict[int | str, dict[str, Any]] = {
    200: {"content": {"application/octet-stream": BINARY}, "description": "The file's bytes."}
}


@router.get("/samples", response_model=SamplePage)
def samples(job_id: str, after: Annotated[int, Query(ge=0, le=LARGEST)] = 0) -> SamplePage:
    """Records of previews with an index above `after`, oldest first."""
    jobs.get(job_id)
    rows = jobs.job_files(job_id, "sample", after=after)
    return SamplePage(samples=[sample_view(row) for row in rows], next_after=rows[-1].number or after if rows else after)


@router.get("/samples/latest", responses=BYTES, response_class=FileResponse)
async def latest(
    request: Request,
    job_id: str,
    wakes: WakesDep,
    wait: Annotated[float, Query(ge=0, le=60)] = 0,
    prompt_index: Annotated[int | None, Query(ge=0)] = None,
    if_none_match: Annotated[str | None, Header()] = None,
) -> Response:
    """The newest preview's bytes. `wait` holds the call until one newer than `If-None-Match` exists, or the job has ended, so a
    plain loop of curl follows a job; `Safelight-Job-Status` tells it when to stop."""
    known = {tag.strip().removeprefix("W/") for tag in (if_none_match or "").split(",")}  # a proxy may have made it weak
    deadline = time.monotonic() + wait
    with wakes.listen(job_id) as waiter:
        while True:
            waiter.expect()
            job, row = await asyncio.to_thread(_job_and_newest, job_id, prompt_index)
            etag = f'"{row.number}"' if row else None
            fresh = etag is not None and etag not in known
            left = deadline - time.monotonic()
            if fresh or job.status in ENDED or left <= 0 or await request.is_disconnected():
                break
            await waiter.wait(left)
    headers = {"Safelight-Job-Status": job.status, "Cache-Control": "no-cache"}
    if row is None:
        return Response(status_code=204, headers=headers)
    headers["ETag"] = etag or ""
    if not fresh:
        return Response(status_code=304, headers=headers)
    return _send(row, {**headers, "Safelight-Sample-Index": str(row.number), "Safelight-Sample-Step": str(row.step)})


@router.get("/samples/{index}", responses={200: BYTES[200]}, response_class=FileResponse)
def sample(job_id: str, index: int, thumbnail: bool = False) -> FileResponse:
    """That preview's bytes (with `thumbnail`, a small WebP). A preview never changes, so it may be cached for good."""
    rows = [row for row in jobs.job_files(job_id, "thumbnail" if thumbnail else "sample") if row.number == index]
    if not rows:
        raise NotFound(f"job '{job_id}' has no preview {index}")
    return _send(rows[0], {"Cache-Control": "private, max-age=31536000, immutable"})


@router.get("/files", response_model=FileList)
def files(job_id: str) -> FileList:
    """Weights, previews and the job's config, oldest first. Of files with one name, the newest."""
    jobs.get(job_id)
    newest = {row.name: row for row in jobs.job_files(job_id, "weights", "sample", "config")}
    return FileList(files=[file_view(row) for row in newest.values()])


@router.get("/files/{path:path}", responses=FILE, response_class=FileResponse)
def file(job_id: str, path: str) -> FileResponse:
    """One file of the job; ranges are honoured."""
    rows = [row for row in jobs.job_files(job_id, "weights", "sample", "config") if row.name == path]
    if not rows:
        raise NotFound(f"job '{job_id}' has no file '{path}'")
    return _send(rows[-1], {})


def _send(row: File, headers: dict[str, str]) -> FileResponse:
    path = job_folder(row.job_id) / row.path
    if not path.is_file():
        raise NotFound(f"'{row.name}' is not on disk any more")
    picture = PICTURE_TYPES.get(path.suffix.lstrip("."))
    disposition = "inline" if picture else "attachment"
    return FileResponse(
        path, 200, headers, picture or "application/octet-stream", filename=path.name, content_disposition_type=disposition
    )


def _job_and_newest(job_id: str, prompt_index: int | None) -> tuple[Job, File | None]:
    job = jobs.get(job_id)  # read first: a preview that comes between the two is seen, an end that comes is not missed
    return job, jobs.newest_preview(job_id, prompt_index)
