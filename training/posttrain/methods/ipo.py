"""Identity preference optimization (Azar et al., arXiv 2310.12036): the margin between chosen and rejected answer is
drawn to 1/(2β) instead of growing without end.

As in TRL, the margin is counted per token: the policy's mean log-probability of an answer's tokens less the
reference's, chosen less rejected. Before the first step policy and reference agree, so the loss is 1/(4β²).
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
    """The SFT model after IPO on the training pairs."""
    return train_on_pairs(given, loss=METHOD.decides, start_gate=start_gate)


def start_gate(loss: float, pairs: int, beta: float) -> Gate:
    """Whether the loss on the first pairs is 1/(4β²) before the first step."""
    expected = 1 / (4 * beta**2)
    return Gate(
        name="ipo_starts_at_1_over_4_beta_squared",
        passed=abs(loss - expected) <= TOLERANCE * expected,
        evidence={"loss": loss, "expected": expected, "tolerance": TOLERANCE * expected, "pairs": pairs},
    )
