"""A loss of your own: tokens that the model predicts well count less (the focal loss, arXiv 1708.02002)."""

from dataclasses import dataclass

from training.pretrain.losses.loss import Loss, nats


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How much less they count; with 0 the loss is the cross-entropy."""

    gamma: float = 1.0


def values(rows, recipe, settings):
    """Return the loss of each position; torch differentiates it by the logits."""
    surprise = nats(rows)
    missed = (1 - (-surprise).exp()).clamp(min=1e-6)  # at 0 a root has no gradient
    return missed**settings.gamma * surprise


loss = Loss(values=values, settings=Settings)
