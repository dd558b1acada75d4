"""Identity preference optimization (IPO; Azar et al., arXiv 2310.12036).

A squared loss pulls the margin between chosen and rejected answer to 1/(2β), so that it does not grow without bound.

As in TRL, the margin is per token. For each answer it takes the policy's mean log-probability of the tokens minus the
reference model's; the margin is this number for the chosen answer minus that for the rejected one. Before the first
step policy and reference agree, so the loss is 1/(4β²).
"""

from __future__ import annotations

from training.job import Gate
from training.posttrain.align.alignment import Alignment, Trained
from training.posttrain.align.method import Method
from training.posttrain.align.paired import train_on_pairs

METHOD = Method(
    config="DPOConfig",
    learns_from="pairs",
    start_gate="ipo_starts_at_1_over_4_beta_squared",
    decides={"loss_type": ["ipo"], "use_weighting": False},
    because="only the squared loss, unweighted, starts at 1/(4β²), and the gate asks for that",
)
TOLERANCE = 1e-3  # share of the expected loss


def train(given: Alignment) -> Trained:
    """Train the SFT model by IPO on the training pairs."""
    return train_on_pairs(given, loss=METHOD.decides, start_gate=start_gate)


def start_gate(loss: float, pairs: int, beta: float) -> Gate:
    """Return the gate on the loss before the first step, which must be 1/(4β²).

    `pairs` is the number of pairs on which the loss was measured.
    """
    expected = 1 / (4 * beta**2)
    return Gate(
        name="ipo_starts_at_1_over_4_beta_squared",
        passed=abs(loss - expected) <= TOLERANCE * expected,
        evidence={"loss": loss, "expected": expected, "tolerance": TOLERANCE * expected, "pairs": pairs},
    )
