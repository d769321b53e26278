"""`python -m tests.dropin PATH`: how much of an ai-toolkit checkout runs here as it is.

For every architecture folder under PATH/extensions_built_in/diffusion_models it prints how far it came: imported, listed (with a card and
job schemas), built from tiny random weights, trained 5 steps, saved, previewed, and the reason where it did not. Nothing is downloaded;
folders without a recipe in tests/dropin_tiny.py are only imported and listed. Each folder is copied into a package of its own, which
registers its classes with a one-line AI_TOOLKIT_MODELS list. A name that Safelight has itself gets `.theirs` behind it in that copy.
"""

import ast
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from PIL import Image

from models import catalog
from tests.dropin_tiny import RECIPES

STEPS = 5
SUFFIX = ".theirs"
HOME = Path("extensions_built_in/diffusion_models")
LONGEST_SECONDS = 600
STAGES = ("imported", "listed", "built", "trained", "saved", "previewed")


@dataclass
class Result:
    folder: str
    stages: dict[str, bool] = field(default_factory=lambda: dict.fromkeys(STAGES, False))
    archs: list[str] = field(default_factory=list)
    reason: str = ""

    def line(self) -> str:
        done = "  ".join(f"{stage if self.stages[stage] else '-':9}" for stage in STAGES)
        return f"{self.folder:16} {done}  {', '.join(self.archs)}{'  | ' + self.reason if self.reason else ''}"


def classes_of(folder: Path) -> list[str]:
    """The names of the model classes that a folder's `__init__.py` defines or hands on: those with an `arch` in their body."""
    init = ast.parse((folder / "__init__.py").read_text())
    handed = {alias.asname or alias.name for line in ast.walk(init) if isinstance(line, ast.ImportFrom) for alias in line.names}
    return [name for name in _model_classes(folder) if name in handed or _defined(init, name)]


