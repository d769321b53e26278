"""A job's previews and files, as bytes. Only files with a row exist; a path from a URL is looked up, never opened."""

import asyncio
import time
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Request, Response
from fastapi.responses import FileResponse

from server.api.deps import LARGEST, WakesDep
from server.api.http import Route
from server.api.shapes import FileList, SamplePage, file_view, sample_view
from server.store import jobs
from server.store.files import job_folder
from server.store.jobs import NotFound
from server.store.tables import ENDED, File, Job

router = APIRouter(prefix="/v1/jobs/{job_id}", tags=["files"], route_class=Route)

LISTED = ("weights", "sample", "animation", "config")
MEDIA_TYPES = {"png": "image/png", "webp": "image/webp", "mp4": "video/mp4", "wav": "audio/wav"}
BINARY = {"schema": {"type": "string", "format": "binary"}}
PREVIEW_CONTENT = dict.fromkeys(MEDIA_TYPES.values(), BINARY)
FILE_CONTENT = {"application/octet-stream": BINARY}


def bytes_of(what: str, content: dict[str, Any]) -> dict[int | str, dict[str, Any]]:
    """The answers of a route that sends a file."""
    return {
        200: {"content": content, "description": f"The {what}'s bytes."},
        206: {"content": content, "description": "The bytes of the `Range` that was asked for."},
        416: {"description": "No byte lies in that `Range`."},
    }


NONE: dict[int | str, dict[str, Any]] = {204: {"description": "None yet."}, 304: {"description": "None newer."}}


@router.get("/samples", response_model=SamplePage)
def samples(job_id: str, after: Annotated[int, Query(ge=0, le=LARGEST)] = 0) -> SamplePage:
    """Records of previews with an index above `after`, oldest first."""
    jobs.get(job_id)
    rows = jobs.job_files(job_id, "sample", after=after)
    return SamplePage(samples=[sample_view(row) for row in rows], next_after=rows[-1].number or after if rows else after)


@router.get("/samples/latest", responses={**bytes_of("preview", PREVIEW_CONTENT), **NONE}, response_class=FileResponse)
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


@router.get("/samples/{index}", responses=bytes_of("preview", PREVIEW_CONTENT), response_class=FileResponse)
def sample(job_id: str, index: int, thumbnail: bool = False, animation: bool = False) -> FileResponse:
    """That preview's bytes: PNG, MP4 or WAV; ranges are honoured. With `thumbnail`, a small WebP still of any preview; with
    `animation`, a clip as an animated WebP. A preview never changes, so it may be cached for good."""
    kind = "thumbnail" if thumbnail else "animation" if animation else "sample"
    rows = [row for row in jobs.job_files(job_id, kind) if row.number == index]
    if not rows:
        raise NotFound(f"job '{job_id}' has no preview {index}" + (" with an animation" if kind == "animation" else ""))
    return _send(rows[0], {"Cache-Control": "private, max-age=31536000, immutable"})


@router.get("/files", response_model=FileList)
def files(job_id: str) -> FileList:
    """Weights, previews and the job's config, oldest first. Of files with one name, the newest."""
    jobs.get(job_id)
    newest = {row.name: row for row in jobs.job_files(job_id, *LISTED)}
    return FileList(files=[file_view(row) for row in newest.values()])


@router.get("/files/{path:path}", responses=bytes_of("file", FILE_CONTENT), response_class=FileResponse)
def file(job_id: str, path: str) -> FileResponse:
    """One file of the job; ranges are honoured."""
    rows = [row for row in jobs.job_files(job_id, *LISTED) if row.name == path]
    if not rows:
        raise NotFound(f"job '{job_id}' has no file '{path}'")
    return _send(rows[-1], {})


def _send(row: File, headers: dict[str, str]) -> FileResponse:
    path = job_folder(row.job_id) / row.path
    if not path.is_file():
        raise NotFound(f"'{row.name}' is not on disk any more")
    media_type = MEDIA_TYPES.get(path.suffix.lstrip("."))
    if media_type:  # without a name: one here would win over the name that a page gives its download
        return FileResponse(path, 200, {**headers, "Content-Disposition": "inline"}, media_type)
    return FileResponse(path, 200, headers, "application/octet-stream", filename=path.name)


def _job_and_newest(job_id: str, prompt_index: int | None) -> tuple[Job, File | None]:
    job = jobs.get(job_id)  # read first: a preview that comes between the two is seen, an end that comes is not missed
    return job, jobs.newest_preview(job_id, prompt_index)
