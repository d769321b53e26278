"""What the tests of FLUX.2 klein share beside fixtures."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from PIL import Image

from models import catalog
from models.archs.flux2_klein.model import Flux2KleinModel
from models.prompt_embeds import AdvancedPromptEmbeds

LENGTH = 64  # tokens; the tiny tokenizer makes one of every byte
PROMPTS = ("a red fox", "a much longer caption about a lighthouse by the sea")
TEXT = 16  # the tiny text encoder's width


def load(where: Path | str, dtype: str = "fp32", **changes: Any) -> Flux2KleinModel:
    """The model from there; `options` are its model_kwargs, other keys those of the model section."""
    options = catalog.arch("flux2_klein_4b").options(**{"max_text_length": LENGTH, **changes.pop("options", {})})
    config = {"name_or_path": str(where), "te_name_or_path": None, "vae_path": None, "model_kwargs": options, **changes}
    model = Flux2KleinModel("cpu", SimpleNamespace(**config), dtype=dtype)
    model.load_model()
    return model


def predict(klein: Flux2KleinModel, transformer: Any = None) -> torch.Tensor:
    """Two predictions of our model, or of another transformer in its place."""
    draw = torch.Generator().manual_seed(5)
    x = torch.randn(2, klein.model.config.in_channels, 4, 6, generator=draw)
    embeds = AdvancedPromptEmbeds(text_embeds=list(torch.randn(2, 7, 3 * TEXT, generator=draw)))
    own = klein.model
    try:
        klein.model = transformer or own
        with torch.no_grad():
            return klein.predict_noise(x, text_embeddings=embeds, timestep=torch.tensor([300.0, 900.0]))
    finally:
        klein.model = own


def unit(image: Image.Image) -> torch.Tensor:
    """(3, H, W) in [0, 1]."""
    return torch.from_numpy(np.array(image)).permute(2, 0, 1).float() / 255


def embeds_of(pipe: Any, *prompts: str) -> torch.Tensor:
    """Those of diffusers' pipeline."""
    return pipe.encode_prompt(list(prompts), max_sequence_length=LENGTH)[0]
