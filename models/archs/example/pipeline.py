"""A minimal sampler that sees embeds, never text."""

from typing import Any

import torch

from models.batch import GenerateImageConfig
from models.samplers import FLOW_SAMPLERS, flow_timesteps


class ExamplePipeline:
    """Holds no state but the model, so one is made per round of previews."""

    def __init__(self, model: Any, shift: float = 1.0) -> None:
        self.model = model
        self.shift = shift

    def __call__(
        self, noise: torch.Tensor, config: GenerateImageConfig, conditional: Any, unconditional: Any, batch: Any
    ) -> torch.Tensor:
        """Noise (B, C, h, w) to clean latents of that shape. Guidance above 1 asks the model twice a step, not once. `batch` carries
        what condition_noisy_latents needs (control images), as in training."""
        scale = config.guidance_scale

        def velocity(x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
            prediction: torch.Tensor = self.model.predict_noise(
                self.model.condition_noisy_latents(x, batch),
                timestep=t,
                guidance_scale=scale,
                conditional_embeddings=conditional,
                unconditional_embeddings=unconditional if scale > 1 else None,
                batch=batch,
            )
            return prediction

        sampler = FLOW_SAMPLERS[config.sampler or "euler"]
        return sampler(velocity, noise, flow_timesteps(config.num_inference_steps, self.shift))
