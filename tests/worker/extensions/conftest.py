"""What a watcher does when folders change, and a catalogue that forgets them after each test."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from models import catalog
from server.store import extensions
from server.store.engine import migrate
from server.store.settings import settings
from worker.extensions import discover


@pytest.fixture
def look(home: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, Any]]:
    """`look(folder, ...)` does what the watcher does when these folders change; the answer is the table, by name."""

    def find(*folders: Path, everything: bool = False) -> dict[str, Any]:
        monkeypatch.setenv("SAFELIGHT_EXTENSIONS", ",".join(map(str, folders)))
        settings.cache_clear()
        migrate()
        discover.look(everything)
        return {row.name: row for row in extensions.listing()}

    return find


@pytest.fixture(autouse=True)
def forgotten() -> Any:
    yield
    catalog.register([])
