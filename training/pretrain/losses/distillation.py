"""Distillation: a student learns a teacher's probabilities for the next token in addition to the token itself.

Hinton et al., arXiv 1503.02531. With student logits s, teacher logits t, temperature T and weight w, a trained position
costs (1 - w) · CE(s, target) + w · T² · KL(softmax(t / T) || softmax(s / T)) nats; T² keeps the size of the KL term's
gradient the same for every T. The logged loss is the unweighted cross-entropy alone, so that it can be compared with
the loss of a run without a teacher.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from training.contract.parts.outside import NoSettings
from training.pretrain.losses.loss import Gradients, LogitRows, Loss, nats
from training.pretrain.losses.settings import LossRecipe

if TYPE_CHECKING:
    from torch import Tensor


def values(rows: LogitRows, recipe: LossRecipe, settings: NoSettings) -> Tensor:
    """Return the loss of each position in nats, with the teacher's logits in `rows.taught`."""
    assert rows.taught is not None, "a teacher teaches"
    weight, temperature = recipe.distill.weight, recipe.distill.temperature
    soft, taught = rows.logits / temperature, (rows.taught / temperature).log_softmax(-1)
    divergence = (taught.exp() * (taught - soft)).sum(-1) + soft.logsumexp(-1)
    return (1 - weight) * nats(rows) + weight * temperature**2 * divergence


def gradients(rows: LogitRows, weights: Tensor, recipe: LossRecipe, settings: NoSettings) -> Gradients:
    """Return (1 - w) · (p - one_hot(target)) + w · T · (softened p - softened teacher's), times weights."""
    import torch

    assert rows.taught is not None, "a teacher teaches"
    weight, temperature = recipe.distill.weight, recipe.distill.temperature
    picked, logits = rows.targets.clamp(min=0)[:, None], rows.logits.float()
    log_p = logits.log_softmax(-1)
    log_soft = (logits / temperature).log_softmax(-1)
    log_taught = (rows.taught / temperature).log_softmax(-1)
    soft_taught = log_taught.exp()
    surprise = -log_p.gather(1, picked)[:, 0]
    divergence = (soft_taught * (log_taught - log_soft)).sum(-1)
    made = log_p.exp_().scatter_add_(1, picked, torch.full_like(picked, -1.0, dtype=torch.float32))
    made = (1 - weight) * made + weight * temperature * (log_soft.exp_() - soft_taught)
    total = (1 - weight) * surprise + weight * temperature**2 * divergence
    return Gradients(total, surprise, made.mul_(weights[:, None]))


DISTILLATION = Loss(values=values, gradients=gradients)
