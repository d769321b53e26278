"""A minimal sampler that sees embeds, never text."""

from typing import Any

import torch

from models.samplers import euler, flow_timesteps


class ExamplePipeline:
    """Holds no state but the model, so one is made per round of previews."""

    def __init__(self, model: Any, shift: float = 1.0) -> None:
        self.model = model
        self.shift = shift

    def __call__(
        self, noise: torch.Tensor, steps: int, guidance_scale: float, conditional: Any, unconditional: Any, batch: Any
    ) -> Any:
        """Noise (1, C, h, w) to clean latents of that shape. Guidance 1 asks the model once a step, not twice. `batch` carries
        what condition_noisy_latents needs (control images), as in training."""

        def velocity(x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
            prediction: torch.Tensor = self.model.predict_noise(
                self.model.condition_noisy_latents(x, batch),
                timestep=t,
                guidance_scale=guidance_scale,
                conditional_embeddings=conditional,
                unconditional_embeddings=unconditional if guidance_scale != 1 else None,
                batch=batch,
            )
            return prediction

        return euler(velocity, noise, flow_timesteps(steps, self.shift))
