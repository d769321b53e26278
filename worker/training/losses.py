"""What a prediction costs, element by element and then sample by sample."""

from typing import Any

import torch
from torch.nn import functional as F

from models.base import BaseModel
from models.batch import Batch
from models.errors import UserError
from models.spec import TrainSettings

BLACK = 1e-6  # a mask with a mean below this is all black: its sample counts for nothing


def elementwise(prediction: torch.Tensor, target: torch.Tensor, train: TrainSettings) -> torch.Tensor:
    """The loss of every element, in fp32: d², |d|, or Charbonnier et al.'s (1997) pseudo-Huber sqrt(d² + c²) - c."""
    prediction, target = prediction.float(), target.float()
    if train.loss_type == "mae":
        return F.l1_loss(prediction, target, reduction="none")
    squared = F.mse_loss(prediction, target, reduction="none")
    if train.loss_type == "huber":
        return torch.sqrt(squared + train.huber_c**2) - train.huber_c
    return squared


def mask_weights(mask: torch.Tensor, prediction: torch.Tensor, *, joint_mean: bool = False) -> torch.Tensor:
    """A mask (B, 1, H, W) in [0, 1] as weights that broadcast over a prediction (B, C, h, w) or (B, C, F, h, w): its nearest pixels,
    divided by each sample's own mean, so that a small subject weighs as much as a large one. A black mask gives zeros. `joint_mean`
    divides by the mean of the whole batch."""
    weights = F.interpolate(mask.float(), size=prediction.shape[-2:], mode="nearest")
    mean = weights.mean() if joint_mean else weights.mean(dim=(1, 2, 3), keepdim=True)
    weights = torch.where(mean < BLACK, 0.0, weights / mean.clamp(min=BLACK))
    return weights.reshape(weights.shape[0], 1, *[1] * (prediction.ndim - 4), *weights.shape[-2:])


def min_snr_weights(scheduler: Any, gamma: float) -> torch.Tensor:
    """The loss weight of every timestep of a scheduler with `alphas_cumprod` (Hang et al. 2023, section 3.4): min(SNR, gamma) / SNR for
    models that predict the noise, / (SNR + 1) for those that predict the velocity v."""
    alphas = scheduler.alphas_cumprod.double()
    snr = alphas / (1 - alphas)
    divisor = snr + 1 if scheduler.config.prediction_type == "v_prediction" else snr
    # A schedule rescaled to end at pure noise has SNR 0 there, where the quotient tends to 1 for noise (min(SNR, gamma) is SNR)
    weights = torch.where(divisor > 0, snr.clamp(max=gamma) / divisor, torch.ones_like(snr))
    return weights.float()


def discrete_scheduler(model: BaseModel) -> Any:
    """The scheduler of a model that is trained at whole timesteps, as DDPM's are (Ho et al. 2020); None for flow matching."""
    found = None if model.is_flow_matching else model.noise_scheduler
    return found if hasattr(found, "alphas_cumprod") else None


def snr_table(model: BaseModel, train: TrainSettings) -> torch.Tensor | None:
    """`min_snr_weights` on the model's device, if the job wants them. Raises UserError for a model without such a scheduler."""
    if train.min_snr_gamma is None:
        return None
    scheduler = discrete_scheduler(model)
    if scheduler is None:
        raise UserError(
            f"min_snr_gamma needs a model that is trained with a DDPM scheduler; arch '{model.arch}' is not one", code="no_snr"
        )
    return min_snr_weights(scheduler, train.min_snr_gamma).to(model.device_torch)


def audio_loss(batch: Batch) -> torch.Tensor | None:
    """The mean squared error of the sound, where the model has put `audio_pred` and `audio_target` into the batch."""
    if batch.audio_pred is None or batch.audio_target is None:
        return None
    return F.mse_loss(batch.audio_pred.float(), batch.audio_target.float())
