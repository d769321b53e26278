"""Pictures made during a job: configs from the spec, embeds made beforehand, files written whole, then told."""

from collections.abc import Sequence
from pathlib import Path

from PIL import Image
from PIL.PngImagePlugin import PngInfo

from models.base import BaseModel, GenerateConfig, generate_images
from models.prompt_embeds import AdvancedPromptEmbeds
from models.spec import PreviewPrompt, SamplingDefaults
from models.weights import replacing
from worker.report import PreviewTold, Reporter

THUMBNAIL_PIXELS = 320


def configs(shared: SamplingDefaults, samples: Sequence[PreviewPrompt]) -> list[GenerateConfig]:
    """One config per prompt; what a prompt leaves out comes from the section."""

    def one(index: int, sample: PreviewPrompt) -> GenerateConfig:
        own = {key: value for key, value in sample.model_dump().items() if value is not None}
        seed = own.get("seed", (shared.seed + index * shared.walk_seed) % 2**32)
        return GenerateConfig(
            prompt=sample.prompt,
            negative_prompt=own.get("neg", shared.neg),
            width=own.get("width", shared.width),
            height=own.get("height", shared.height),
            seed=seed,
            guidance_scale=own.get("guidance_scale", shared.guidance_scale),
            num_inference_steps=own.get("sample_steps", shared.sample_steps),
        )

    return [one(index, sample) for index, sample in enumerate(samples)]


def encode(model: BaseModel, wanted: Sequence[GenerateConfig], reporter: Reporter) -> dict[str, AdvancedPromptEmbeds]:
    """Embeds of every prompt and negative prompt, so that the text encoder is not needed again."""
    embeds = {}
    for text in dict.fromkeys(text for config in wanted for text in (config.prompt, config.negative_prompt)):
        reporter.check()
        embeds[text] = model.encode_prompt(text)
    return embeds


def render(
    model: BaseModel,
    wanted: Sequence[GenerateConfig],
    embeds: dict[str, AdvancedPromptEmbeds],
    reporter: Reporter,
    *,
    step: int,
    skip: Sequence[int] | set[int] = (),
    counts: bool = False,
) -> None:
    """Make the pictures of this step, except those of the prompts in `skip`; each is told as soon as its file is complete.
    With `counts`, every picture is a step of the job."""
    todo = [(index, config) for index, config in enumerate(wanted) if index not in skip]
    if not todo:
        return
    reporter.phase("sampling", 0, len(todo))
    assert model.model is not None
    training = model.model.training
    model.model.eval()
    try:
        pictures = generate_images(model, [config for _, config in todo], embeds)
        for (index, config), picture in zip(todo, pictures, strict=True):
            at = index + 1 if counts else step
            reporter.preview(write(reporter.workdir / "samples", picture, config, at, index), index + 1 if counts else None)
            reporter.check()
    finally:
        model.model.train(training)


def write(folder: Path, picture: Image.Image, config: GenerateConfig, step: int, index: int) -> PreviewTold:
    """PNG with its settings inside, and a WebP thumbnail."""
    record = {
        "step": step,
        "prompt_index": index,
        "prompt": config.prompt,
        "neg": config.negative_prompt,
        "seed": config.seed,
        "width": picture.width,
        "height": picture.height,
        "guidance_scale": config.guidance_scale,
        "sample_steps": config.num_inference_steps,
    }
    info = PngInfo()
    for key, value in record.items():
        info.add_itxt(key, str(value))
    stem = f"{step:09d}_{index:03d}"
    path, small = folder / f"{stem}.png", folder / f"{stem}.thumbnail.webp"
    with replacing(path) as part:
        picture.save(part, "PNG", pnginfo=info)
    thumbnail = picture.copy()
    thumbnail.thumbnail((THUMBNAIL_PIXELS, THUMBNAIL_PIXELS))
    with replacing(small) as part:
        thumbnail.save(part, "WEBP", lossless=max(picture.size) <= THUMBNAIL_PIXELS, quality=85)
    return PreviewTold(path, small, record)
