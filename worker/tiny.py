"""`python -m worker.tiny ARCH FOLDER`: a tiny random-weight checkpoint in the arch's real layout."""

import importlib
import sys
from pathlib import Path

from models import catalog


def main(arch: str, folder: str) -> int:
    module = importlib.import_module(catalog.arch(arch).code.partition(":")[0])
    module.write_tiny(Path(folder))
    for path in sorted(Path(folder).rglob("*")):
        print(path)  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
