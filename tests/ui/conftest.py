"""How a walk of ui/e2e is taken in a real browser; without one the tests here skip, and say so."""

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")


@pytest.fixture
def walk(tmp_path: Path) -> Callable[..., None]:
    """`walk(name, up, *arguments, seconds=200, **env)`: take ui/e2e/NAME.mjs through the stack `up`; the last argument that every walk
    gets is a folder for its screenshots. Fails with what the walk and the stack said."""
    if CHROMIUM is None:
        pytest.skip("NO BROWSER: install chromium or set CHROMIUM; the page is not tested without one")

    def take(name: str, up: Any, *arguments: str, seconds: float = 200, **env: str) -> None:
        command = ["sh", "ui/with-node.sh", "node", f"ui/e2e/{name}.mjs", f"http://127.0.0.1:{up.port}", *arguments]
        command.append(str(tmp_path / "screens"))
        surroundings = {**os.environ, "CHROMIUM": str(CHROMIUM), **env}
        ran = subprocess.run(command, cwd=ROOT, env=surroundings, capture_output=True, text=True, timeout=seconds, check=False)
        assert ran.returncode == 0, ran.stdout[-3000:] + ran.stderr[-2000:] + up.log.read_text()[-2000:]

    return take
