"""One tiny job on an architecture's tiny checkpoint, with every input that its card claims, run as a user's job is: a rule of
`safelight conform`. What a loop or a check refuses shows here, which no single call of the contract can show."""

import contextlib
import math
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from models import catalog
from models.arch import Arch
from models.batch import Audio
from models.conform import Broken, Subject
from models.conform.subject import FRAMES, PROMPTS
from models.data.datasets import Folders
from models.errors import SpecError, UserError
from models.extensions import Extension
from worker.load import Places
from worker.report import PreviewTold, Reporter
from worker.run import run
from worker.sampling.sound import write_wav
from worker.sampling.video import write_mp4

STEPS = 2
FPS = 8
RATE = 16000  # of the sounds, in Hz


def a_job_runs(s: Subject) -> str:
    """Two steps of training with the card's inputs, and a preview that gets all of them; where the card claims a training adapter, the
    same again with the first job's adapter as that."""
    with tempfile.TemporaryDirectory() as folder, listed(s.card):
        where = Path(folder)
        folders = _data(s, where / "data")
        adapter = _job(s, folders, where / "run")
        if s.has("training_adapter"):
            if adapter is None:
                raise Broken("the card claims training_adapter, but its jobs train no adapter")
            _job(s, folders, where / "again", adapter)
    claimed = [word for word in ("edit", "multi_reference", "video", "i2v", "audio", "training_adapter") if s.has(word)]
    return f"{STEPS} steps and a preview with {', '.join(claimed) or 'a prompt'}"


def _job(s: Subject, folders: Folders, workdir: Path, adapter: Path | None = None) -> Path | None:
    """Run it; the adapter that it saved."""
    raw = _spec(s, folders, adapter)
    try:
        spec = catalog.parse_job(raw)
    except SpecError as refused:
        raise Broken("its job is refused: " + "; ".join(f"{p.pointer}: {p.message}" for p in refused.problems)) from None
    controls = {key: Path(key) for key in _controls(s, folders).values()}
    places = Places(s.checkpoint, datasets=[folders], controls=controls, cache=workdir / "cache", training_adapter=adapter)
    reporter = _Collector(workdir, STEPS)
    try:
        run(spec, places, reporter, "cpu")
    except UserError as refused:
        raise Broken(f"its job ends with: {refused}") from refused
    if len(reporter.previews) != 1:
        raise Broken(f"its job makes no preview: {'; '.join(reporter.warnings) or 'nothing says why'}")
    wanted = "audio" if s.card.modality == "audio" else "video" if s.has("video") else "image"
    if (made := reporter.previews[0]["media"]) != wanted:
        raise Broken(f"its preview is of kind {made}; wanted {wanted}")
    return next(iter(sorted(workdir.rglob("step_*/*.safetensors"))), None)


def _spec(s: Subject, folders: Folders, adapter: Path | None) -> dict[str, Any]:
    """The job as JSON."""
    width, height = s.size
    dataset: dict[str, Any] = {"folder_path": str(folders.items), "resolution": [max(width, height)]}
    dataset |= {key: str(path) for key, path in zip(("control_path", "control_path_1"), folders.controls, strict=False)}
    dataset |= {"num_frames": FRAMES, "fps": FPS} if s.has("video") else {}
    dataset |= {"do_i2v": True} if s.has("i2v") else {}
    dataset |= {"do_audio": True, "shrink_video_to_frames": False} if s.has("audio") and s.has("video") else {}
    sample: dict[str, Any] = {"width": width, "height": height, "sample_steps": 2, "guidance_scale": 2.0, "sample_every": STEPS}
    sample |= {"num_frames": FRAMES, "fps": FPS} if s.has("video") else {}
    model = {"arch": s.card.name, "name_or_path": str(s.checkpoint), "dtype": "fp32", "model_kwargs": s.options}
    return {
        "kind": "train",
        "name": "conform",
        "model": model if adapter is None else {**model, "assistant_lora_path": str(adapter)},
        "datasets": [dataset],
        "train": {"steps": STEPS, "batch_size": 2, "skip_first_sample": True},
        "save": {"save_every": STEPS, "dtype": "fp32"},
        "sample": {**sample, "samples": [{"prompt": PROMPTS[0], **_controls(s, folders)}]},
        **({"network": {"linear": 2}} if "lora" in s.card.adapters else {}),
    }


def _controls(s: Subject, folders: Folders) -> dict[str, str]:
    """The control images of the preview, by key; an image-to-video model's is its first frame."""
    keys = ("ctrl_img", "ctrl_img_1")
    found = {key: str(folder / "0.png") for key, folder in zip(keys, folders.controls, strict=False)}
    return found or ({"ctrl_img": str(folders.items.parent / "first.png")} if s.has("i2v") else {})


def _data(s: Subject, folder: Path) -> Folders:
    """Two items of the kind that the card takes, with captions, and the pictures that condition them."""
    controls = [folder / f"control_{number}" for number in range(2 if s.has("multi_reference") else int(s.has("edit")))]
    for each in (folder / "items", *controls):
        each.mkdir(parents=True)
    for number, prompt in enumerate(PROMPTS):
        stem = folder / "items" / str(number)
        stem.with_suffix(".txt").write_text(prompt)
        frames = [Image.effect_noise(s.size, 30 + 20 * number + frame).convert("RGB") for frame in range(FRAMES)]
        if s.card.modality == "audio":
            write_wav(stem.with_suffix(".wav"), _sound())
        elif s.has("video"):
            write_mp4(stem.with_suffix(".mp4"), frames, FPS, _sound() if s.has("audio") else None, {})
        else:
            frames[0].save(stem.with_suffix(".png"))
        for control in controls:
            frames[1].save(control / f"{number}.png")
    Image.effect_noise(s.size, 90).convert("RGB").save(folder / "first.png")
    return Folders(folder / "items", controls=tuple(controls))


def _sound() -> Audio:
    return Audio(torch.sin(torch.linspace(0, 2 * math.pi * 220, RATE)).expand(2, -1) / 2, RATE)


@contextlib.contextmanager
def listed(card: Arch) -> Iterator[None]:
    """Inside, the card is in the catalogue, as the template's and its variants' are not."""
    before = catalog.extensions().values()
    if catalog.archs().get(card.name) is not card:
        catalog.register([*before, Extension(card.name, "", "", card)])
    try:
        yield
    finally:
        catalog.register(before)


class _Collector(Reporter):
    """Keeps the records of previews and the warnings; prints nothing."""

    def __init__(self, workdir: Path, total_steps: int) -> None:
        super().__init__(workdir, total_steps)
        self.previews: list[dict[str, Any]] = []
        self.warnings: list[str] = []

    def preview(self, told: PreviewTold, done: int | None = None) -> None:  # noqa: ARG002
        self.previews.append(told.record)

    def log(self, message: str, level: str = "INFO") -> None:
        if level != "INFO":
            self.warnings.append(message)
