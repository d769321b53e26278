"""Folders elsewhere that hold architectures: which packages there are, and what state their source is in. Imports none of them.

Two forms are known. Ours: a folder with `card.py` (which lists its cards in ARCHS) and `model.py`. ai-toolkit's: a package whose
`__init__.py` has a list AI_TOOLKIT_MODELS of model classes. A folder with one half of our form is listed with that problem.
"""

import ast
import hashlib
import os
import re
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from models.errors import UserError

CHOICES = "safelight.toml"  # a folder's own file; `replaces = ["NAME"]` in it makes its architecture of that name win over others
LIST_NAME = "AI_TOOLKIT_MODELS"
SOURCES = {".py", ".json", ".yaml", ".yml", ".toml", ".txt", ".jinja"}
BASE_CLASS = "models.base"  # what a model.py of our form imports; many unrelated folders have a file of that name
LARGEST_SOURCE_BYTES = 4_000_000
SKIPPED = {"__pycache__", "node_modules", "venv"}
HOMES = ("extensions", "extensions_built_in")  # the folders that ai-toolkit itself imports packages from

Stamps = tuple[tuple[str, int, int], ...]


@dataclass(frozen=True)
class Entry:
    """One class of a package that can be imported without the others."""

    module: str
    class_name: str


@dataclass(frozen=True)
class Package:
    """A folder with architectures in it; `problem` says why it is none after all."""

    path: Path
    form: Literal["ours", "toolkit"] = "toolkit"
    problem: str | None = None

    @property
    def import_name(self) -> str:
        """As ai-toolkit would name it: from the nearest folder called extensions or extensions_built_in on, else by itself."""
        names = [self.path.name]
        for parent in list(self.path.parents)[:3]:
            names.insert(0, parent.name)
            if parent.name in HOMES:
                return ".".join(names)
        return self.path.name


def packages(folders: Sequence[Path]) -> list[Package]:
    """The packages in these folders, each folder being a package itself or holding some, in order. A folder with none in it comes as
    a package with a problem."""
    found: list[Package] = []
    for folder in folders:
        place = folder.expanduser().resolve()
        if not place.is_dir():
            found.append(Package(place, problem=f"{place} is {'not a folder' if place.exists() else 'missing'}"))
            continue
        inside = [made for path in (place, *_folders(place)) if (made := _package(path))]
        own = [package for package in inside if package.path == place and package.problem is None]
        none = f"{place} holds no architecture: it needs card.py and model.py, or an __init__.py with {LIST_NAME}"
        found += own or inside or [Package(place, problem=none)]
    return list({package.path: package for package in found}.values())


def entries(package: Package) -> list[Entry] | None:
    """The classes that an ai-toolkit package lists, if its `__init__.py` says no more than imports and the list; None if it has to be
    run to know."""
    where: dict[str, str] = {}
    listed: list[str] = []
    try:
        body = ast.parse((package.path / "__init__.py").read_text()).body
    except (OSError, SyntaxError, ValueError):
        return None
    for line in body:
        if isinstance(line, ast.ImportFrom) and line.level == 1 and line.module:
            where |= {alias.asname or alias.name: f"{line.module}:{alias.name}" for alias in line.names}
        elif isinstance(line, ast.Assign) and _assigns_list(line) and isinstance(line.value, ast.List):
            if not all(isinstance(each, ast.Name) for each in line.value.elts):
                return None
            listed = [each.id for each in line.value.elts if isinstance(each, ast.Name)]
        elif not (isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant)):
            return None
    if not listed or any(name not in where for name in listed):
        return None
    parts = [where[name].split(":") for name in listed]
    return [Entry(f"{package.import_name}.{module}", class_name) for module, class_name in parts]


def arch_in_source(package: Package, class_name: str) -> str | None:
    """The `arch` of a class as its source says it, for a class that does not import."""
    pattern = re.compile(
        rf"^class {re.escape(class_name)}\b(?:(?!^class ).)*?^\s+arch\s*(?::[^=\n]*)?=\s*['\"]([^'\"]+)['\"]",
        re.MULTILINE | re.DOTALL,
    )
    for path in _sources(package.path):
        if path.suffix == ".py" and (match := pattern.search(path.read_text(errors="replace"))):
            return match[1]
    return None


def mentions(package: Package, arch: str) -> bool:
    """Whether the source has this name between quotes."""
    quoted = re.compile(rf"""(['"]){re.escape(arch)}\1""")
    return any(path.suffix == ".py" and quoted.search(path.read_text(errors="replace")) for path in _sources(package.path))


def replaces(folder: Path) -> set[str]:
    """The names for which the folder's file says that its architecture wins over Safelight's own and other folders'. Raises UserError if
    the file says something else."""
    path = folder / CHOICES
    if not path.is_file():
        return set()
    try:
        said = tomllib.loads(path.read_text())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is no TOML: {error}") from None
    names = said.get("replaces", [])
    if set(said) - {"replaces"} or not (isinstance(names, list) and all(isinstance(name, str) for name in names)):
        raise UserError(f'{path} must say replaces = ["NAME", ...] and nothing else')
    return set(names)


def digest(folder: Path) -> str:
    """SHA-256 over the names and contents of a folder's source files; weights do not count."""
    total = hashlib.sha256()
    for path in _sources(folder):
        content = path.read_bytes()
        total.update(f"{path.relative_to(folder)}\0{len(content)}\0".encode() + content)
    return total.hexdigest()


def stamps(found: Sequence[Package]) -> Stamps:
    """Changes when a package, or a source file of one, appears, changes or goes. Reads no contents."""
    files = [(str(package.path), 0, 0) for package in found]
    for package in found:
        for path in _sources(package.path) if package.problem is None else ():
            about = path.stat()
            files.append((str(path), about.st_mtime_ns, about.st_size))
    return tuple(files)


def _package(path: Path) -> Package | None:
    card, model = (path / "card.py").is_file(), (path / "model.py").is_file()
    if card and model:
        return Package(path, "ours", _problem(path))
    init = path / "__init__.py"
    if init.is_file() and re.search(rf"^{LIST_NAME}\b", init.read_text(errors="replace"), re.MULTILINE):
        return Package(path, "toolkit", _problem(path))
    if card:
        return Package(path, "ours", f"{path} has card.py without model.py; an architecture of our form needs both")
    if model and BASE_CLASS in (path / "model.py").read_text(errors="replace"):
        return Package(path, "ours", f"{path} has model.py without card.py; an architecture of our form needs both")
    return None


def _problem(path: Path) -> str | None:
    """What is wrong with the folder's name, or its file of choices."""
    try:
        replaces(path)
    except UserError as error:
        return error.message
    if path.name.isidentifier():
        return None
    better = re.sub(r"\W", "_", path.name)
    return f"the folder's name '{path.name}' is no Python name; call it '{better if better.isidentifier() else '_' + better}'"


def _assigns_list(line: ast.Assign) -> bool:
    return any(isinstance(target, ast.Name) and target.id == LIST_NAME for target in line.targets)


def _folders(path: Path) -> list[Path]:
    return sorted(each for each in path.iterdir() if each.is_dir() and not each.name.startswith(".") and each.name not in SKIPPED)


def _sources(folder: Path) -> Iterator[Path]:
    """The source files below, sorted; a file that goes meanwhile is left out."""
    for place, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith(".") and name not in SKIPPED)
        for name in sorted(files):
            path = Path(place) / name
            if path.suffix in SOURCES and path.is_file() and path.stat().st_size <= LARGEST_SOURCE_BYTES:
                yield path
