"""A preview's control image that is gone, or is no picture, costs its own pictures: no training ends for it, and a plan says it before."""

import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from models.archs.flux2_klein.model import write_tiny
from models.errors import UserError

MODEL = {"arch": "flux2_klein_4b", "name_or_path": "tiny", "dtype": "fp32", "model_kwargs": {"max_text_length": 48}}
PROMPTS = [
    {"prompt": "gone", "ctrl_img": "colours/001.png"},
    {"prompt": "plain"},
    {"prompt": "two", "ctrl_img": "colours/002.png", "ctrl_img_1": "colours/003.png"},
]


@pytest.fixture
def job(home: Path, pictures: Any) -> dict[str, Any]:
    write_tiny(home / "models" / "tiny")
    pictures(size=64)
    for name in ("001", "002", "003"):
        Image.open(home / f"datasets/colours/{name}.png").save(home / f"datasets/{name}.png")
    prompts = json.loads(json.dumps(PROMPTS).replace("colours/", ""))
    return {
        "kind": "train",
        "name": "klein",
        "model": MODEL,
        "network": {"linear": 2, "linear_alpha": 2.0},
        "datasets": [{"folder_path": "colours", "resolution": [64]}],
        "train": {"steps": 2, "batch_size": 1, "skip_first_sample": True},
        "save": {"save_every": 10, "recover_every_seconds": 3600.0},
        "sample": {"sample_every": 2, "width": 32, "height": 32, "sample_steps": 1, "samples": prompts},
    }


@pytest.fixture
def listener(scripted: Any) -> Any:
    def make(folder: str, **more: Any) -> Any:
        reporter = scripted(folder, **more)
        reporter.said = []
        reporter.log = lambda message, level="INFO": reporter.said.append((level, message))
        return reporter

    return make


def test_a_run_that_goes_on_leaves_the_prompt_out_and_the_others_as_they_were(
    job, run_here, listener, stopped, state_of, same, home
) -> None:
    whole = listener("whole")
    run_here(job, whole)
    assert whole.heard("preview") == [(2, 0), (2, 1), (2, 2)]
    stopped(job, ("step", 1))
    (home / "datasets/001.png").unlink()
    (home / "datasets/003.png").write_text("no picture")
    rest = listener("cut")
    run_here(job, rest)
    assert [message for level, message in rest.said if level == "WARNING"] == [
        "the previews of prompt 0 are left out, since its control image 001.png is missing",
        "the previews of prompt 2 are left out, since its control image 003.png cannot be used: "
        "not a picture in any form that is read",
    ]
    assert rest.heard("preview") == [(2, 1)]
    name = "samples/000000002_001.png"  # its number, and with it its seed, is what it was
    assert (rest.workdir / name).read_bytes() == (whole.workdir / name).read_bytes()
    assert same(state_of(rest.workdir, 2), state_of(whole.workdir, 2))


def test_a_job_that_makes_nothing_but_pictures_says_what_is_missing(job, run_here) -> None:
    sampling = {key: job[key] for key in ("name", "model")} | {
        "kind": "sample",
        "samples": [{"prompt": "a", "ctrl_img": "gone.png"}],
    }
    with pytest.raises(UserError, match=r"gone\.png is missing"):
        run_here(sampling)


def test_a_plan_opens_them(client, job, home) -> None:
    (home / "datasets/003.png").write_text("no picture")
    data = (home / "datasets/002.png").read_bytes()
    (home / "datasets/002.png").write_bytes(data[: len(data) // 2])
    (home / "datasets/001.png").unlink()
    found = client.post("/v1/jobs/validate", json=job).json()["problems"]
    assert {each["pointer"]: each["message"].partition("datasets/")[2] for each in found} == {
        "/sample/samples/0/ctrl_img": "001.png is missing",
        "/sample/samples/2/ctrl_img": "002.png cannot be used: cut short",
        "/sample/samples/2/ctrl_img_1": "003.png cannot be used: not a picture in any form that is read",
    }
