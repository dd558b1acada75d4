"""Direct preference optimization (DPO; Rafailov et al., arXiv 2305.18290), with any of TRL's losses on pairs.

The loss is logistic in how much more the policy prefers the chosen answer than the reference model does. Before the
first step policy and reference agree, so the loss is ln 2. `align.trl.loss_type` names other losses, and with
`loss_weights` a sum of them; each starts at a value of its own (training/posttrain/align/losses.py).
"""

from __future__ import annotations

import math

from training.contract.job import Gate
from training.posttrain.align.alignment import Alignment, Trained
from training.posttrain.align.initial_loss import TOLERANCE, Start, loss_gate, reference_gate
from training.posttrain.align.losses import losses_of, pairs_start
from training.posttrain.align.method import Method
from training.posttrain.align.paired import train_on_pairs
from training.posttrain.align.settings import AlignRecipe

METHOD = Method(
    config="DPOConfig",
    learns_from="pairs",
    start_gates=("dpo_starts_at_ln2", "starts_at_known_loss", "starts_at_reference"),
)


def train(given: Alignment) -> Trained:
    """Train the SFT model by DPO on the training pairs."""
    return train_on_pairs(given, loss={}, start_gate=start_gate)


def start_gate(start: Start, recipe: AlignRecipe) -> Gate:
    """Return the gate on the start: the loss is ln 2 for every `beta`, or the value of the losses in `align.trl`."""
    losses, expected = losses_of(recipe.trl), pairs_start(recipe.trl, recipe.beta)
    if expected is None:
        return reference_gate(start)
    if losses != ("sigmoid",) or recipe.trl.get("loss_weights"):
        return loss_gate(start, expected, losses=losses)
    return Gate(
        name="dpo_starts_at_ln2",
        passed=abs(start.loss - math.log(2)) <= TOLERANCE,
        evidence={"loss": start.loss, "ln2": math.log(2), "tolerance": TOLERANCE, "pairs": start.rows},
    )
