"""Direct preference optimization (DPO; Rafailov et al., arXiv 2305.18290).

The loss is logistic in how much more the policy prefers the chosen answer than the reference model does. Before the
first step policy and reference agree, so the loss is ln 2.
"""

from __future__ import annotations

import math

from training.job import Gate
from training.posttrain.align.alignment import Alignment, Trained
from training.posttrain.align.method import Method
from training.posttrain.align.paired import train_on_pairs

METHOD = Method(
    config="DPOConfig",
    learns_from="pairs",
    start_gate="dpo_starts_at_ln2",
    decides={"loss_type": ["sigmoid"], "use_weighting": False},
    because="only the sigmoid loss, unweighted, starts at ln 2, and the gate asks for that",
)
TOLERANCE = 1e-3


def train(given: Alignment) -> Trained:
    """Train the SFT model by DPO on the training pairs."""
    return train_on_pairs(given, loss=METHOD.decides, start_gate=start_gate)


def start_gate(loss: float, pairs: int, beta: float) -> Gate:
    """Return the gate on the loss before the first step, which must be ln 2 for every `beta`.

    `pairs` is the number of pairs on which the loss was measured.
    """
    return Gate(
        name="dpo_starts_at_ln2",
        passed=abs(loss - math.log(2)) <= TOLERANCE,
        evidence={"loss": loss, "ln2": math.log(2), "tolerance": TOLERANCE, "pairs": pairs},
    )
