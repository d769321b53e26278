"""Where things lie in the data folder, and the one gate through which a path from outside becomes a path on disk."""

import os
import re
import shutil
from pathlib import Path

from server.store.settings import settings

HUB_NAME = re.compile(r"\w[\w.-]*/\w[\w.-]*", re.ASCII)  # org/name
NO_HUB_NAME = re.compile(r"\.\.|--|[.-]/|[.-]$|\.(git|safetensors|bin|ckpt|gguf|pth?|zip)$")
ADDRESS = re.compile(r"https?://(?:(?:www\.)?(?:huggingface\.co|hf\.co)/(?P<name>[^/?#]+/[^/?#]+))?", re.IGNORECASE)
JOB_FILE = re.compile(r"^job:(?P<job>[A-Za-z0-9_]+)/(?P<name>.+)$")


LAST_LINES, LONGEST_LINE, LAST_BYTES = 20, 400, 16_000  # of a dead process's words


class PathRefused(ValueError):
    """A path that is missing or that jobs may not read; the text is for people."""


def job_folder(job_id: str) -> Path:
    return settings().home / "jobs" / job_id


def attempt_folder(job_id: str, attempt: int) -> Path:
    """The only folder that this attempt writes into."""
    return job_folder(job_id) / "attempts" / str(attempt)


def stderr_file(job_id: str, attempt: int) -> Path:
    """What the attempt's process writes to its standard error."""
    return attempt_folder(job_id, attempt) / "stderr.log"


def last_words(job_id: str, attempt: int) -> str:
    """The last lines of that, "" if there are none; of a crash that Python caught, those around its trace's beginning, which names the
    innermost call. Reads no more than the file's end, however long it is."""
    try:
        with stderr_file(job_id, attempt).open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - LAST_BYTES))
            text = file.read(LAST_BYTES).decode(errors="replace")
    except OSError:
        return ""
    lines = [line.rstrip()[:LONGEST_LINE] for line in text.splitlines() if line.strip()]
    crash = next(
        (place for place, line in enumerate(lines) if line.startswith("Fatal Python error")), len(lines) - LAST_LINES // 2
    )
    first = max(0, crash - LAST_LINES // 2)
    return "\n".join(lines[first : first + LAST_LINES])


def remove_job_folder(job_id: str) -> None:
    shutil.rmtree(job_folder(job_id), ignore_errors=True)


def dataset_folder(given: str) -> Path:
    """The folder for `datasets[].folder_path`: under the datasets folder if relative. Raises PathRefused."""
    path = _allowed(given, settings().home / "datasets")
    if not path.is_dir():
        raise PathRefused(f"{path} is not a folder" if path.exists() else _missing(path, given))
    return path


def data_file(given: str) -> Path:
    """A single file of data (a control image): under the datasets folder if relative. Raises PathRefused."""
    path = _allowed(given, settings().home / "datasets")
    if not path.is_file():
        raise PathRefused(f"{path} is not a file" if path.exists() else _missing(path, given))
    return path


def weights_path(given: str) -> Path | str:
    """The file or folder for a weights path: `job:ID/file`, a path under the models folder or an absolute one. Words that name
    no file (`random`, `org/name` on a hub) come back as they are. Raises PathRefused."""
    if given == "random":
        return given
    if match := JOB_FILE.match(given):
        return _file_of(match["job"], match["name"])
    if given.startswith("ms:"):
        raise PathRefused(f"{given}: ModelScope is not supported; give a folder or org/name on the Hugging Face hub")
    if address := ADDRESS.match(given):
        mend = f"give {address['name']}" if address["name"] else "give a path, or org/name on the Hugging Face hub"
        raise PathRefused(f"{given!r:.200} is a web address; {mend}")
    if ".." in Path(given).parts and not Path(given).is_absolute():
        raise PathRefused(
            f"{given!r} leads out of the models folder, and is no name on a hub, which is org/name; give a whole path"
        )
    path = _allowed(given, settings().home / "models")
    if path.exists():
        return path
    name = given.removeprefix("hf:")
    if HUB_NAME.fullmatch(name) and not NO_HUB_NAME.search(name):
        return given
    no_name = "" if Path(given).suffix == ".safetensors" else f", and {given!r} is no name on a hub, which is org/name"
    raise PathRefused(_missing(path, given) + no_name)


def _file_of(job_id: str, name: str) -> Path:
    """The newest file of that name. The database is imported for such names alone: a run without a server has none."""
    from sqlmodel import col, select

    from server.store.engine import reading
    from server.store.tables import File

    with reading() as session:
        row = session.exec(select(File).where(File.job_id == job_id, File.name == name).order_by(col(File.id).desc())).first()
    if row is None:
        raise PathRefused(f"job '{job_id}' has no file '{name}'")
    return job_folder(row.job_id) / row.path


def stamp(place: Path | str | None) -> list[list[object]]:
    """What tells one state of a file, or of all files under a folder, from another; of what is no file here (a hub's name), its name."""
    if not isinstance(place, Path) or not place.exists():
        return [[str(place)]]
    found: list[list[object]] = []
    for file in sorted(place.rglob("*")) if place.is_dir() else [place]:
        if file.is_file():
            about = file.stat()
            found.append([str(file), about.st_ino, about.st_size, about.st_mtime_ns])
    return found


def _missing(path: Path, given: str) -> str:
    return f"{path} is missing" + ("" if given == given.strip() else f"; a blank stands at an end of {given!r}")


def _allowed(given: str, base: Path) -> Path:
    if "\0" in given:
        raise PathRefused("a path holds a NUL character")
    try:
        path = (base / Path(given).expanduser()).resolve()
        path.exists()
        str(path).encode()
    except UnicodeEncodeError:
        raise PathRefused(f"{given!r:.200} is no usable path: it is no UTF-8 text") from None
    except (OSError, RuntimeError) as error:  # a name too long; a `~user` that does not exist, a loop of links
        why = error.strerror if isinstance(error, OSError) else error
        raise PathRefused(f"{given!r:.200} is no usable path: {why}") from None
    if not any(path.is_relative_to(root) for root in settings().roots):
        roots = ", ".join(str(root) for root in settings().roots)
        raise PathRefused(f"{path} lies outside the folders that jobs may read ({roots}); SAFELIGHT_DATA_ROOTS adds more")
    return path
