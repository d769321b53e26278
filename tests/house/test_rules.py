"""How code reads here, as far as a machine can tell."""

import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import text
from sqlmodel import SQLModel

from server.store.engine import engine, migrate

LONGEST_LINES: dict[str, int] = {}
LONGEST, LONGEST_NETWORK, LONGEST_TEST = 400, 800, 300


def ruff(root: Path, *arguments: str, given: str | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ruff", "check", "--no-cache", *arguments]
    return subprocess.run(command, cwd=root, input=given, capture_output=True, text=True, timeout=100)


@pytest.fixture(scope="session")
def project(root) -> dict[str, Any]:
    return tomllib.loads((root / "pyproject.toml").read_text())


def test_nothing_prints_and_nobody_else_is_called_base_model(root) -> None:
    done = ruff(root, "--select", "T20,TID251", "models", "server", "worker")
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("file", "line", "rule"),
    [
        ("server/api/some.py", "from pydantic import BaseModel", "TID251"),
        ("worker/some.py", "import pydantic\n\nx = pydantic.BaseModel", "TID251"),
        ("models/archs/some/card.py", "from pydantic import BaseModel", "TID251"),
        ("server/some.py", "print(1)", "T201"),
        ("models/some.py", "print(1)", "T201"),
    ],
)
def test_the_rules_would_be_noticed(root, file, line, rule) -> None:
    done = ruff(root, "--stdin-filename", file, "-", given=line + "\n")
    assert rule in done.stdout


def test_files_stay_short(root) -> None:
    found = {}
    for room in ("models", "server", "worker", "tests"):
        for path in (root / room).rglob("*.py"):
            name = path.relative_to(root).as_posix()
            limit = LONGEST_TEST if room == "tests" else LONGEST_NETWORK if path.name == "network.py" else LONGEST
            if (lines := len(path.read_text().splitlines())) > LONGEST_LINES.get(name, limit):
                found[name] = lines
    assert found == {}


def test_nothing_names_the_folder_that_the_repository_lies_in(root) -> None:
    found = []
    for room in ("models", "server", "worker", "docs", "tests", "bench", "ui/src", "ui/e2e"):
        for path in (root / room).rglob("*"):
            if path.suffix in {".py", ".ts", ".tsx", ".md", ".mjs"} and "node_modules" not in path.parts:
                found += [path.relative_to(root)] if str(root) in path.read_text() else []
    assert found == []


def test_tests_are_collected_by_path_not_by_package(project) -> None:
    assert "--import-mode=importlib" in project["tool"]["pytest"]["ini_options"]["addopts"]


def test_the_wheel_holds_the_three_rooms_the_page_and_the_demo(root, tmp_path) -> None:
    """Built from a copy in which the page and the demo are there but ignored by git, as after `make build`."""
    for name in ("pyproject.toml", "README.md", "LICENSE", ".gitignore"):
        shutil.copy(root / name, tmp_path / name)
    for room in ("models", "server", "worker"):
        shutil.copytree(root / room, tmp_path / room, ignore=shutil.ignore_patterns("static", "demo", "__pycache__"))
    for made in ("server/static/index.html", "server/static/assets/app.js", "server/demo/avocado.png"):
        (tmp_path / made).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / made).write_text("made by a build")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path / "dist")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    [wheel] = (tmp_path / "dist").glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {"server/static/index.html", "server/static/assets/app.js", "server/demo/avocado.png"} <= names
    assert {
        "server/cli.py",
        "worker/app.py",
        "models/catalog.py",
        "server/migrations/env.py",
        "server/migrations/script.py.mako",
    } <= names
    assert any(name.startswith("server/migrations/versions/0001") for name in names)
    assert {name.split("/")[0] for name in names if ".dist-info" not in name} == {"models", "server", "worker"}


def test_a_fresh_database_is_what_the_tables_say(migrated) -> None:
    with engine().connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True, "compare_server_default": True})
        assert compare_metadata(context, SQLModel.metadata) == []


def test_migrating_twice_changes_nothing(migrated) -> None:
    def schema() -> list[tuple[Any, ...]]:
        with engine().connect() as connection:
            return [tuple(row) for row in connection.execute(text("SELECT type, name, sql FROM sqlite_master ORDER BY name"))]

    before = schema()
    migrate()
    assert schema() == before
    assert len(before) > 10
