"""Jobs as a user would write them, for every arch of the catalogue."""

from collections.abc import Callable
from typing import Any

import pytest

from models import catalog
from models.errors import Problem, SpecError
from tests.models.tiny_bases import bases, changed  # noqa: F401 - fixtures
from tests.models.toolkit_names import toolkit_names  # noqa: F401 - a fixture


@pytest.fixture
def faults() -> Callable[[Any], list[Problem]]:
    """`faults(job)`: what is wrong with it; fails when nothing is."""

    def find(job: Any) -> list[Problem]:
        with pytest.raises(SpecError) as refused:
            catalog.parse_job(job)
        return refused.value.problems

    return find


@pytest.fixture
def sample_job() -> dict[str, Any]:
    """The smallest sampling job."""
    return {
        "kind": "sample",
        "name": "one",
        "model": {"arch": "pocket", "name_or_path": "random"},
        "samples": [{"prompt": "a red apple"}],
    }
