"""From a model that makes clips and sounds to the bytes that a browser gets."""

import io
import wave
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import av
import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from models.base import BaseModel
from models.batch import Audio, Clip, GenerateImageConfig
from models.prompt_embeds import AdvancedPromptEmbeds
from server.store import jobs
from worker.report import PreviewTold, Reporter
from worker.report_store import StoreReporter
from worker.sampling import preview

RATE = 8000


class Cinema(BaseModel):
    """Makes what the prompt asks for, in a grey that comes from the generator."""

    def load_model(self) -> None:
        self.model = nn.Linear(1, 1)

    def get_prompt_embeds(self, prompt: list[str], control_images: Any = None) -> AdvancedPromptEmbeds:
        return AdvancedPromptEmbeds(text_embeds=[torch.zeros(1, 4) for _ in prompt])

    def get_generation_pipeline(self) -> Any:
        assert not self.model.training
        return None

    def generate_single_image(self, pipeline: Any, gen_config: GenerateImageConfig, *rest: Any) -> Any:
        _, _, generator, _ = rest
        level = int(torch.randint(40, 200, (1,), generator=generator))
        size = (gen_config.width, gen_config.height)
        frames = [Image.new("RGB", size, (level, level, 10 * at)) for at in range(gen_config.num_frames)]
        sound = Audio(torch.rand(2, RATE, generator=generator) - 0.5, RATE)
        return {
            "picture": frames[0],
            "frames": frames,
            "clip": Clip(frames, gen_config.fps, sound),
            "sound": sound,
        }[gen_config.prompt]


class Collector(Reporter):
    """Keeps what it is told."""

    def __init__(self, workdir: Path) -> None:
        super().__init__(workdir, 10)
        self.told: list[PreviewTold] = []

    def preview(self, told: PreviewTold, done: int | None = None) -> None:
        self.told.append(told)


PROMPTS = ("picture", "frames", "clip", "sound")


def wanted(model: BaseModel, reporter: Reporter) -> preview.Round:
    configs = [GenerateImageConfig(prompt, width=32, height=16, num_frames=6, fps=4, seed=9) for prompt in PROMPTS]
    return preview.encode(model, configs, reporter)


@pytest.fixture
def cinema() -> Cinema:
    model = Cinema("cpu", SimpleNamespace(), "fp32")
    model.load_model()
    return model


def num_frames(file: Any) -> int:
    with av.open(file) as opened:
        return sum(1 for _ in opened.decode(video=0))


def test_frames_clips_and_sounds_become_previews(tmp_path: Path, cinema: Cinema) -> None:
    reporter = Collector(tmp_path)
    preview.render(cinema, wanted(cinema, reporter), reporter, step=5)
    assert cinema.model.training
    names = [(told.picture.name, told.thumbnail.name, told.animation and told.animation.name) for told in reporter.told]
    assert names == [
        ("000000005_000.png", "000000005_000.thumbnail.webp", None),
        ("000000005_001.mp4", "000000005_001.thumbnail.webp", "000000005_001.webp"),
        ("000000005_002.mp4", "000000005_002.thumbnail.webp", "000000005_002.webp"),
        ("000000005_003.wav", "000000005_003.thumbnail.webp", None),
    ]
    assert {path.name for path in (tmp_path / "samples").iterdir()} == {name for each in names for name in each if name}
    for told, prompt in zip(reporter.told, PROMPTS, strict=True):
        assert {key: told.record[key] for key in ("step", "prompt", "seed")} == {"step": 5, "prompt": prompt, "seed": 9}
    picture, frames, clip, sound = (told.record for told in reporter.told)
    assert (picture["media"], picture["width"], picture["height"]) == ("image", 32, 16)
    for record in (frames, clip):
        assert (record["media"], record["width"], record["height"]) == ("video", 32, 16)
        assert (record["num_frames"], record["fps"], record["duration_seconds"]) == (6, 4, 1.5)
    assert [sound[key] for key in ("media", "sample_rate", "channels", "duration_seconds")] == ["audio", RATE, 2, 1.0]

    assert [num_frames(str(reporter.told[at].picture)) for at in (1, 2)] == [6, 6]
    with av.open(str(reporter.told[1].picture)) as silent, av.open(str(reporter.told[2].picture)) as loud:
        assert (len(silent.streams.audio), len(loud.streams.audio), loud.streams.audio[0].rate) == (0, 1, RATE)


def test_a_record_names_control_images_as_the_job_does(tmp_path: Path, cinema: Cinema) -> None:
    files = [tmp_path / name for name in ("a.png", "b.png")]
    configs = [GenerateImageConfig("picture", width=32, height=16, ctrl_img=files[0], ctrl_img_2=files[1])]
    reporter = Collector(tmp_path)
    made = preview.encode(cinema, configs, reporter)
    made.names = {files[0]: "edits/a.png"}
    preview.render(cinema, made, reporter, step=1)
    assert reporter.told[0].record["controls"] == {"ctrl_img": "edits/a.png", "ctrl_img_2": "b.png"}


def test_the_same_seed_makes_the_same_sound(tmp_path: Path, cinema: Cinema) -> None:
    reporters = [Collector(tmp_path / name) for name in ("a", "b")]
    for reporter in reporters:
        preview.render(cinema, wanted(cinema, reporter), reporter, step=5)
    one, two = (reporter.told[3].picture.read_bytes() for reporter in reporters)
    assert one == two


def test_a_browser_gets_them_from_the_server(client: Any, cinema: Cinema) -> None:
    spec = {"name": "one", "kind": "sample", "model": {"arch": "a"}, "samples": [{"prompt": prompt} for prompt in PROMPTS]}
    jobs.add(spec)
    job = jobs.claim_next("w", ["a"])
    assert job is not None
    reporter = StoreReporter(job)
    preview.render(cinema, wanted(cinema, reporter), reporter, step=0)

    base = f"/v1/jobs/{job.id}"
    samples = client.get(f"{base}/samples").json()["samples"]
    assert [(sample["index"], sample["media"], sample["num_frames"]) for sample in samples] == [
        (1, "image", None), (2, "video", 6), (3, "video", 6), (4, "audio", None),
    ]  # fmt: skip
    kinds = ["image/png", "video/mp4", "video/mp4", "audio/wav"]
    answers = [client.get(sample["url"]) for sample in samples]
    assert [answer.headers["content-type"] for answer in answers] == kinds
    assert num_frames(io.BytesIO(answers[2].content)) == 6
    with wave.open(io.BytesIO(answers[3].content)) as file:
        assert (file.getnchannels(), file.getframerate(), file.getnframes()) == (2, RATE, RATE)
    for sample in samples:
        with Image.open(io.BytesIO(client.get(sample["thumbnail_url"]).content)) as small:
            assert small.format == "WEBP"
            assert small.size == (sample["width"], sample["height"])
    with Image.open(io.BytesIO(client.get(samples[1]["animation_url"]).content)) as moving:
        assert moving.n_frames == 6
        assert np.asarray(moving.convert("RGB")).shape == (16, 32, 3)
    listed = {file["path"]: file for file in client.get(f"{base}/files").json()["files"]}
    assert {path.rsplit(".")[-1] for path in listed} == {"png", "mp4", "webp", "wav"}
    assert client.get(listed["samples/000000000_002.webp"]["url"]).headers["content-type"] == "image/webp"
