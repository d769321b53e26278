"""FLUX.2 klein 4B (Black Forest Labs): text to image, and editing with several reference pictures."""

from typing import Any

from models.arch import Arch, Preset
from models.spec import Spec, entry


class Flux2KleinOptions(Spec):
    """`model_kwargs`."""

    max_text_length: int = entry(
        512,
        title="Text length",
        section="Advanced",
        order=80,
        ge=32,
        le=4096,
        unit="tokens",
        encodes=("text",),
        help="Every caption is padded or cut to this many tokens; the model was trained with 512.",
    )
    match_target_res: bool = entry(
        False,
        title="References at target size",
        section="Advanced",
        order=81,
        encodes=(),  # references are encoded at the steps
        help="Scale reference pictures to the area of the picture being made; off: keep theirs, up to 1024 x 1024.",
    )


BASE = "black-forest-labs/FLUX.2-klein-base-4B"
PROMPTS = ["a portrait in soft window light", "a red bicycle against a white wall"]


def lora(name: str, resolution: list[int], steps: int, rank: int) -> dict[str, Any]:
    """A LoRA job on the undistilled base; the distilled model is not meant to be trained."""
    side = max(resolution)
    return {
        "kind": "train",
        "name": name,
        "model": {"arch": "flux2_klein_4b", "name_or_path": BASE},
        "network": {"linear": rank},
        "datasets": [{"folder_path": "pictures", "resolution": resolution, "caption_dropout_rate": 0.05}],
        "train": {"steps": steps, "lr": 1e-4},
        "sample": {
            "sample_every": 250,
            "width": side,
            "height": side,
            "samples": [{"prompt": prompt} for prompt in PROMPTS],
        },
    }


LORA = lora("klein lora", [512, 768, 1024], 2000, 32)
AS_IN_AI_TOOLKIT = {
    **lora("klein lora as in ai-toolkit", [512, 768, 1024], 3000, 32),
    "train": {
        "as_in_ai_toolkit": True,
        "steps": 3000,
        "lr": 1e-4,
        "optimizer": "adamw8bit",
        "optimizer_params": {"weight_decay": 1e-4},
        "timestep_type": "weighted",
        "max_denoising_steps": 999,
    },
}

ARCHS = [
    Arch(
        name="flux2_klein_4b",
        label="FLUX.2 klein 4B",
        description="A 4-billion-parameter flow transformer with a Qwen3 text encoder; makes pictures and edits with references.",
        capabilities=("vae", "edit", "multi_reference", "schedule"),
        code="models.archs.flux2_klein.model:Flux2KleinModel",
        options=Flux2KleinOptions,
        bucket_divisibility=16,
        starts_from=("folder", "saved"),
        defaults={"sample": {"guidance_scale": 4.0}},
        presets=(
            Preset(
                name="lora",
                label="LoRA",
                description="A style or subject at 512, 768 and 1024 pixels, rank 32.",
                spec=LORA,
            ),
            Preset(
                name="as_in_ai_toolkit",
                label="As in ai-toolkit",
                description="ai-toolkit's arithmetic and usual values, to compare. Needs bitsandbytes beside the worker.",
                spec=AS_IN_AI_TOOLKIT,
            ),
            Preset(
                name="lora_512",
                label="Quick LoRA",
                description="The same at 512 pixels only, rank 16: a first look in a quarter of the time.",
                spec=lora("klein quick lora", [512], 1000, 16),
            ),
        ),
    )
]
