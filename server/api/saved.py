"""Which checkpoint a job would resume from, its files read as a run reads them."""

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from models import bundles
from models.errors import Problem
from server.store import jobs
from server.store.files import job_folder
from server.store.tables import Job

READ_AT_ONCE_BYTES = 4e9  # larger checkpoints are read by the run alone: a dry run is to answer while people wait


@dataclass(frozen=True)
class Saved:
    """The `step` that a run resumes from (0: the start), with warnings of damaged checkpoints and notes on those not read here."""

    step: int
    warnings: tuple[Problem, ...] = ()
    not_checked: tuple[str, ...] = ()


def newest(job: Job) -> Saved:
    """The newest checkpoint that is whole. Each is read once for as long as its files stay as they are."""
    known = [job_folder(job.id) / row.path for row in jobs.job_files(job.id, "bundle")]
    unread: list[str] = []

    def whole(bundle: Path) -> bool:
        files = [(str(path), stat.st_size, stat.st_mtime_ns) for path in sorted(bundle.rglob("*")) if (stat := path.stat())]
        if (num_bytes := sum(size for _, size, _ in files)) > READ_AT_ONCE_BYTES:
            unread.append(f"checkpoint {bundle.name}: its {num_bytes / 1e9:.0f} GB are read when the run begins")
            return (bundle / bundles.MANIFEST).is_file()
        return _is_whole(bundle, tuple(files))

    found = bundles.newest(known, whole)
    step = bundles.step_of(found) if found else 0
    return Saved(step, tuple(Problem("", said) for said in bundles.passed_over(known, step)), tuple(unread))


@lru_cache(maxsize=256)
def _is_whole(bundle: Path, _files: tuple[tuple[str, int, int], ...]) -> bool:
    return bundles.is_whole(bundle)
