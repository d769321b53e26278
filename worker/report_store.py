"""The Reporter that writes to the store: every word is fenced by the job's attempt, and a heartbeat keeps its lease."""

import logging
import os
import threading
import time
from collections.abc import Callable, Container, Mapping, Sequence
from pathlib import Path
from typing import Any

from server.store import broker, jobs
from server.store.events import LeaseLost
from server.store.files import attempt_folder, job_folder
from server.store.tables import File, Job, Status
from worker.joblog import JobLog
from worker.report import Ask, Phase, PreviewTold, Reporter, Stop, Wish

BEAT_SECONDS = 1.0
DEAF_SECONDS = 2.0  # a run that loads and does not heed a wish for this long is ended: loading takes minutes and keeps nothing
LOST_SECONDS = 30.0  # a run that does not stop this long after it lost its lease is killed: another one may be running

log = logging.getLogger(__name__)


class StoreReporter(Reporter):
    """Use as a context manager: the heartbeat runs inside it, and what our own code warns of is told too. `leave(job, wish)` says the last
    word on a run that loads and does not hear what is wished of it, and ends the process; without it such a run is waited for."""

    def __init__(self, job: Job, leave: Callable[[Job, Wish], None] | None = None) -> None:
        super().__init__(attempt_folder(job.id, job.attempt), job.total_steps)
        self.job = job
        self._leave = leave
        self._loads = True  # or looks at its data, as does all that comes before the first phase
        self._gate = threading.Lock()  # while the heart says the last word, the loop says nothing more
        self._presses = {"sample": job.sample_asked, "checkpoint": job.checkpoint_asked}
        self._answered = {"sample": job.sample_answered, "checkpoint": job.checkpoint_answered}
        self._warnings = JobLog(self.log)
        self._ended = threading.Event()
        self._heart = threading.Thread(target=self._beat, name="heartbeat", daemon=True)

    def __enter__(self) -> "StoreReporter":
        self._heart.start()
        self._warnings.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._warnings.__exit__()
        self._ended.set()
        self._heart.join()

    def phase(self, phase: Phase, done: int | None = None, total: int | None = None) -> None:
        with self._gate:
            self._loads = phase in ("reading", "loading")
        columns: dict[str, Any] = {"phase": phase}
        if phase in ("training", "sampling") and self.job.status == Status.PREPARING:
            self.job.status = columns["status"] = Status.RUNNING
        self._tell(("phase", {"phase": phase, "done": done, "total": total}), **columns)

    def code(self, source: str, digest: str) -> None:
        """Record which foreign code runs: its folder and the digest of its source."""
        message = f"architecture from {source}, source {digest[:12]}"
        self._tell(("worker", {"message": message, "worker": self.job.worker, "source": source, "digest": digest}))

    def log(self, message: str, level: str = "INFO") -> None:
        self._tell(("log", {"level": level, "message": message}))

    def preview(self, told: PreviewTold, done: int | None = None) -> None:
        record = {key: told.record[key] for key in ("step", "prompt_index")}
        name = f"samples/{told.picture.name}"
        picture = self._file("sample", name, told.picture, told.record["step"], info=told.record)
        files = [picture, self._file("thumbnail", f"thumbnails/{told.thumbnail.name}", told.thumbnail, record["step"])]
        if told.animation:
            files.append(self._file("animation", f"samples/{told.animation.name}", told.animation, record["step"]))
        events: list[tuple[str, dict[str, Any]]] = [("sample", told.record)]
        columns: dict[str, Any] = {}
        if done is not None:
            columns = {"step": done}
            events.append(
                (
                    "progress",
                    {"step": done, "total_steps": self.total_steps, "steps_per_second": None, "eta_seconds": None, "loss": None},
                )
            )
        self._tell(*events, files=files, **columns)

    def config(self, path: Path) -> None:
        self._tell(files=[self._file("config", path.name, path, 0)])

    def saved(self, bundle: Path, step: int, weights: Sequence[Path]) -> None:
        self.flush()
        size = sum(path.stat().st_size for path in bundle.rglob("*"))
        files = [File(**self._place(bundle), kind="bundle", name=bundle.name, size=size, step=step)]
        events: list[tuple[str, dict[str, Any]]] = []
        for path in weights:
            row = self._file("weights", path.name, path, step, info={"bundle": bundle.name})
            files.append(row)
            events.append(("checkpoint", {"step": step, "path": row.name, "size": row.size}))
        self._tell(*events, files=files, step=step)
        if weights:
            self.answered("checkpoint")

    def wished(self) -> Wish | None:
        """Asked of the database itself: a heartbeat may be a second old."""
        try:
            return jobs.beat(self.job.id, self.job.attempt).wish or self._wish  # type: ignore[return-value]
        except LeaseLost:
            return "lost"

    def bundles(self) -> list[Path]:
        return [job_folder(row.job_id) / row.path for row in jobs.job_files(self.job.id, "bundle")]

    def leftovers(self) -> list[Path]:
        """What no row names in the bundle folders of this attempt and those before it, to which no row can come any more: that holds
        also for a run that has lost its lease meanwhile, though such a one gets no answer. Raises Stop."""
        self._tell()
        folder = job_folder(self.job.id)
        named = {row.path for row in jobs.job_files(self.job.id, *jobs.CHECKPOINT)}
        named |= {path.rpartition("/")[0] for path in named}  # the bundle of a weights file
        attempts = [path for path in folder.glob("attempts/*") if path.name.isdigit() and int(path.name) <= self.job.attempt]
        found = [path for attempt in attempts for path in attempt.glob("bundles/*")]
        return [path for path in found if str(path.relative_to(folder)) not in named]

    def pinned(self) -> set[Path]:
        return {job_folder(row.job_id) / row.path for row in jobs.job_files(self.job.id, "bundle") if row.pinned}

    def forget(self, bundles: Sequence[Path]) -> list[Path]:
        if not bundles:
            return []
        named = {str(path.relative_to(job_folder(self.job.id))): path for path in bundles}
        owner = {row.id or 0: self._bundle_of(row, named) for row in jobs.job_files(self.job.id, "bundle", "weights")}
        doomed = [number for number, bundle in owner.items() if bundle is not None]
        try:
            dropped = jobs.forget_files(self.job.id, self.job.attempt, doomed)
        except LeaseLost:
            raise Stop("lost") from None
        staying = {owner[number] for number in doomed if number not in dropped}
        return [path for name, path in named.items() if name not in staying]

    @staticmethod
    def _bundle_of(row: File, bundles: Container[str]) -> str | None:
        """Which of these bundles the row is, or lies in."""
        return next((path for path in (row.path, row.path.rpartition("/")[0]) if path in bundles), None)

    def previews_at(self, step: int) -> set[int]:
        return {row.info["prompt_index"] for row in jobs.job_files(self.job.id, "sample") if row.step == step}

    def made(self) -> list[dict[str, Any]]:
        return [row.info for row in jobs.job_files(self.job.id, "sample")]

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        self._tell(("metrics", {"step": step, **values}))

    def told_step(self) -> int:
        return self.job.step

    def _tell_steps(self, told: list[dict[str, Any]], speed: float) -> None:
        last = told[-1]
        left = (self.total_steps - last["step"]) / speed
        progress = {
            "step": last["step"],
            "total_steps": self.total_steps,
            "steps_per_second": speed,
            "eta_seconds": left,
            "loss": last["loss"],
        }
        loss = last["loss"] if abs(last["loss"]) < float("inf") else None
        events = [*(("metrics", each) for each in told), ("progress", progress)]
        self._tell(*events, step=last["step"], loss=loss, steps_per_second=speed)

    def _tell_answered(self, what: Ask, presses: int) -> None:
        columns: dict[str, Any] = {f"{what}_answered": presses}
        self._tell(**columns)

    def _tell(self, *events: tuple[str, dict[str, Any]], files: Sequence[File] = (), **columns: Any) -> None:
        try:
            broker.publish(jobs.tell(self.job.id, self.job.attempt, events, files=files, **columns))
        except LeaseLost:
            raise Stop("lost") from None

    def _file(self, kind: str, name: str, path: Path, step: int, info: dict[str, Any] | None = None) -> File:
        return File(**self._place(path), kind=kind, name=name, size=path.stat().st_size, step=step, info=info or {})

    def _place(self, path: Path) -> dict[str, Any]:
        return {"job_id": self.job.id, "attempt": self.job.attempt, "path": str(path.relative_to(job_folder(self.job.id)))}

    def _beat(self) -> None:
        wish, since = self._wish, 0.0
        while not self._ended.wait(BEAT_SECONDS):
            try:
                self._listen()
                if wish != self._wish:
                    wish, since = self._wish, time.monotonic()
                if wish:
                    self._insist(wish, time.monotonic() - since)
            except Exception:
                log.exception("a heartbeat of job %s failed", self.job.id)

    def _listen(self) -> None:
        """One beat: renew the lease, and take over what is wished and asked."""
        try:
            wishes = jobs.beat(self.job.id, self.job.attempt)
            self._wish = wishes.wish or self._wish  # type: ignore[assignment]
            self._presses = wishes.asked  # type: ignore[assignment]
        except LeaseLost:
            self._wish = "lost"

    def _insist(self, wish: Wish, seconds: float) -> None:
        """This has been wished for so long, and the run goes on."""
        with self._gate:
            if self._leave and self._loads and seconds >= DEAF_SECONDS:
                self._leave(self.job, wish)
        if wish == "lost" and seconds > LOST_SECONDS:
            log.error("job %s was lost %s s ago and does not stop; this process ends", self.job.id, LOST_SECONDS)
            os._exit(1)
