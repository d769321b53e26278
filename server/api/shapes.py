"""What the API answers with. Requests of jobs are models.spec; these are the replies."""

from typing import Annotated, Any, Literal
from urllib.parse import quote

from pydantic import Field

from models.spec import Name, Spec
from server.store.tables import Event, File, Job, Status, Worker


class ProblemItem(Spec):
    pointer: str
    message: str
    suggestion: str | None = None


class ProblemBody(Spec):
    """application/problem+json (RFC 9457) with one entry per fault in the body."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str
    errors: list[ProblemItem] = Field(default_factory=list)


class Speed(Spec):
    steps_per_second: float | None
    eta_seconds: float | None


class ErrorView(Spec):
    code: str
    message: str
    hint: str | None = None
    traceback: str | None = None


class JobView(Spec):
    """A job; `progress` is 0..1, times are UTC, `queue_position` 1 is next."""

    id: str
    name: str
    kind: str
    arch: str
    status: str = Field(json_schema_extra={"enum": list(Status)})
    phase: str | None
    step: int
    total_steps: int
    progress: float
    attempt: int
    failures: int
    queue_position: int | None
    priority: int
    labels: dict[str, str]
    worker: str | None
    speed: Speed
    loss: float | None
    error: ErrorView | None
    spec: dict[str, Any]
    last_seq: int
    num_samples: int
    created_at: str
    started_at: str | None
    finished_at: str | None
    links: dict[str, str]


class JobList(Spec):
    jobs: list[JobView]
    next_cursor: str | None


Label = Annotated[str, Field(min_length=1, max_length=100)]
LabelValue = Annotated[str, Field(max_length=1000)]


class JobChange(Spec):
    """What is left out or null stays as it is."""

    name: Name | None = None
    priority: int | None = Field(None, ge=-1_000_000, le=1_000_000)
    labels: dict[Label, LabelValue] | None = Field(None, max_length=64)


class CancelMany(Spec):
    status: str


class BucketView(Spec):
    width: int
    height: int
    images: int


class RefusedFile(Spec):
    file: str
    reason: str


class DatasetPlan(Spec):
    folder_path: str
    images: int
    refused: list[RefusedFile]
    captions_missing: int
    buckets: list[BucketView]


class Plan(Spec):
    """What a job would do. `ok` false means that it would be refused, for the reasons in `problems`."""

    ok: bool
    problems: list[ProblemItem]
    warnings: list[ProblemItem]
    spec: dict[str, Any] | None
    datasets: list[DatasetPlan]
    steps_per_epoch: float | None
    epochs: float | None
    workers: list[str]
    not_checked: list[str]


class PresetView(Spec):
    name: str
    label: str
    description: str
    spec: dict[str, Any]


class ArchView(Spec):
    arch: str
    label: str
    description: str
    kind: str
    modality: str
    capabilities: list[str]
    defaults: dict[str, Any]
    adapters: list[str]
    template_support: bool
    workers: list[str]
    broken: str | None = None


class ArchDetail(ArchView):
    """`schema` holds the JSON Schema of each job kind for this arch."""

    job_schema: dict[str, dict[str, Any]] = Field(alias="schema")
    presets: list[PresetView]


class ArchList(Spec):
    archs: list[ArchView]


class EventView(Spec):
    seq: int
    job_id: str
    attempt: int
    time: str
    type: str
    data: dict[str, Any]


class EventPage(Spec):
    events: list[EventView]
    next_after: int


class Metrics(Spec):
    """`points` are [step, value], thinned with their extremes kept; a value that was not finite is null."""

    name: str
    points: list[tuple[int, float | None]]
    last_seq: int


class SampleView(Spec):
    """A preview. What is null does not apply to its medium: clips have frames, sounds have channels, pictures last no time. The size
    of a sound is that of its waveform's picture, the thumbnail; `animation_url` is a clip as a WebP."""

    index: int
    step: int
    prompt_index: int
    prompt: str
    neg: str
    seed: int
    width: int
    height: int
    guidance_scale: float
    sample_steps: int
    media: Literal["image", "video", "audio"] = "image"  # previews made before there were clips do not say
    num_frames: int | None = None
    fps: float | None = None
    duration_seconds: float | None = None
    sample_rate: int | None = None
    channels: int | None = None
    url: str
    thumbnail_url: str
    animation_url: str | None = None
    created_at: str


class SamplePage(Spec):
    samples: list[SampleView]
    next_after: int


class FileView(Spec):
    path: str
    size: int
    kind: str
    step: int
    url: str
    created_at: str


class FileList(Spec):
    files: list[FileView]


class WorkerView(Spec):
    """Memory in bytes; `state` is idle, busy, stopped or gone."""

    id: str
    host: str
    device: str
    state: str
    memory_used: int | None
    memory_total: int | None
    job_id: str | None
    archs: list[str]
    versions: dict[str, str]
    last_heartbeat: str
    started_at: str


class WorkerList(Spec):
    workers: list[WorkerView]


class Health(Spec):
    status: str
    version: str


class Ready(Spec):
    status: str
    database: bool
    broker: bool
    workers: int


class SignIn(Spec):
    token: str = Field(max_length=10000)


def job_view(job: Job, queue_position: int | None = None) -> JobView:
    base = f"/v1/jobs/{job.id}"
    links = {name: f"{base}/{name}" for name in ("events", "metrics", "samples", "files", "log")}
    left = (job.total_steps - job.step) / job.steps_per_second if job.steps_per_second else None
    shared = {name: getattr(job, name) for name in JobView.model_fields if name in Job.model_fields and name != "error"}
    return JobView(
        **shared,
        error=ErrorView(**job.error) if job.error else None,
        progress=min(1.0, job.step / job.total_steps),
        queue_position=queue_position,
        speed=Speed(steps_per_second=job.steps_per_second, eta_seconds=left),
        links={"self": base, "latest_sample": f"{base}/samples/latest", **links},
    )


def event_view(event: Event) -> EventView:
    """The event as stored, with the addresses of what it speaks of."""
    shared = {name: getattr(event, name) for name in EventView.model_fields}
    if event.type == "sample":
        shared["data"] = {**event.data, **sample_urls(event.job_id, event.data["index"], event.data)}
    elif event.type == "checkpoint":
        shared["data"] = {**event.data, "url": file_url(event.job_id, event.data["path"])}
    return EventView(**shared)


def sample_view(row: File) -> SampleView:
    number = row.number or 0
    return SampleView.model_validate(
        {"index": number, "created_at": row.created_at, **sample_urls(row.job_id, number, row.info), **row.info}
    )


def sample_urls(job_id: str, index: int, record: dict[str, Any]) -> dict[str, str]:
    url = f"/v1/jobs/{job_id}/samples/{index}"
    urls = {"url": url, "thumbnail_url": f"{url}?thumbnail=1"}
    return {**urls, "animation_url": f"{url}?animation=1"} if record.get("media") == "video" else urls


def file_view(row: File) -> FileView:
    url = file_url(row.job_id, row.name)
    return FileView(path=row.name, size=row.size, kind=row.kind, step=row.step, url=url, created_at=row.created_at)


def file_url(job_id: str, name: str) -> str:
    return f"/v1/jobs/{job_id}/files/{quote(name)}"


def worker_view(row: Worker, job_id: str | None, alive: bool) -> WorkerView:
    state = "stopped" if row.stopped else "gone" if not alive else "busy" if job_id else "idle"
    shared = {name: getattr(row, name) for name in WorkerView.model_fields if name in Worker.model_fields}
    return WorkerView(**shared, state=state, job_id=job_id, last_heartbeat=row.seen_at)
