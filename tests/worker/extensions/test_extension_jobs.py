"""Folders from elsewhere on a real stack: listed while a job trains, run with the code that they hold now."""

import json
from pathlib import Path
from typing import Any

import pytest

from server.store.settings import settings
from tests.worker.foreign_sources import THEIRS, net_weights, theirs
from worker.extensions.packages import digest


def job(tmp_path: Path, **changes: Any) -> dict[str, Any]:
    return {
        "kind": "train",
        "name": "theirs",
        "model": {
            "arch": "tiny_theirs",
            "name_or_path": str(tmp_path / "weights"),
            "dtype": "fp32",
            "model_kwargs": {"scale": 0.5},
        },
        "network": {"linear": 2},
        "datasets": [{"folder_path": "colours", "resolution": [32]}],
        "train": {"steps": 5, "lr": 1e-2, **changes},
        "save": {"save_every": 5, "dtype": "fp32"},
        "sample": {"sample_every": 5, "width": 16, "height": 16, "sample_steps": 1, "samples": [{"prompt": "a"}]},
    }


def test_a_job_file_runs_without_a_server(tmp_path: Path, pictures: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from worker import run

    pictures()
    net_weights(tmp_path / "weights")
    monkeypatch.setenv("SAFELIGHT_EXTENSIONS", str(theirs(tmp_path / "alone")))
    settings.cache_clear()
    (tmp_path / "job.json").write_text(json.dumps(job(tmp_path)))
    assert run.main(str(tmp_path / "job.json"), str(tmp_path / "out")) == 0
    (weights,) = (tmp_path / "out").rglob("theirs_*.safetensors")
    from safetensors.torch import load_file

    # only the blocks that the class names, under the keys that it writes
    assert set(load_file(weights)) == {f"diffusion_model.blocks.0.lora_{side}.weight" for side in "AB"}


def test_a_folder_appears_while_a_job_trains_and_edited_code_is_never_stale(
    tmp_path: Path, stack: Any, pictures: Any, tiny_job: Any, until: Any
) -> None:
    pictures()
    net_weights(tmp_path / "weights")
    (tmp_path / "ext").mkdir()
    up = stack(SAFELIGHT_EXTENSIONS=str(tmp_path / "ext"), SAFELIGHT_WARM_SECONDS="600")

    def listed(name: str) -> dict[str, Any] | None:
        return next((each for each in up.http.get("/v1/archs").json()["archs"] if each["arch"] == name), None)

    long = up.submit(tiny_job(**{"train.steps": 100000, "train.disable_sampling": True, "save.save_every": 100000}))
    up.wait_for(long, "running")
    theirs(tmp_path / "ext" / "pack")
    until(lambda: bool((found := listed("tiny_theirs")) and found["workers"]), "the folder was not listed")
    assert up.job(long)["status"] == "running"
    up.http.post(f"/v1/jobs/{long}/cancel")
    up.wait_for(long, "canceled")

    def run_one() -> tuple[str, tuple[int, ...]]:
        done = up.wait_for(up.submit(job(tmp_path)), "succeeded", "failed")
        assert done["status"] == "succeeded", done
        events = up.http.get(f"/v1/jobs/{done['id']}/events", headers={"Accept": "application/json"}).json()["events"]
        (told,) = [each["data"]["digest"] for each in events if each["type"] == "worker" and "digest" in each["data"]]
        newest = up.http.get(f"/v1/jobs/{done['id']}/samples/latest")
        from io import BytesIO

        from PIL import Image

        return told, Image.open(BytesIO(newest.content)).convert("RGB").getpixel((0, 0))

    first, shade = run_one()
    assert shade == (10, 0, 0) and first == digest(tmp_path / "ext" / "pack")
    again, _ = run_one()
    assert again == first
    (tmp_path / "ext" / "pack" / "network" / "model.py").write_text(THEIRS.replace("SHADE = 10", "SHADE = 200"))
    edited, shade = run_one()
    assert edited == digest(tmp_path / "ext" / "pack") != first and shade == (200, 0, 0)
    (tmp_path / "ext" / "pack" / "network" / "model.py").write_text("import nowhere\n" + THEIRS)
    until(lambda: bool((found := listed("tiny_theirs")) and found["broken"]), "the broken folder was not listed as broken")
    assert listed("tiny_theirs")["broken"] == "it needs the Python package 'nowhere', which is not installed"  # type: ignore[index]
    assert listed("pocket")["broken"] is None  # type: ignore[index]
