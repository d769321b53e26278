"""`toolkit.models.flux`: turning a FLUX transformer's guidance embedding off and on."""

from typing import Any

from models.errors import UserError

SWITCH = "_forward_with_guidance"


def bypass_flux_guidance(transformer: Any) -> None:
    """Embed time and text only, as if the transformer had no guidance input, until `restore_flux_guidance`."""
    embed = transformer.time_text_embed
    if not hasattr(embed, "guidance_embedder") or hasattr(embed, SWITCH):
        return
    setattr(embed, SWITCH, embed.forward)

    def forward(timestep: Any, *rest: Any) -> Any:
        pooled = rest[-1]
        time = embed.timestep_embedder(embed.time_proj(timestep).to(dtype=pooled.dtype))
        return time + embed.text_embedder(pooled)

    embed.forward = forward


def restore_flux_guidance(transformer: Any) -> None:
    embed = transformer.time_text_embed
    if hasattr(embed, SWITCH):
        embed.forward = getattr(embed, SWITCH)
        delattr(embed, SWITCH)


def add_model_gpu_splitter_to_flux(*_: Any, **__: Any) -> None:
    """Raises UserError: a job runs on one device."""
    raise UserError("split_model_over_gpus is not available here: a job runs on one device", code="one_device")
