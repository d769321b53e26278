"""A real browser, from the form to the preview, against a real stack. The walks are ui/e2e/form-to-preview.mjs and form.mjs."""

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
    "train": {"lr_warmup_steps": 1},
    "sample": {"sample_every": 3, "sample_steps": 2},
    "save": {"save_every": 3},
}


@pytest.mark.skipif(CHROMIUM is None, reason="NO BROWSER: install chromium or set CHROMIUM; the page is not tested without one")
def test_form_to_preview(stack, tmp_path: Path) -> None:
    up = stack()
    env = {**os.environ, "CHROMIUM": str(CHROMIUM), "SAFELIGHT_E2E_PATCH": json.dumps(SMALL)}
    walk = ["sh", "ui/with-node.sh", "node", "ui/e2e/form-to-preview.mjs", f"http://127.0.0.1:{up.port}", str(tmp_path)]
    ran = subprocess.run(walk, cwd=ROOT, env=env, capture_output=True, text=True, timeout=200, check=False)
    assert ran.returncode == 0, ran.stdout[-2000:] + ran.stderr[-2000:] + up.log.read_text()[-2000:]


@pytest.mark.skipif(CHROMIUM is None, reason="NO BROWSER: install chromium or set CHROMIUM; the page is not tested without one")
def test_the_form_itself(stack, tmp_path: Path) -> None:
    up = stack("serve")
    walk = ["sh", "ui/with-node.sh", "node", "ui/e2e/form.mjs", f"http://127.0.0.1:{up.port}", str(tmp_path)]
    env = {**os.environ, "CHROMIUM": str(CHROMIUM)}
    ran = subprocess.run(walk, cwd=ROOT, env=env, capture_output=True, text=True, timeout=200, check=False)
    assert ran.returncode == 0, ran.stdout[-2000:] + ran.stderr[-2000:] + up.log.read_text()[-2000:]
