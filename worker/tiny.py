"""`python -m worker.tiny ARCH FOLDER`: a tiny random-weight checkpoint in the arch's real layout."""

import importlib
import sys
from collections.abc import Callable
from pathlib import Path

from models.arch import Arch
from models.errors import UserError
from worker import extensions


def need_tiny(card: Arch) -> Callable[[Path], None]:
    """The arch's `write_tiny(folder)`. Raises UserError if its module has none."""
    module = importlib.import_module(card.code.partition(":")[0])
    write: Callable[[Path], None] | None = getattr(module, "write_tiny", None)
    if write is None:
        raise UserError(
            f"arch '{card.name}' has no write_tiny(folder) in {module.__name__}, so there is no tiny checkpoint of it"
        )
    return write


def main(arch: str, folder: str) -> int:
    try:
        need_tiny(extensions.known(arch))(Path(folder))
    except UserError as error:
        print(f"safelight: {error}", file=sys.stderr)  # noqa: T201
        return 1
    for path in sorted(Path(folder).rglob("*")):
        print(path)  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
