"""FLUX.2 klein against diffusers' own pipeline on a tiny random checkpoint, in fp32 on the CPU.

Tolerances: 1e-5 is a hundred roundings of fp32, for sums that are done in another order; a picture may differ by one of 255 levels,
where such a difference falls on the edge between two.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import DiffusionPipeline, Flux2KleinPipeline
from PIL import Image

from models.archs.flux2_klein.model import Flux2KleinModel
from models.batch import Batch, GenerateImageConfig
from models.precise import NotFinite
from models.prompt_embeds import AdvancedPromptEmbeds
from tests.models.klein.tiny_klein import LENGTH, PROMPTS, embeds_of, load, unit


@pytest.fixture
def files(photos: list[Image.Image], tmp_path: Path) -> list[Path]:
    paths = [tmp_path / f"reference_{place}.png" for place in range(len(photos))]
    for photo, path in zip(photos, paths, strict=True):
        photo.save(path)
    return paths


@torch.no_grad()
def relative(one: torch.Tensor, other: torch.Tensor) -> float:
    return float((one - other).abs().max() / other.abs().max())


# -- parts ----------------------------------------------------------------------------------------------------------------------


def test_the_tiny_folder_is_a_pipeline_for_diffusers(tiny: Path) -> None:
    assert isinstance(DiffusionPipeline.from_pretrained(tiny), Flux2KleinPipeline)
    assert sum(path.stat().st_size for path in tiny.rglob("*") if path.is_file()) < 3_000_000


def test_prompt_embeds_are_those_of_the_pipeline_per_prompt_and_survive_a_cache(klein: Any, pipe: Any, tmp_path: Path) -> None:
    embeds = klein.encode_prompt([*PROMPTS, ""])
    wanted = embeds_of(pipe, *PROMPTS, "")
    assert [tuple(item.shape) for item in embeds.text_embeds] == [(LENGTH, 3 * 16)] * 3
    for item, other in zip(embeds.text_embeds, wanted, strict=True):
        assert relative(item, other) < 1e-5
    klein.encode_prompt(PROMPTS[1]).save(tmp_path / "embeds.safetensors")
    again = AdvancedPromptEmbeds.load(tmp_path / "embeds.safetensors")
    assert torch.equal(again.text_embeds[0], embeds.text_embeds[1])


def test_a_caption_that_is_too_long_is_cut_as_the_pipeline_cuts_it(klein: Any, pipe: Any) -> None:
    long = "word " * 40
    assert relative(klein.encode_prompt(long).text_embeds[0], embeds_of(pipe, long)[0]) < 1e-5


def test_latents_are_packed_and_normalised_as_the_pipeline_does_it(klein: Any, pipe: Any, photos: list[Image.Image]) -> None:
    pixels = torch.stack([unit(photos[0]), unit(photos[0].rotate(90))]) * 2 - 1
    with torch.no_grad():
        latents = klein.encode_images(list(pixels))
        wanted = pipe._encode_vae_image(pixels, generator=None)
        assert latents.shape == (2, pipe.transformer.config.in_channels, 4, 4)
        assert relative(latents, wanted) < 1e-5
        stats = pipe.vae.bn
        back = wanted * torch.sqrt(stats.running_var + 1e-4).view(1, -1, 1, 1) + stats.running_mean.view(1, -1, 1, 1)
        decoded = pipe.vae.decode(pipe._unpatchify_latents(back)).sample
        assert relative(klein.decode_latents(latents), decoded) < 1e-5
    assert torch.equal(klein.encode_images(pixels), klein.encode_images(pixels))


# -- the prediction -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_references", [0, 1, 2])
def test_the_prediction_is_what_the_pipeline_computes_inside(
    klein: Any, pipe: Any, photos: list[Image.Image], num_references: int
) -> None:
    calls: list[dict[str, Any]] = []
    outputs: list[torch.Tensor] = []

    def keep(_module: Any, _args: Any, kwargs: dict[str, Any], output: Any) -> None:
        calls.append(kwargs)
        outputs.append(output[0])

    hook = pipe.transformer.register_forward_hook(keep, with_kwargs=True)
    images = photos[:num_references] or None
    pipe(
        prompt=PROMPTS[0], image=images, height=64, width=48, num_inference_steps=3, guidance_scale=1.0, max_sequence_length=LENGTH,
        generator=torch.Generator().manual_seed(1), output_type="latent",
    )  # fmt: skip
    hook.remove()
    call, output = calls[1], outputs[1]
    x = call["hidden_states"][:, :12].transpose(1, 2).reshape(1, -1, 4, 3)
    wanted = output[:, :12].transpose(1, 2).reshape(1, -1, 4, 3)
    embeds = AdvancedPromptEmbeds(text_embeds=list(call["encoder_hidden_states"]))
    controls = [[unit(photo) for photo in photos[:num_references]]] if num_references else None
    batch = Batch(x, [PROMPTS[0]], control_tensor_list=controls)
    with torch.no_grad():
        made = klein.predict_noise(x, text_embeddings=embeds, timestep=call["timestep"] * 1000, batch=batch)
    assert made.shape == x.shape
    assert relative(made, wanted) < 1e-5


def test_a_mixed_batch_gives_each_item_what_it_gets_alone(klein: Any, photos: list[Image.Image]) -> None:
    """One reference, none, two of other sizes, one like the first's: three passes, and an order to restore."""
    draw = torch.Generator().manual_seed(2)
    x, t = torch.randn(4, klein.model.config.in_channels, 4, 4, generator=draw), torch.tensor([100.0, 400.0, 700.0, 950.0])
    listed = [[unit(photos[0])], [], [unit(photos[1]), unit(photos[2])], [1 - unit(photos[0])]]
    embeds = klein.encode_prompt([*PROMPTS, *PROMPTS])
    with torch.no_grad():
        together = klein.predict_noise(
            x, text_embeddings=embeds, timestep=t, batch=Batch(x, [""] * 4, control_tensor_list=listed)
        )
        for i in range(4):
            batch = Batch(x[i : i + 1], [""], control_tensor_list=listed[i : i + 1])
            own = AdvancedPromptEmbeds(text_embeds=embeds.text_embeds[i : i + 1])
            alone = klein.predict_noise(x[i : i + 1], text_embeddings=own, timestep=t[i : i + 1], batch=batch)
            assert relative(together[i : i + 1], alone) < 1e-5
        bare = klein.predict_noise(x, text_embeddings=embeds, timestep=t)
    assert relative(bare[1], together[1]) < 1e-5
    assert all(relative(bare[i], together[i]) > 1e-3 for i in (0, 2, 3))  # the references are seen


