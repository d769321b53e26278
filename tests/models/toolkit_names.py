"""ai-toolkit's names for a test: `toolkit_names` makes them importable, `get` looks one up."""

import importlib
from collections.abc import Iterator
from typing import Any

import pytest

from models import toolkit


@pytest.fixture
def toolkit_names() -> Iterator[None]:
    with toolkit.installed():
        yield


def get(dotted: str) -> Any:
    module, _, name = dotted.rpartition(".")
    return getattr(importlib.import_module(module), name)
