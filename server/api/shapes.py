"""What the API answers with. Requests of jobs are models.spec; these are the replies."""

from typing import Annotated, Any, Literal
from urllib.parse import quote

from pydantic import Field

from models.spec import Name, Spec
from server.store.tables import ASKS, Event, File, Job, Status, Worker


class ProblemItem(Spec):
    pointer: str
    message: str
    suggestion: str | None = None
    misspelt: bool = False


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
    """A job; `progress` is 0..1, times are UTC, `queue_position` 1 is next, `saved_step` is what a resume goes on from, `asked` is what
    the run was asked for and has not done yet. `phase` is what a run does: reading (its data), loading, caching, training, sampling,
    saving."""

    id: str
    name: str
    kind: str
    arch: str
    status: str = Field(json_schema_extra={"enum": list(Status)})
    phase: str | None
    step: int
    saved_step: int
    total_steps: int
    progress: float
    attempt: int
    failures: int
    queue_position: int | None
    priority: int
    labels: dict[str, str]
    worker: str | None
    asked: list[str] = Field(json_schema_extra={"items": {"enum": list(ASKS), "type": "string"}})
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


class PinChange(Spec):
    pinned: bool = True


class BucketView(Spec):
    """Items that may share a batch: of one size in pixels, clips of one number of frames, sounds of one length."""

    width: int
    height: int
    images: int
    frames: int = 1
    milliseconds: int = 0


class RefusedFile(Spec):
    file: str
    reason: str


class EntryView(Spec):
    """What happens to one item: its caption in training, and how it is cut: scaled, of which the box at (left, top) is taken, then
    flipped. In pixels."""

    file: str
    caption: str
    width: int
    height: int
    scaled_width: int
    scaled_height: int
    left: int
    top: int
    flip_x: bool
    flip_y: bool
    frames: int
    mask: bool
    controls: list[str]


class DatasetPlan(Spec):
    """`images` are its items, be they pictures, clips or sounds; `buckets` count what an epoch shows, with repeats and flips;
    `samples` are some of its entries. A dataset that is held out follows the others, and all of it counts as `held_out`."""

    folder_path: str
    images: int
    refused: list[RefusedFile]
    captions_missing: int
    buckets: list[BucketView]
    is_reg: bool = False
    masks: int = 0
    controls: int = 0
    held_out: int = 0
    samples: list[EntryView] = Field(default_factory=list)


class ChangeView(Spec):
    """One key that a resume changes. What was or will not be there is null."""

    pointer: str
    before: Any
    after: Any
    effect: str


class MemoryPlan(Spec):
    """A job's memory, predicted, in bytes: `parts` are those of the `phase` that takes most and add up to `peak`; `phases` are the peaks
    of all. `disk` says what one checkpoint, all that are kept, and the caches of a training job take."""

    peak: int
    phase: str
    parts: dict[str, int]
    phases: dict[str, int]
    trained_parameters: int
    disk: dict[str, int]
    device: str
    notes: list[str]


class Plan(Spec):
    """What a job would do. `ok` false means that it would be refused, for the reasons in `problems`. A resume also says what
    `changes` and from which step (of a sampling job: picture) it `goes_on_from`."""

    ok: bool
    problems: list[ProblemItem]
    warnings: list[ProblemItem]
    spec: dict[str, Any] | None
    datasets: list[DatasetPlan]
    steps_per_epoch: float | None
    epochs: float | None
    workers: list[str]
    not_checked: list[str]
    changes: list[ChangeView] = Field(default_factory=list)
    goes_on_from: int | None = None
    memory: MemoryPlan | None = None


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
    of a sound is that of its waveform's picture, the thumbnail; `animation_url` is a clip as a WebP. `controls` are its control images
    by their keys. `step` numbers the pictures of a sampling job; those of a matrix have their checkpoint and weight; `applied` says
    of each adapter on how many layers it acts; `recipe` is a job that makes just this picture."""

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
    sampler: str | None = None
    network_multiplier: float = 1.0
    controls: dict[str, str] = Field(default_factory=dict)
    arch: str | None = None
    model: str | None = None
    adapters: list[dict[str, Any]] = Field(default_factory=list)
    applied: list[str] = Field(default_factory=list)
    checkpoint: str | None = None
    weight: float | None = None
    recipe: dict[str, Any] | None = None
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
    pinned: bool
    url: str
    created_at: str


class FileList(Spec):
    files: list[FileView]


class WorkerView(Spec):
    """Memory in bytes; `state` is idle, busy, stopped or gone. One with a `problem`, the reason, takes no jobs."""

    id: str
    host: str
    device: str
    state: str
    memory_used: int | None
    memory_total: int | None
    job_id: str | None
    archs: list[str]
    versions: dict[str, str]
    problem: str | None
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


def job_view(job: Job, saved_step: int, queue_position: int | None = None) -> JobView:
    base = f"/v1/jobs/{job.id}"
    links = {name: f"{base}/{name}" for name in ("events", "metrics", "samples", "files", "log")}
    left = (job.total_steps - job.step) / job.steps_per_second if job.steps_per_second else None
    shared = {name: getattr(job, name) for name in JobView.model_fields if name in Job.model_fields and name != "error"}
    return JobView(
        **shared,
        error=ErrorView(**job.error) if job.error else None,
        saved_step=saved_step,
        progress=min(1.0, job.step / job.total_steps),
        queue_position=queue_position,
        asked=[what for what in ASKS if getattr(job, f"{what}_asked") > getattr(job, f"{what}_answered")],
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
    told = {key: value for key, value in row.info.items() if key in SampleView.model_fields}  # older records say more
    return SampleView.model_validate(
        {"index": number, "created_at": row.created_at, **sample_urls(row.job_id, number, row.info), **told}
    )


def sample_urls(job_id: str, index: int, record: dict[str, Any]) -> dict[str, str]:
    url = f"/v1/jobs/{job_id}/samples/{index}"
    urls = {"url": url, "thumbnail_url": f"{url}?thumbnail=1"}
    return {**urls, "animation_url": f"{url}?animation=1"} if record.get("media") == "video" else urls


def file_view(row: File) -> FileView:
    url = file_url(row.job_id, row.name)
    shared = {name: getattr(row, name) for name in ("size", "kind", "step", "pinned", "created_at")}
    return FileView(path=row.name, url=url, **shared)


def file_url(job_id: str, name: str) -> str:
    return f"/v1/jobs/{job_id}/files/{quote(name)}"


def worker_view(row: Worker, job_id: str | None, alive: bool) -> WorkerView:
    state = "stopped" if row.stopped else "gone" if not alive else "busy" if job_id else "idle"
    shared = {name: getattr(row, name) for name in WorkerView.model_fields if name in Worker.model_fields}
    return WorkerView(**shared, state=state, job_id=job_id, last_heartbeat=row.seen_at)