def _model_classes(folder: Path) -> Iterator[str]:
    for path in sorted(folder.glob("*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and any(_sets_arch(line) for line in node.body):
                yield node.name


def _defined(module: ast.Module, name: str) -> bool:
    return any(isinstance(node, ast.ClassDef) and node.name == name for node in module.body)


def _sets_arch(line: ast.stmt) -> bool:
    return isinstance(line, ast.Assign) and any(isinstance(target, ast.Name) and target.id == "arch" for target in line.targets)


def package_for(folder: Path, where: Path) -> Path:
    """A package with a copy of the folder and the one-line list."""
    package = where / HOME
    package.mkdir(parents=True)
    shutil.copytree(folder, package / folder.name, ignore=shutil.ignore_patterns("__pycache__"))
    for path in (package / folder.name).rglob("*.py"):
        source = path.read_text()
        renamed = re.sub(r'^(\s+arch\s*=\s*")([^"]+)(")', _renamed, source, flags=re.MULTILINE)
        if renamed != source:
            path.write_text(renamed)
    names = ", ".join(classes_of(folder))
    (package / "__init__.py").write_text(f"from .{folder.name} import {names}\nAI_TOOLKIT_MODELS = [{names}]\n")
    return package


def _renamed(line: re.Match[str]) -> str:
    return line[1] + line[2] + (SUFFIX if line[2] in catalog.bundled() else "") + line[3]


def check(folder: Path, where: Path) -> Result:
    """Take one folder as far as it goes."""
    result = Result(folder.name)
    env = {**os.environ, "SAFELIGHT_HOME": str(where / "home"), "SAFELIGHT_DATA_ROOTS": str(where), "HF_HUB_OFFLINE": "1"}
    env |= {"SAFELIGHT_EXTENSIONS": str(package_for(folder, where)), "SAFELIGHT_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    env |= {"HF_HOME": str(where / "hub"), "HF_HUB_CACHE": str(where / "hub" / "hub")}
    code, text = _run([sys.executable, "-m", "worker.extensions.discover"], env)
    rows = json.loads(_run([sys.executable, "-m", "tests.dropin", "--rows"], env)[1] or "[]")
    broken = [f"{row['name']}: {row['broken']}" for row in rows if row["broken"]]
    result.archs = [row["name"] for row in rows if not row["broken"]]
    result.stages["imported"] = bool(rows) and not broken
    result.stages["listed"] = bool(result.archs) and all(row["schemas"] for row in rows if not row["broken"])
    if broken or not rows:
        result.reason = "; ".join(broken) or text.strip()[-300:]
        return result
    arch = next((name for name in result.archs if name.removesuffix(SUFFIX) in RECIPES), None)
    if arch is None:
        result.reason = "no tiny weights"
        return result
    recipe = RECIPES[arch.removesuffix(SUFFIX)]
    weights = where / "weights"
    code, text = _run([sys.executable, "-m", "tests.dropin_tiny", arch, str(weights)], env)
    if code:
        result.reason = f"tiny weights: {text.strip().splitlines()[-1]}"
        return result
    job = job_for(arch, weights / recipe.file, where, recipe.options(weights))
    if recipe.control:
        job["datasets"][0]["control_path"] = str(where / "data")
        job["sample"]["samples"][0]["ctrl_img"] = str(where / "data" / "0.png")
    (where / "job.json").write_text(json.dumps(job))
    command = [sys.executable, "-m", "tests.dropin_tiny", arch, str(weights), str(where / "job.json"), str(where / "run")]
    code, text = _run(command, env)
    result.stages["built"] = "caching" in text
    result.stages["trained"] = code == 0
    result.stages["saved"] = any(path.name.startswith(arch) for path in (where / "run").rglob("*.safetensors"))
    result.stages["previewed"] = any((where / "run" / "samples").glob("*.*"))
    if not all(result.stages.values()):
        lines = text.strip().splitlines()
        frames = [line.strip() for line in lines if re.match(r"\s+File ", line)]
        result.reason = f"{lines[-1]} ({frames[-1]})" if frames else lines[-1]
    return result


def job_for(arch: str, weights: Path, where: Path, options: dict[str, object]) -> dict[str, Any]:
    data = where / "data"
    data.mkdir(exist_ok=True)
    for index, colour in enumerate([(255, 0, 0), (0, 0, 255)]):
        Image.new("RGB", (64, 64), colour).save(data / f"{index}.png")
        (data / f"{index}.txt").write_text(f"colour {index}")
    return {
        "kind": "train",
        "name": arch,
        "model": {"arch": arch, "name_or_path": str(weights), "dtype": "fp32", "model_kwargs": options},
        "network": {"linear": 2, "linear_alpha": 2.0},
        "datasets": [{"folder_path": str(data), "resolution": [64]}],
        "train": {"steps": STEPS, "batch_size": 1, "skip_first_sample": True},
        "save": {"save_every": STEPS, "dtype": "fp32"},
        "sample": {"sample_every": STEPS, "width": 64, "height": 64, "sample_steps": 2, "samples": [{"prompt": "colour 0"}]},
    }


def _run(command: list[str], env: dict[str, str]) -> tuple[int, str]:
    try:
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=LONGEST_SECONDS)
    except subprocess.TimeoutExpired:
        return 124, f"took longer than {LONGEST_SECONDS} s"
    return done.returncode, done.stdout if "--rows" in command else done.stdout + done.stderr


def main(arguments: list[str]) -> int:
    if arguments == ["--rows"]:
        from server.store import extensions

        print(json.dumps([row.model_dump() for row in extensions.listing()]))
        return 0
    if not arguments:
        print(__doc__)
        return 2
    root = Path(arguments[0]).expanduser().resolve()
    root = root / HOME if (root / HOME).is_dir() else root
    wanted = set(arguments[1:])
    folders = [
        path for path in sorted(root.iterdir()) if (path / "__init__.py").is_file() and (not wanted or path.name in wanted)
    ]
    counts: Counter[str] = Counter()
    for folder in folders:
        with tempfile.TemporaryDirectory() as temporary:
            result = check(folder, Path(temporary))
        print(result.line(), flush=True)
        counts.update(stage for stage in STAGES if result.stages[stage])
    print(", ".join(f"{stage} {counts[stage]}/{len(folders)}" for stage in STAGES))
    return 0 if counts["listed"] == len(folders) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
