"""A preference method of your own: DPO whose loss also has the likelihood of the chosen answer, at a weight."""

from dataclasses import dataclass

from training.posttrain.align.method import Method


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The weight of the negative log-likelihood of the chosen answer."""

    likelihood: float = 0.2


def train(given):
    """Train on the pairs; TRL is imported only here, so that recipes are read without it."""
    from training.posttrain.align.initial_loss import reference_gate
    from training.posttrain.align.paired import train_on_pairs

    loss = {"loss_type": ["sigmoid", "sft"], "loss_weights": [1.0, given.settings.likelihood]}
    return train_on_pairs(given, loss=loss, start_gate=lambda start, recipe: reference_gate(start))


method = Method(
    config="DPOConfig", learns_from="pairs", settings=Settings, start_gates=("starts_at_reference",), train=train
)
