"""Kahneman-Tversky optimization (KTO; Ethayarajh et al., arXiv 2402.01306): learn from single answers, good or bad.

Rows need no partner: a row is a prompt with one answer and whether it is desired. A pair gives two such rows. The loss
of an answer is one minus the sigmoid of its reward against an estimated divergence from the reference, so it starts at
one half, times its weight (`desirable_weight`, `undesirable_weight` in `align.trl`).
"""

from __future__ import annotations

from training.contract.job import Gate
from training.posttrain.align.alignment import Alignment, Trained
from training.posttrain.align.initial_loss import Start, loss_gate
from training.posttrain.align.method import Method
from training.posttrain.align.unpaired import train_on_answers

METHOD = Method(config="KTOConfig", learns_from="answers", start_gates=("starts_at_known_loss",))


def train(given: Alignment) -> Trained:
    """Train the SFT model by KTO on the answers."""
    return train_on_answers(given, start_gate=start_gate)


def start_gate(start: Start, expected: float, loss: str) -> Gate:
    """Return the gate on the loss before the first step, which must be half the mean weight of the measured answers."""
    return loss_gate(start, expected, losses=(loss,))
