"""cross_entropy: the negative log-likelihood of each target, and `z_loss` times log²Z (arXiv 2204.02311)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from training.contract.parts.outside import NoSettings
from training.pretrain.losses.loss import Gradients, LogitRows, Loss
from training.pretrain.losses.settings import LossRecipe

if TYPE_CHECKING:
    from torch import Tensor


def values(rows: LogitRows, recipe: LossRecipe, settings: NoSettings) -> Tensor:
    """Return the loss of each position in nats; Z is the softmax's denominator."""
    import torch

    log_z = rows.logits.logsumexp(-1)
    # A compiler joins this and its gradient with the rest, unlike those of `gather`.
    is_target = torch.arange(rows.logits.shape[-1], device=rows.logits.device) == rows.targets[:, None]
    return log_z - torch.where(is_target, rows.logits, 0.0).sum(-1) + recipe.z_loss * log_z.square()


def gradients(rows: LogitRows, weights: Tensor, recipe: LossRecipe, settings: NoSettings) -> Gradients:
    """Return probabilities - one_hot(target), times weights; z-loss adds 2 · z_loss · log Z · probabilities."""
    import torch

    logits, z_loss, weight = rows.logits, recipe.z_loss, weights[:, None]
    picked = rows.targets.clamp(min=0)[:, None]
    probabilities = torch.softmax(logits, dim=-1, dtype=torch.float32)
    # The likeliest token's probability is never near 0, so its logarithm is exact. This needs one exponential less than
    # computing log_softmax.
    log_z = logits.amax(dim=-1, keepdim=True).float() - probabilities.amax(dim=-1, keepdim=True).log_()
    surprise = (log_z - logits.gather(1, picked))[:, 0]
    made = probabilities.mul_(weight * (1 + 2 * z_loss * log_z) if z_loss else weight)
    made.scatter_add_(1, picked, -weight)
    return Gradients(surprise + z_loss * log_z[:, 0].square(), surprise, made)


LOSS = Loss(values=values, gradients=gradients)