def test_a_control_tensor_is_the_same_as_a_list_of_its_pictures(klein: Any, photos: list[Image.Image]) -> None:
    x = torch.randn(2, klein.model.config.in_channels, 4, 4, generator=torch.Generator().manual_seed(2))
    one = torch.stack([unit(photos[0]), 1 - unit(photos[0])])
    embeds = klein.encode_prompt(list(PROMPTS))

    def predict(**controls: Any) -> torch.Tensor:
        with torch.no_grad():
            return klein.predict_noise(x, text_embeddings=embeds, timestep=300.0, batch=Batch(x, ["", ""], **controls))

    assert torch.equal(predict(control_tensor=one), predict(control_tensor_list=[[one[0]], [one[1]]]))
    pairs = torch.stack([one, one.flip(0)], dim=1)
    assert torch.equal(predict(control_tensor=pairs), predict(control_tensor_list=[list(pairs[0]), list(pairs[1])]))


def test_match_target_res_is_followed_in_training_and_in_previews(
    tiny: Path, files: list[Path], photos: list[Image.Image]
) -> None:
    model = load(tiny, options={"match_target_res": True})
    sizes: list[torch.Size] = []
    encode = model.encode_images
    model.encode_images = lambda pixels, **kwargs: (sizes.append(pixels.shape), encode(pixels, **kwargs))[1]  # type: ignore[method-assign, func-returns-value]
    x = torch.randn(1, model.model.config.in_channels, 8, 8)
    with torch.no_grad():
        batch = Batch(x, [""], control_tensor_list=[[unit(photos[0])]])
        model.predict_noise(x, text_embeddings=model.encode_prompt(""), timestep=5.0, batch=batch)
    preview(model, width=128, height=128, ctrl_img=files[0])
    assert sizes == [torch.Size([1, 3, 128, 128])] * 2


# -- previews -------------------------------------------------------------------------------------------------------------------


def preview(model: Flux2KleinModel, **settings: Any) -> Image.Image:
    config = GenerateImageConfig(
        **{"prompt": PROMPTS[0], "negative_prompt": "blurry", "width": 64, "height": 80, "num_inference_steps": 4, **settings}
    )
    [made] = model.generate_images([config], lambda c: (model.encode_prompt(c.prompt), model.encode_prompt(c.negative_prompt)))
    assert isinstance(made, Image.Image)
    return made


def apart(one: Image.Image, other: Image.Image) -> int:
    return int(np.abs(np.array(one).astype(int) - np.array(other).astype(int)).max())


