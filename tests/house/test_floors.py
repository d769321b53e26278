"""The floors of docs/architecture.md: who may know whom."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import worker
from models import catalog

CODE = {".py", ".ts", ".tsx", ".mjs"}
ROOMS = ("models", "server", "worker", "ui/src", "ui/e2e", "ui/scripts")
HEAVY = {"torch", "diffusers", "transformers", "optimum", "worker"}


def test_the_import_contracts_hold(root) -> None:
    command = [str(Path(sys.executable).parent / "lint-imports"), "--no-cache"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr
    assert "0 broken" in done.stdout


LOADED = """
import importlib, sys
importlib.import_module(sys.argv[1])
print(*sorted({name.partition(".")[0] for name in sys.modules} | {name for name in sys.modules if name.startswith("PIL.")}))
"""


@pytest.mark.parametrize(
    "module", ["server.app", "server.cli", "server.up", "models.catalog", "models.data.datasets", "worker.app"]
)
def test_no_process_but_the_workers_child_loads_torch(root, module) -> None:
    done = subprocess.run([sys.executable, "-c", LOADED, module], cwd=root, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    loaded = set(done.stdout.split())
    assert module.partition(".")[0] in loaded
    assert loaded & (HEAVY - {module.partition(".")[0]}) == set()


def test_a_run_imports_only_what_every_model_needs(root) -> None:
    """Quantization, clips, predictions and the database are imported by the jobs that use them: each takes a good part of a second."""
    done = subprocess.run([sys.executable, "-c", LOADED, "worker.run"], cwd=root, capture_output=True, text=True, timeout=100)
    loaded = set(done.stdout.split())
    assert {"worker", "torch"} <= loaded, done.stderr
    assert loaded & {"optimum", "diffusers", "transformers", "av", "sqlmodel", "sqlalchemy", "alembic", "celery"} == set()
    assert loaded & {"PIL.ImageDraw", "PIL._imagingft"} == set()  # the libraries of fonts


def test_a_worker_collects_young_objects_as_ever_and_all_of_them_seldom() -> None:
    """Full collections were a tenth of the CPU seconds from a run's start to its first step: what is imported stays, all of it."""
    script = "import gc; before = gc.get_threshold(); import worker; print(gc.get_threshold()[:2] == before[:2], gc.get_threshold()[2])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=100)
    assert done.stdout.split() == ["True", str(worker.FULL_COLLECTIONS_APART)], done.stderr
    assert worker.FULL_COLLECTIONS_APART >= 100


def test_no_arch_is_named_outside_of_its_folder(root) -> None:
    word = re.compile(rf"\b({'|'.join(map(re.escape, catalog.archs()))})\b")
    folders = {card.code.split(".")[2] for card in catalog.archs().values()}
    homes = [root / "models" / "archs" / name for name in folders]
    looked, found = 0, []
    for room in ROOMS:
        for path in (root / room).rglob("*"):
            if path.suffix not in CODE or "node_modules" in path.parts or any(path.is_relative_to(home) for home in homes):
                continue
            looked += 1
            found += [
                f"{path.relative_to(root)}:{number}: {line.strip()}"
                for number, line in enumerate(path.read_text().splitlines(), 1)
                if word.search(line)
            ]
    assert looked > 80
    assert found == []


def test_every_arch_lives_in_a_folder_with_what_a_reader_needs(root) -> None:
    for card in catalog.archs().values():
        package, _, model = card.code.partition(":")
        folder = root / Path(*package.split(".")).parent
        assert (folder / "card.py").is_file()
        assert f"class {model}(" in (root / Path(*package.split("."))).with_suffix(".py").read_text()


def test_the_tests_are_no_package(root) -> None:
    """`tests/models/__init__.py` would hide the real `models`."""
    assert list((root / "tests").rglob("__init__.py")) == []
