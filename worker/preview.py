"""Pictures, clips and sounds made during a job: configs from the spec, embeds made beforehand, files written whole, then told."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from models.base import BaseModel, Embeds
from models.batch import GenerateImageConfig
from models.datasets import open_picture
from models.spec import CONTROLS, PreviewPrompt, SamplingDefaults
from worker.data.decode import unit_pixels
from worker.media import write
from worker.report import PreviewTold, Reporter

Round = Sequence[tuple[GenerateImageConfig, Embeds, Embeds]]


def configs(
    shared: SamplingDefaults, samples: Sequence[PreviewPrompt], controls: Mapping[str, Path]
) -> list[GenerateImageConfig]:
    """One config per prompt; what a prompt leaves out comes from the section. `controls` maps control paths as given to files."""

    def one(index: int, sample: PreviewPrompt) -> GenerateImageConfig:
        own = {key: value for key, value in sample.model_dump().items() if value is not None}
        files: dict[str, Any] = {key: controls[own[key]] for key in CONTROLS if key in own}
        return GenerateImageConfig(
            prompt=sample.prompt,
            negative_prompt=own.get("neg", shared.neg),
            width=own.get("width", shared.width),
            height=own.get("height", shared.height),
            seed=own.get("seed", (shared.seed + index * shared.walk_seed) % 2**32),
            guidance_scale=own.get("guidance_scale", shared.guidance_scale),
            num_inference_steps=own.get("sample_steps", shared.sample_steps),
            num_frames=own.get("num_frames", shared.num_frames),
            fps=own.get("fps", shared.fps),
            **files,
        )

    return [one(index, sample) for index, sample in enumerate(samples)]


def encode(model: BaseModel, wanted: Sequence[GenerateImageConfig], reporter: Reporter) -> Round:
    """Embeds of every prompt and negative prompt, so that the text encoder is not needed again. A text encoder that sees the
    control images gets them with both."""
    known: dict[Any, Embeds] = {}

    def embeds(text: str, config: GenerateImageConfig) -> Embeds:
        controls = tuple(config.control_images) if model.encode_control_in_text_embeddings else ()
        if (text, controls) not in known:
            reporter.check()
            known[text, controls] = model.encode_prompt(text, control_images=control_images(model, controls))
        return known[text, controls]

    made = []
    for config in wanted:
        model.prepare_sample_prompt_context(config)
        made.append((config, embeds(config.prompt, config), embeds(config.negative_prompt, config)))
    return made


def control_images(model: BaseModel, paths: Sequence[Path]) -> Any:
    """Control files as the contract hands them to text encoders: (1, 3, H, W) in [0, 1], a list of them for multi-control models,
    None without any."""
    tensors: list[torch.Tensor] = [unit_pixels(open_picture(path))[None] for path in paths]
    if not tensors:
        return None
    return tensors if model.has_multiple_control_images else tensors[0]


def render(
    model: BaseModel, wanted: Round, reporter: Reporter, *, step: int, skip: Sequence[int] | set[int] = (), counts: bool = False
) -> None:
    """Make the pictures of this step, except those of the prompts in `skip`; each is told as soon as its file is complete.
    With `counts`, every picture is a step of the job."""
    todo = [index for index in range(len(wanted)) if index not in skip]
    if not todo:
        return
    reporter.phase("sampling", 0, len(todo))
    training = model.model.training
    model.model.eval()
    embeds = {id(config): (conditional, unconditional) for config, conditional, unconditional in wanted}
    try:
        made = model.generate_images([wanted[index][0] for index in todo], lambda config: embeds[id(config)])
        for index, result in zip(todo, made, strict=True):
            at = index + 1 if counts else step
            reporter.preview(
                _told(reporter.workdir / "samples", result, wanted[index][0], at, index), index + 1 if counts else None
            )
            reporter.check()
    finally:
        model.model.train(training)


def _told(folder: Path, made: Any, config: GenerateImageConfig, step: int, index: int) -> PreviewTold:
    record = {
        "step": step,
        "prompt_index": index,
        "prompt": config.prompt,
        "neg": config.negative_prompt,
        "seed": config.seed,
        "guidance_scale": config.guidance_scale,
        "sample_steps": config.num_inference_steps,
    }
    return write(folder / f"{step:09d}_{index:03d}", made, record)
