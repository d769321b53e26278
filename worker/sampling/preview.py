"""Pictures, clips and sounds made during a job: configs from the spec, embeds made beforehand, files written whole, then told."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from models import catalog
from models.base import BaseModel, Embeds
from models.batch import GenerateImageConfig, Made
from models.data.look import look_at
from models.data.pictures import open_picture
from models.data.trigger import filled
from models.precise import finite
from models.spec import CONTROLS, JobSpec, PreviewPrompt, SamplingDefaults, TrainSpec
from worker.data import encoders
from worker.data.decode import unit_pixels
from worker.data.encode import Texts, about_text
from worker.report import PreviewTold, Reporter
from worker.sampling import attempts
from worker.sampling.attempts import Round
from worker.sampling.media import write
from worker.seeds import sow

ENDINGS = (".png", ".mp4", ".wav")
MOST_LETTERS = 60  # of a prompt in a message


def prepare(
    model: BaseModel, spec: TrainSpec, controls: Mapping[str, Path], reporter: Reporter, texts: Texts | None = None
) -> Round:
    """A training job's previews, everything encoded that the text encoder is needed for; an empty round if it makes none. Those are
    left out, which is logged, whose control images cannot be used: no training ends for them."""
    samples = [] if spec.train.disable_sampling else spec.sample.samples
    prompts = []
    for index, sample in enumerate(samples):
        reporter.check()
        if why := _lacks(sample, controls):
            reporter.log(f"the previews of prompt {index} are left out, since {why}", "WARNING")
        else:
            prompts.append(index)
    every = configs(spec.sample, samples, controls, spec.trigger_word)
    wanted = encode(model, [every[index] for index in prompts], reporter, texts)
    return replace(wanted, prompts=prompts, **shared(spec, spec.sample, controls))


def _lacks(sample: PreviewPrompt, controls: Mapping[str, Path]) -> str | None:
    """Why one of its control images cannot be used."""
    for given in filter(None, (getattr(sample, key) for key in CONTROLS)):
        if given not in controls:
            return f"its control image {given} is missing"
        if "problem" in (found := look_at(controls[given], "picture", decode=True)):
            return f"its control image {given} cannot be used: {found['problem']}"
    return None


def is_due(step: int, spec: TrainSpec) -> bool:
    """Also asked by a run that goes on from `step`, which may have been cut off amid its previews."""
    if step == 0:
        return not spec.train.skip_first_sample
    return step == spec.train.steps or (step % spec.sample.sample_every == 0 and step >= spec.sample.sample_start_step)


def shared(spec: JobSpec, section: SamplingDefaults, controls: Mapping[str, Path]) -> dict[str, Any]:
    """What a job adds to a Round: how many pictures at once, and what their records have in common."""
    sampler = section.sampler or next(iter(catalog.arch(spec.model.arch).samplers), None)
    about = {"arch": spec.model.arch, "model": spec.model.name_or_path, "sampler": sampler}
    return {"batch_size": section.batch_size, "names": {path: given for given, path in controls.items()}, "about": about}


def configs(
    shared: SamplingDefaults, samples: Sequence[PreviewPrompt], controls: Mapping[str, Path], trigger_word: str | None = None
) -> list[GenerateImageConfig]:
    """One config per prompt; what a prompt leaves out comes from the section. `controls` maps control paths as given to files; one that
    is not there is left out. `trigger_word` fills [trigger] and [name], as in captions; nothing is put in front."""

    def one(index: int, sample: PreviewPrompt) -> GenerateImageConfig:
        own = {key: value for key, value in sample.model_dump().items() if value is not None}
        files: dict[str, Any] = {key: controls[own[key]] for key in CONTROLS if own.get(key) in controls}
        return GenerateImageConfig(
            prompt=filled(sample.prompt, trigger_word),
            negative_prompt=filled(own.get("neg", shared.neg), trigger_word),
            width=own.get("width", shared.width),
            height=own.get("height", shared.height),
            seed=own.get("seed", (shared.seed + index * shared.walk_seed) % 2**32),
            guidance_scale=own.get("guidance_scale", shared.guidance_scale),
            num_inference_steps=own.get("sample_steps", shared.sample_steps),
            num_frames=own.get("num_frames", shared.num_frames),
            fps=own.get("fps", shared.fps),
            sampler=shared.sampler,
            network_multiplier=own.get("network_multiplier", 1.0),
            **files,
        )

    return [one(index, sample) for index, sample in enumerate(samples)]


def encode(model: BaseModel, wanted: Sequence[GenerateImageConfig], reporter: Reporter, texts: Texts | None = None) -> Round:
    """A Round with the embeds of every prompt and negative prompt, so that the text encoder is not needed again. A text encoder that
    sees the control images gets them with both. Embeds wait on the CPU. Those that depend on the prompt alone come from `texts`, the
    cache, if they are there. Raises NotAlone where the text encoder is needed and cannot be loaded alone, and
    NotFinite naming a prompt whose embeds are not finite."""
    known: dict[Any, Embeds] = {}
    by_picture = type(model).prepare_sample_prompt_context is not BaseModel.prepare_sample_prompt_context

    def embeds(text: str, config: GenerateImageConfig) -> Embeds:
        controls = tuple(config.control_images) if model.encode_control_in_text_embeddings else ()
        key = text, controls, id(config) if by_picture else None
        if key not in known:
            reporter.check()
            cache = texts if not controls and not by_picture else None
            known[key] = (cache and cache.stored(text, None)) or encoded(text, controls, cache)
        return known[key]

    def encoded(text: str, controls: tuple[Path, ...], cache: Texts | None) -> Embeds:
        encoders.need(model, "text_encoder", reporter)

        def make() -> Embeds:
            sow(model.device_torch, "encode", about_text(text))
            return model.encode_prompt(text, control_images=control_images(model, controls))

        made: Embeds = finite(model, "text", make, f"the embeds of the prompt {text!r:.80}").detach().to("cpu")
        if cache and cache.cached:
            cache.keep(text, None, made)
        return made

    made = []
    for config in wanted:
        if by_picture:
            encoders.need(model, "text_encoder", reporter)
        model.prepare_sample_prompt_context(config)
        made.append((embeds(config.prompt, config), embeds(config.negative_prompt, config)))
    return Round(list(wanted), made)


def control_images(model: BaseModel, paths: Sequence[Path]) -> Any:
    """Control files as the contract hands them to text encoders: (1, 3, H, W) in [0, 1], a list of them for multi-control models,
    None without any."""
    tensors: list[torch.Tensor] = [unit_pixels(open_picture(path))[None] for path in paths]
    if not tensors:
        return None
    return tensors if model.has_multiple_control_images else tensors[0]


def render(
    model: BaseModel, wanted: Round, reporter: Reporter, *, step: int, skip: Sequence[int] | set[int] = ()
) -> dict[int, str]:
    """Make the pictures of this step, except those of the prompts in `skip`; each is told as soon as its file is complete, and a second
    one of the same prompt and step is a further preview. The answer is why others could not be made, which has been logged."""
    todo = [place for place in range(len(wanted)) if wanted.prompt(place) not in skip]
    if not todo:
        return {}
    reporter.phase("sampling", 0, len(todo))
    if model.network is not None:
        wanted.networks = [(model.network, 1.0)]

    def tell(_: int, told: PreviewTold) -> None:
        reporter.preview(told)

    return attempts.make(
        model,
        wanted,
        todo,
        reporter,
        write=lambda index, made: keep(reporter.workdir / "samples", made, record(wanted, index, step=step)),
        tell=tell,
        name=lambda index: f"the preview of {described(wanted, index)} at step {step}",
    )


def record(wanted: Round, index: int, **labels: Any) -> dict[str, Any]:
    """What is told of a picture, but for what its medium adds: the settings that it was made with, and what the round shares."""
    config = wanted.configs[index]
    controls = {key: wanted.names.get(path, path.name) for key in CONTROLS if (path := getattr(config, key)) is not None}
    return {
        "prompt_index": wanted.prompt(index),
        "prompt": config.prompt,
        "neg": config.negative_prompt,
        "seed": config.seed,
        "guidance_scale": config.guidance_scale,
        "sample_steps": config.num_inference_steps,
        "network_multiplier": config.network_multiplier,
        "controls": controls,
        **wanted.about,
        **labels,
    }


def described(wanted: Round, index: int) -> str:
    prompt = wanted.configs[index].prompt
    shown = prompt if len(prompt) <= MOST_LETTERS else prompt[: MOST_LETTERS - 1] + "…"
    return f"prompt {wanted.prompt(index)} ({shown!r})"


def keep(folder: Path, made: Made, record: dict[str, Any]) -> PreviewTold:
    """Write the files of a preview, all or none. A preview never changes, so one that is made again gets another name."""
    first = stem = folder / f"{record['step']:09d}_{record['prompt_index']:03d}"
    count = 1
    while any(stem.with_name(stem.name + ending).exists() for ending in ENDINGS):
        count += 1
        stem = first.with_name(f"{first.name}_{count}")
    try:
        return write(stem, made, record)
    except BaseException:
        for path in folder.glob(f"{stem.name}.*"):
            path.unlink()
        raise
