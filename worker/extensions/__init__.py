"""Architectures from folders elsewhere, as a worker uses them: kept listed by the parent, imported by the child that runs a job."""

import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from models import catalog, toolkit
from models.arch import Arch
from models.errors import UserError
from models.extensions import Extension
from server.store import extensions
from server.store.settings import settings
from worker.extensions import foreign, packages

RESTART_TICKS = 10  # of the supervisor, before a watcher that died is started again

log = logging.getLogger("worker")

_imported: dict[Path, str] = {}  # the packages that this process has imported, and the digest that each had


def archs() -> list[str]:
    """All that this worker can run."""
    found = extensions.usable()
    return [*(name for name in catalog.bundled() if name not in found), *(name for name, healthy in found.items() if healthy)]


class Watch:
    """The parent's part: keeps `worker.extensions.discover --watch` running while there are folders to watch. It runs no foreign
    code, and waits for nothing."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._ticks = 0

    def tick(self) -> None:
        """Called once a second."""
        if self._ticks % RESTART_TICKS == 0 and not self._runs():
            if settings().extensions:
                command = [sys.executable, "-m", "worker.extensions.discover", "--watch"]
                self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
            elif self._ticks == 0:
                extensions.replace([])
        self._ticks += 1

    def end(self) -> None:
        if self._process is not None and self._runs():
            self._process.terminate()
            self._process.wait()

    def _runs(self) -> bool:
        return self._process is not None and self._process.poll() is None


def load(arch: str) -> Extension | None:
    """Import an architecture from elsewhere and put it into this process's catalogue, with its source as it is now. None for a
    bundled one that no folder replaces. Raises UserError if it is not there or does not import."""
    row = next((row for row in extensions.listing() if row.name == arch), None)
    if row is None and arch in catalog.bundled():
        if arch in catalog.extensions():  # a folder replaced it at an earlier job
            catalog.register([each for each in catalog.extensions().values() if each.name != arch])
        return None
    if row is None:
        raise UserError(f"arch '{arch}' has gone: no folder of SAFELIGHT_EXTENSIONS holds it", code="broken_arch")
    package = packages.packages([Path(row.source)])[0]
    known = catalog.extensions().get(arch)
    if known is not None and known.source == row.source and not stale():
        return known
    return _import(package, arch)


def load_from_folders(arch: str) -> Extension | None:
    """The same without a database, by looking through the folders of SAFELIGHT_EXTENSIONS."""
    found = [package for package in packages.packages(settings().extensions) if package.problem is None]
    found = [package for package in found if arch not in catalog.bundled() or arch in packages.replaces(package.path)]
    for package in sorted(found, key=lambda package: not packages.mentions(package, arch)):  # its neighbours stay untouched
        try:
            return _import(package, arch)
        except UserError as error:
            log.debug("%s: %s", package.path, error.message)
    return None


def known(arch: str) -> Arch:
    """The card of a bundled arch or of one in the folders of SAFELIGHT_EXTENSIONS, with its code importable from now on. For the
    commands that look at one arch without a database. Raises UserError for an unknown one."""
    if load_from_folders(arch) is not None:
        toolkit.install()  # its code may import more of these names while it runs
    return catalog.arch(arch)


def stale() -> bool:
    """Whether a package that this process imported has other source by now. Only a fresh process can import it again."""
    return any(packages.digest(path) != known for path, known in _imported.items())


def names() -> Any:
    """A context in which the code of these architectures finds `toolkit`."""
    return toolkit.installed()


def _import(package: packages.Package, arch: str) -> Extension:
    os.environ.setdefault("MODELS_PATH", str(settings().home / "models"))  # where folders look for files by name
    from models import quanto  # noqa: F401 - before a folder imports the library itself: it is to find no kernels there

    _imported[package.path] = packages.digest(package.path)
    try:
        for card in _candidates(package, arch):
            if card.name == arch:
                foreign.class_of(card)
                made = Extension(arch, str(package.path), _imported[package.path], card, foreign.schemas_of(card))
                others = [each for each in catalog.extensions().values() if each.name != arch]
                catalog.register([*others, made])
                return made
    except UserError:
        raise
    except (Exception, SystemExit) as error:  # an exit at import ends this job, not the worker
        log.exception("arch %s does not import", arch)
        raise UserError(f"arch '{arch}' is broken: {foreign.reason(error, package)}", code="broken_arch") from error
    raise UserError(f"arch '{arch}' is not in {package.path} any more", code="broken_arch")


def _candidates(package: packages.Package, arch: str) -> Any:
    """Cards of the package, the wanted one first where the source says which class it is."""
    for entry in packages.entries(package) or () if package.form == "toolkit" else ():
        if packages.arch_in_source(package, entry.class_name) == arch:
            yield foreign.one_card(package, entry.module, entry.class_name)
            return
    yield from foreign.cards(package)
