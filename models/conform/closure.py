"""The rules that sample: what was trained must come back, and seeds must decide."""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.nn import functional as F

from models.base import BaseModel
from models.batch import Audio, Batch, Clip, GenerateImageConfig
from models.conform.subject import FRAMES, PROMPTS, Broken, Subject
from models.prompt_embeds import concat_prompt_embeds

MOST_STEPS, SAMPLING_STEPS, LR = 1200, 24, 4e-3  # of the closure: a tiny network learns two latents in a few seconds
COPIES = 4  # of each latent in a batch: a tiny network costs the same and sees more noise
LOOK_EVERY = 100
NEAR = 0.5  # how far, of the distance between the two pictures, a learned sample may be from its own


def closure(s: Subject) -> str:
    """Train on two latents as the loop does; the arch's own sampler must then give each back for its caption, with and without
    guidance. A sampler that disagrees with training in time, sign, scale or the order of guidance cannot survive this. A convention
    that both share (a flipped time inside get_noise_prediction) can: only a comparison with the original's numbers sees that."""
    model = s.build()
    root = model.get_model_to_train().requires_grad_(True).train()
    # Values spread like real latents', whatever the tiny VAE makes of a picture, so that the two are far enough apart to be told;
    # in two by two blocks, so that a tiny network can learn them.
    coarse = torch.randint(0, 2, (*s.latents.shape[:-2], 2, 2), generator=torch.Generator().manual_seed(9)) * 2.0 - 1
    clean = coarse.repeat_interleave(s.latents.shape[-2] // 2, -2).repeat_interleave(s.latents.shape[-1] // 2, -1)
    batch = s.batch(clean)
    many = _repeated(batch, COPIES)
    embeds, blank = (
        concat_prompt_embeds([s.embeds(*texts, batch=batch)] * COPIES, model.te_padding_side) for texts in (PROMPTS, ("", ""))
    )
    optimizer = torch.optim.AdamW(root.parameters(), lr=LR, weight_decay=0.0)
    torch.manual_seed(0)
    with torch.no_grad():
        own = _as_pixels(model.decode_latents(clean, dtype=torch.float32))
    for step in range(1, MOST_STEPS + 1):
        optimizer.param_groups[0]["lr"] = LR * min(1.0, step / 20) * min(1.0, 2 * (1 - step / MOST_STEPS))
        noise = model.get_latent_noise_from_latents(many.latents)
        t = torch.rand(2 * COPIES) * 1000
        if model.is_multistage:
            low, high = model.multistage_range(step % len(model.multistage_boundaries))
            t = low + torch.rand(2 * COPIES) * (high - low)
        noisy = model.condition_noisy_latents(model.add_noise(many.latents, noise, t), many)
        said = blank if step % 8 == 7 else embeds
        prediction = model.predict_noise(noisy.detach(), text_embeddings=said, timestep=t, batch=many)
        loss = F.mse_loss(prediction, model.loss_target(noise, many, t))
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(root.parameters(), 1.0)
        optimizer.step()
        if step % LOOK_EVERY == 0:
            root.eval()
            far = [_distances(s, model, batch, own, 1.0)]
            if _are_near(far) or step == MOST_STEPS:  # guidance costs as much again
                far.append(_distances(s, model, batch, own, 2.0))
            root.train()
            if len(far) == 2 and _are_near(far):
                worst = max(own_one for pairs in far for own_one, _ in pairs)
                return (
                    f"after {step} steps (loss {float(loss.detach()):.2f}) samples are within {worst:.2f} of their own pictures"
                )
    shown = "; ".join(", ".join(f"{a:.2f} (other {b:.2f})" for a, b in pairs) for pairs in far)
    raise Broken(
        f"after {MOST_STEPS} steps (loss {float(loss.detach()):.2f}) samples are not their captions' pictures; distances at guidance 1; 2: "
        f"{shown}, where 1 is how far the two pictures are apart"
    )


def _are_near(far: list[list[tuple[float, float]]]) -> bool:
    return all(own_one < NEAR and own_one < other for pairs in far for own_one, other in pairs)


def _distances(s: Subject, model: BaseModel, batch: Batch, own: torch.Tensor, scale: float) -> list[tuple[float, float]]:
    """Per caption, how far its sample is from its own picture and from the other one, in units of how far those are apart."""
    apart = float((own[0] - own[1]).square().mean().sqrt())
    found = []
    for index, made in enumerate(_sampled(s, model, batch, scale)):
        near, other = (float((made - own[place]).square().mean().sqrt()) / apart for place in (index, 1 - index))
        found.append((near, other))
    return found


def seeds_decide(s: Subject) -> str:
    """The same seed gives the same picture, another seed another; torch's global generator is left alone."""
    batch = s.batch(s.latents)
    before = torch.get_rng_state()
    one, two = next(_sampled(s, s.model, batch, 1.0, seed=1)), next(_sampled(s, s.model, batch, 1.0, seed=1))
    other = next(_sampled(s, s.model, batch, 1.0, seed=2))
    if not torch.equal(one, two):
        raise Broken("the same seed gives two different pictures")
    if torch.equal(one, other):
        raise Broken("the seed changes nothing; draw the noise from `generator`")
    if not torch.equal(before, torch.get_rng_state()):
        raise Broken("sampling moved torch's global generator")
    return "same seed same picture, other seed another"


def _sampled(s: Subject, model: BaseModel, batch: Batch, scale: float, seed: int = 7) -> Iterator[torch.Tensor]:
    """The arch's own samples of the prompts as pixels, with the control images of `batch` as files."""
    with tempfile.TemporaryDirectory() as folder:
        configs = []
        for index, prompt in enumerate(PROMPTS):
            controls: list[Path] = []
            source = batch.control_tensor[index] if batch.control_tensor is not None else None
            if source is None and s.has("i2v") and batch.tensor is not None:
                source = (batch.tensor[index][0] + 1) / 2
            for place, image in enumerate([source, 1 - source] if s.has("multi_reference") and source is not None else [source]):
                if image is not None:
                    controls.append(Path(folder) / f"{index}_{place}.png")
                    levels = (image * 255).round().to(torch.uint8).permute(1, 2, 0).numpy()
                    Image.fromarray(levels).save(controls[-1])
            named: dict[str, Any] = dict(zip(("ctrl_img", "ctrl_img_1"), controls, strict=False))
            frames = FRAMES if s.has("video") else 1
            configs.append(
                GenerateImageConfig(
                    prompt,
                    width=s.size[0],
                    height=s.size[1],
                    seed=seed,
                    guidance_scale=scale,
                    num_inference_steps=SAMPLING_STEPS,
                    num_frames=frames,
                    **named,
                )
            )
        known = {prompt: s.embeds(prompt, batch=batch) for prompt in (*PROMPTS, "")}
        for made in model.generate_images(configs, lambda config: (known[config.prompt], known[""])):
            yield _made_pixels(made)


def _made_pixels(made: Any) -> torch.Tensor:
    if isinstance(made, Audio):
        return made.waveform
    frames = made.frames if isinstance(made, Clip) else [made]
    pixels = torch.stack([torch.from_numpy(_levels(frame)).permute(2, 0, 1).float() / 127.5 - 1 for frame in frames])
    return pixels if isinstance(made, Clip) else pixels[0]


def _levels(frame: Image.Image) -> Any:
    return np.asarray(frame.convert("RGB")).copy()


def _as_pixels(decoded: torch.Tensor) -> torch.Tensor:
    """Decoded latents as previews show them: clamped and rounded to 8 bits."""
    return ((decoded.clamp(-1, 1) + 1) * 127.5).round() / 127.5 - 1


def _repeated(batch: Batch, copies: int) -> Batch:
    """The whole batch `copies` times over."""
    grown = {
        name: torch.cat([value] * copies) if isinstance(value, torch.Tensor) else value * copies
        for name, value in vars(batch).items()
        if isinstance(value, torch.Tensor | list)
    }
    return Batch(**{**vars(batch), **grown})
