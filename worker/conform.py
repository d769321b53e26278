"""`python -m worker.conform ARCH`: the contract's rules on that arch's tiny checkpoint, one line each.

Beside those of `models.conform` there are two on what models know nothing of: the worker's caches, and a whole job.
"""

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from models import catalog
from models.base import BaseModel
from models.conform import Broken, Subject, check, subject_for
from models.errors import UserError
from models.spec import Encoded
from worker import extensions
from worker.data.cache import key_of
from worker.data.fingerprint import space
from worker.rehearsal import a_job_runs
from worker.tiny import need_tiny


def space_versions_key_the_caches(s: Subject) -> str:
    """What was cached is found again by the same model loaded anew, and no longer once a space version is another."""
    spec: Any = catalog.job_type_of(s.card, "train").model_validate(
        {
            "kind": "train",
            "name": "conform",
            "model": {"arch": s.card.name, "name_or_path": "tiny"},
            "datasets": [{"folder_path": "none"}],
        }
    )
    again = s.build()
    kinds: tuple[tuple[Encoded, str], ...] = (("text", "text_embedding_space_version"), ("latents", "latent_space_version"))
    for kind, name in kinds:
        key = key_of(space(s.model, spec, kind))
        if not getattr(s.model, name):
            raise Broken(f"{name} is {getattr(s.model, name)!r}; it must be a text, which changes whenever the numbers do")
        if key != key_of(space(again, spec, kind)):
            raise Broken(
                f"the cached {kind} are not found again by the same model loaded anew: {name} is {getattr(s.model, name)!r}, then "
                f"{getattr(again, name)!r}"
            )
        if key == key_of(space(_bumped(again, name), spec, kind)):
            raise Broken(f"the cached {kind} would still be taken although {name} changed")
    return "found again, and not after a new version"


def _bumped(model: BaseModel, name: str) -> BaseModel:
    """The same model with another version, whether its class or itself says the version."""
    model.__class__ = type("Bumped", (type(model),), {name: f"{getattr(model, name)} and another"})
    vars(model).pop(name, None)
    return model


MORE_RULES = (space_versions_key_the_caches, a_job_runs)


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
        for seen in check(subject_for(card, Path(folder)), MORE_RULES):
            broken += not seen.holds
            mark = "ok    " if seen.holds else "BROKEN"
            print(f"{mark}  {seen.rule.replace('_', ' '):<36} {seen.text}  ({seen.seconds:.1f} s)", flush=True)  # noqa: T201
    print(f"{arch}: {'conforms' if not broken else f'{broken} rules are broken'}")  # noqa: T201
    return min(broken, 1)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
