"""`python -m worker.conform ARCH`: the contract's rules on that arch's tiny checkpoint, one line each."""

import os
import sys
import tempfile
from pathlib import Path

import torch

from models.conform import check, subject_for
from models.errors import UserError
from worker import extensions
from worker.tiny import need_tiny


def main(arch: str) -> int:
    """0 if every rule holds."""
    os.environ.setdefault("TQDM_DISABLE", "1")
    torch.set_num_threads(1)
    try:
        card = extensions.known(arch)
        need_tiny(card)
    except UserError as error:
        print(f"safelight: {error}", file=sys.stderr)  # noqa: T201
        return 1
    broken = 0
    with tempfile.TemporaryDirectory() as folder:
        for seen in check(subject_for(card, Path(folder))):
            broken += not seen.holds
            mark = "ok    " if seen.holds else "BROKEN"
            print(f"{mark}  {seen.rule.replace('_', ' '):<36} {seen.text}  ({seen.seconds:.1f} s)", flush=True)  # noqa: T201
    print(f"{arch}: {'conforms' if not broken else f'{broken} rules are broken'}")  # noqa: T201
    return min(broken, 1)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
