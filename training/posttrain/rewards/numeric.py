"""Numeric: 1 for an answer whose last number equals the last number of the right answer, else 0."""

from __future__ import annotations

import re
from dataclasses import dataclass

from training.posttrain.scoring import Reward, Sampled
from training.records import RecipeError

_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """The largest difference from the right number that counts as equal, as a share of that number."""

    tolerance: float = 0.0


def score(answer: Sampled, settings: Settings) -> float | None:
    """Return whether the last numbers agree; None if the right answer has no number."""
    right, said = last_number(answer.right), last_number(answer.text)
    if right is None:
        return None
    return float(said is not None and abs(said - right) <= settings.tolerance * abs(right))


def last_number(text: str) -> float | None:
    """Return the last number in a text, or None. Commas between digits are left out."""
    found = _NUMBER.findall(text)
    return float(found[-1].replace(",", "")) if found else None


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
        (Sampled(text="6 * 12 = 72, so 1,072 in all.", right="1000 + 72 #### 1072"), 1.0),
        (Sampled(text="It is 72 or 73", right="72"), 0.0),
        (Sampled(text="many", right="72"), 0.0),
        (Sampled(text="72", right="a few"), None),
    ),
)