@pytest.mark.parametrize("num_references", [0, 1, 2])
@pytest.mark.parametrize("guidance", [1.0, 4.0])
def test_a_preview_is_the_pipelines_own_picture(
    klein: Any, pipe: Any, files: list[Path], photos: list[Image.Image], guidance: float, num_references: int
) -> None:
    named: dict[str, Any] = dict(zip(("ctrl_img", "ctrl_img_1"), files[:num_references], strict=False))
    made = preview(klein, seed=11, guidance_scale=guidance, **named)
    wanted = pipe(
        prompt_embeds=embeds_of(pipe, PROMPTS[0]), negative_prompt_embeds=embeds_of(pipe, "blurry"), width=64, height=80,
        image=photos[:num_references] or None, num_inference_steps=4, guidance_scale=guidance,
        generator=torch.Generator().manual_seed(11),
    ).images[0]  # fmt: skip
    assert made.size == (64, 80)
    assert apart(made, wanted) <= 1
    if guidance > 1:
        assert apart(made, preview(klein, seed=11, guidance_scale=guidance, negative_prompt="a lake", **named)) > 3
        assert apart(made, preview(klein, seed=11, guidance_scale=guidance + 1, **named)) > 3
    if num_references:
        assert apart(made, preview(klein, seed=11, guidance_scale=guidance)) > 1


def test_the_pipelines_whole_call_from_text_gives_the_same_picture(klein: Any, pipe: Any) -> None:
    wanted = pipe(
        prompt=PROMPTS[1], width=64, height=80, num_inference_steps=4, guidance_scale=4.0, max_sequence_length=LENGTH,
        generator=torch.Generator().manual_seed(12),
    ).images[0]  # fmt: skip
    assert apart(preview(klein, prompt=PROMPTS[1], negative_prompt="", seed=12), wanted) <= 1


def test_a_distilled_model_takes_no_guidance(tiny: Path, tmp_path: Path) -> None:
    shutil.copytree(tiny, tmp_path / "distilled")
    index = tmp_path / "distilled" / "model_index.json"
    index.write_text(json.dumps({**json.loads(index.read_text()), "is_distilled": True}))
    model = load(tmp_path / "distilled")
    assert apart(preview(model, guidance_scale=4.0), preview(model, guidance_scale=1.0)) == 0


def test_previews_made_together_are_those_made_alone(klein: Any) -> None:
    sizes = [(64, 80), (64, 80), (64, 80), (64, 64)]
    configs = [
        GenerateImageConfig(PROMPTS[at % 2], "blurry", width, height, seed=at, guidance_scale=4.0, num_inference_steps=4)
        for at, (width, height) in enumerate(sizes)
    ]
    passes = []
    batch = klein.generate_batch
    klein.generate_batch = lambda *args: (passes.append(len(args[1])), batch(*args))[1]
    try:
        made = list(
            klein.generate_images(
                configs, lambda c: (klein.encode_prompt(c.prompt), klein.encode_prompt(c.negative_prompt)), batch_size=4
            )
        )
    finally:
        del klein.generate_batch
    assert passes == [3, 1]
    for config, together in zip(configs, made, strict=True):
        alone = preview(
            klein, prompt=config.prompt, width=config.width, height=config.height, seed=config.seed, guidance_scale=4.0
        )
        assert apart(together, alone) <= 1  # a batch of three sums in another order: a few values of thousands differ by a level


WEIGHTS = "are not finite (NaN or infinite): the weights of the model or of an adapter are damaged or too large"
SPOILT = {
    "denoiser": (lambda model: model.model.proj_out, f"the values that the model predicts in pass 1 of sampling {WEIGHTS}"),
    "VAE": (lambda model: model.vae.decoder, "the pixels that the VAE decoded are not finite (NaN or infinite: sample)"),
}


@pytest.mark.parametrize("part, said", SPOILT.values(), ids=list(SPOILT))
def test_a_picture_that_would_hold_nan_is_refused_and_the_part_named(tiny: Path, part: Any, said: str) -> None:
    model = load(tiny)
    with torch.no_grad():
        next(part(model).parameters()).fill_(torch.nan)
    for _ in range(2):
        with pytest.raises(NotFinite) as refused:
            preview(model)
        assert refused.value.message == said
    assert "decode" not in vars(model.vae) and "decode_latents" not in vars(model)  # what was looked through is as before


def test_a_vae_in_fp16_that_overflows_decodes_again_in_fp32(tiny: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = load(tiny)
    expected = preview(model)
    model.vae.half()
    decode = model.vae.decode
    half = {"seen": 0}

    def narrow(latents: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        made = decode(latents, *args, **kwargs)
        if latents.dtype == torch.float16:
            half["seen"] += 1
            made.sample = made.sample * torch.inf
        return made

    model.vae.decode = narrow
    assert apart(preview(model), expected) <= 2  # the weights were rounded to fp16
    assert half["seen"] == 1
    assert "the pixels that the VAE decoded were not finite in float16, and are made again in fp32" in caplog.text
    assert model.vae.dtype == torch.float16 and model.vae.decode is narrow
