"""Pause, previews and checkpoints on demand, pins, and a job that goes on changed, in a real browser. The walk is ui/e2e/control.mjs."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
SMALL = {
    "model": {"model_kwargs": {"channels": [16, 32]}},
    "train": {"batch_size": 4, "lr_warmup_steps": 1},
    "sample": {"sample_every": 100000, "sample_steps": 2},
    "save": {"save_every": 100000},
}


@pytest.mark.skipif(CHROMIUM is None, reason="NO BROWSER: install chromium or set CHROMIUM; the page is not tested without one")
def test_controls(stack, tmp_path: Path) -> None:
    up = stack()
    env = {**os.environ, "CHROMIUM": str(CHROMIUM), "SAFELIGHT_E2E_PATCH": json.dumps(SMALL), "SAFELIGHT_E2E_STEPS": "100000"}
    walk = ["sh", "ui/with-node.sh", "node", "ui/e2e/control.mjs", f"http://127.0.0.1:{up.port}", str(tmp_path)]
    ran = subprocess.run(walk, cwd=ROOT, env=env, capture_output=True, text=True, timeout=300, check=False)
    assert ran.returncode == 0, ran.stdout[-3000:] + ran.stderr[-2000:] + up.log.read_text()[-2000:]
