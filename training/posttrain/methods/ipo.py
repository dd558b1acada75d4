"""Identity preference optimization (IPO; Azar et al., arXiv 2310.12036).

A squared loss pulls the margin between chosen and rejected answer to 1/(2β), so that it does not grow without bound.

As in TRL, the margin is per token. For each answer it takes the policy's mean log-probability of the tokens minus the
reference model's; the margin is this number for the chosen answer minus that for the rejected one. Before the first
step policy and reference agree, so the loss is 1/(4β²).
"""

from __future__ import annotations

from training.contract.job import Gate
from training.posttrain.align.alignment import Alignment, Trained
from training.posttrain.align.initial_loss import TOLERANCE, Start
from training.posttrain.align.method import Method
from training.posttrain.align.paired import train_on_pairs
from training.posttrain.align.settings import AlignRecipe

METHOD = Method(
    config="DPOConfig",
    learns_from="pairs",
    start_gates=("ipo_starts_at_1_over_4_beta_squared",),
    decides={"loss_type": ["ipo"], "use_weighting": False},
    because="only the squared loss, unweighted, starts at 1/(4β²), and the gate asks for that; dpo takes other losses",
)


def train(given: Alignment) -> Trained:
    """Train the SFT model by IPO on the training pairs."""
    return train_on_pairs(given, loss=METHOD.decides, start_gate=start_gate)


def start_gate(start: Start, recipe: AlignRecipe) -> Gate:
    """Return the gate on the loss before the first step, which must be 1/(4β²)."""
    expected = 1 / (4 * recipe.beta**2)
    return Gate(
        name="ipo_starts_at_1_over_4_beta_squared",
        passed=abs(start.loss - expected) <= TOLERANCE * expected,
        evidence={
            "loss": start.loss,
            "expected": expected,
            "tolerance": TOLERANCE * expected,
            "pairs": start.rows,
        },
    )
