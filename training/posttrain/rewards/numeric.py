"""Numeric: 1 for an answer that commits to the number of the right answer, else 0."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal

from training.contract.records import RecipeError
from training.data.exams.final_number import final_number
from training.data.exams.grading import given
from training.posttrain.scoring import Reward, Sampled


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """The largest difference from the right number that counts as equal, as a share of that number."""

    tolerance: float = 0.0


def score(answer: Sampled, settings: Settings) -> float | None:
    """Return whether answer and right answer commit to one number; None if the right answer commits to none."""
    right, said = final_number(answer.right), final_number(given(answer.text))
    if right is None:
        return None
    return float(said is not None and abs(said - right) <= Decimal(str(settings.tolerance)) * abs(right))


def check(settings: Settings) -> None:
    """Raise RecipeError for a tolerance below 0."""
    if settings.tolerance < 0:
        raise RecipeError(f"align.parts.numeric.tolerance={settings.tolerance}; it must be at least 0")


REWARD = Reward(
    score=score,
    settings=Settings,
    checked=check,
    needs_right=True,
    examples=(
        (Sampled(text="6 * 12 = 72, and 1,000 + 72 = 1,072.", right="1000 + 72 #### 1072"), 1.0),
        (Sampled(text="70, 71, 72", right="72"), 0.0),
        (Sampled(text="It may be 71.\n#### 72", right="72"), 1.0),
        (Sampled(text="many", right="72"), 0.0),
        (Sampled(text="72", right="a few"), None),
    ),
)
