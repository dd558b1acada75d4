"""Odds ratio preference optimization (ORPO; Hong et al., arXiv 2403.07691): SFT on chosen answers, and their odds.

To the loss of the chosen answer it adds, with the weight `align.beta`, how little its odds exceed those of the rejected
one. An answer's probability is the geometric mean of its tokens'. It has no reference; each pair counts alike.
"""

from __future__ import annotations

from training.posttrain.align.alignment import Alignment, Trained
from training.posttrain.align.initial_loss import loss_gate
from training.posttrain.align.method import Method
from training.posttrain.align.odds import OddsRatioTrainer, expected_start
from training.posttrain.align.paired import pairs_trainer, train_trainer

METHOD = Method(
    config="DPOConfig",
    learns_from="pairs",
    start_gates=("starts_at_known_loss",),
    decides={
        "loss_type": ["sigmoid"],
        "loss_weights": None,
        "label_smoothing": 0.0,
        "f_divergence_type": "reverse_kl",
        "ld_alpha": None,
        "use_weighting": False,
    },
    because="they belong to DPO's losses, which orpo does not use",
)


def train(given: Alignment) -> Trained:
    """Train the SFT model by ORPO on the training pairs."""
    trainer = pairs_trainer(given, {}, OddsRatioTrainer)
    expected = expected_start(trainer)
    return train_trainer(given, trainer, lambda start: loss_gate(start, expected, losses=("orpo",)))
