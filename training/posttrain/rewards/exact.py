"""Exact: 1 for an answer that is the right one, apart from case and white space, else 0."""

from __future__ import annotations

from training.contract.parts.outside import NoSettings
from training.data.exams.grading import equals_as_written
from training.posttrain.scoring import Reward, Sampled


def score(answer: Sampled, settings: NoSettings) -> float | None:
    """Return 1 if the whole answer is the right one, else 0; None if no right answer is known."""
    if not answer.right.strip():
        return None
    return float(equals_as_written(answer.text, answer.right))


REWARD = Reward(
    score=score,
    needs_right=True,
    examples=(
        (Sampled(text=" 72\n", right="72"), 1.0),
        (Sampled(text="It is 72", right="72"), 0.0),
        (Sampled(text="72"), None),
        (Sampled(text="", right=" "), None),
    ),
)
