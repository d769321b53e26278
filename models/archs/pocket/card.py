"""The bundled arch: small enough to learn from scratch on one CPU core while you watch."""

from typing import Annotated

from pydantic import Field

from models.arch import Arch, Preset
from models.spec import Spec, entry


class PocketOptions(Spec):
    """`model_kwargs`: the size of a network that starts from random weights. A checkpoint brings its own."""

    channels: list[Annotated[int, Field(ge=16, le=1024, multiple_of=16)]] = entry(
        [64, 96, 128],
        title="Channels",
        section="Advanced",
        order=80,
        min_length=2,
        max_length=4,
        encodes=(),
        help="Width of each U-Net stage, multiples of 16.",
    )


PROMPTS = ["red apple", "grinning face with smiling eyes", "soccer ball", "rainbow"]

SHARED = {
    "kind": "train",
    "datasets": [{"folder_path": "emoji", "caption_dropout_rate": 0.1}],
    "sample": {"sample_every": 40, "samples": [{"prompt": prompt} for prompt in PROMPTS]},
}

SCRATCH = {
    **SHARED,
    "name": "emoji from scratch",
    "model": {"arch": "pocket", "name_or_path": "random"},
    "network": None,
    "train": {
        "steps": 400, "batch_size": 16, "lr": 2e-3, "lr_scheduler": "linear", "lr_warmup_steps": 50,
        "ema_config": {"use_ema": True, "ema_decay": 0.98},
    },
    "save": {"save_every": 100},
}  # fmt: skip

LORA = {
    **SHARED,
    "name": "emoji lora",
    "model": {"arch": "pocket", "name_or_path": "job:ID/pocket.safetensors"},
    "network": {"linear": 8},
    "train": {"steps": 200, "batch_size": 8, "lr": 1e-3},
    "save": {"save_every": 50},
}

AS_IN_AI_TOOLKIT = {
    **LORA,
    "name": "emoji lora as in ai-toolkit",
    "network": {"linear": 16},
    "train": {
        "as_in_ai_toolkit": True, "steps": 200, "batch_size": 1, "gradient_accumulation": 1, "lr": 1e-4,
        "optimizer": "adamw", "optimizer_params": {"weight_decay": 1e-4},
        "timestep_type": "sigmoid", "max_denoising_steps": 999,
    },
}  # fmt: skip

ARCHS = [
    Arch(
        name="pocket",
        label="Pocket",
        description="A small flow-matching U-Net in pixel space with a real, frozen MiniLM text encoder.",
        capabilities=("from_scratch",),
        code="models.archs.pocket.model:PocketModel",
        options=PocketOptions,
        samplers=("euler", "heun"),
        bucket_divisibility=16,
        starts_from=("saved",),
        random_init=True,
        defaults={
            "model": {"dtype": "fp32"},
            "datasets": {"resolution": [32]},
            "train": {"batch_size": 8, "gradient_checkpointing": False},
            "save": {"dtype": "fp32"},
            "sample": {"width": 32, "height": 32, "guidance_scale": 2.0, "sample_steps": 20},
        },
        presets=(
            Preset(name="demo", label="From scratch", spec=SCRATCH,
                   description="Trains all weights on 48 emoji; recognisable pictures after some 300 steps."),
            Preset(name="lora", label="LoRA", spec=LORA,
                   description="Trains a small adapter on a checkpoint that the first preset saved."),
            Preset(name="as_in_ai_toolkit", label="As in ai-toolkit", spec=AS_IN_AI_TOOLKIT,
                   description="The same with ai-toolkit's arithmetic and usual values, to compare."),
        ),
    )
]  # fmt: skip
