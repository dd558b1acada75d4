"""Format: 1 for an answer that a regular expression matches as a whole, else 0."""

from __future__ import annotations

import re
from dataclasses import dataclass

from training.contract.records import RecipeError
from training.posttrain.scoring import Reward, Sampled


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """The pattern of a right answer: a regular expression in which `.` also matches the end of a line."""

    pattern: str = r"<think>.*</think>\s*<answer>.*</answer>\s*"


def score(answer: Sampled, settings: Settings) -> float:
    """Return whether the pattern matches the whole answer."""
    return float(re.fullmatch(settings.pattern, answer.text, re.DOTALL) is not None)


def check(settings: Settings) -> None:
    """Raise RecipeError for a pattern that cannot be read."""
    try:
        _ = re.compile(settings.pattern, re.DOTALL)
    except re.error as error:
        raise RecipeError(f"align.parts.format.pattern: {settings.pattern!r}: {error}") from None


REWARD = Reward(
    score=score,
    settings=Settings,
    checked=check,
    examples=(
        (Sampled(text="<think>6 * 12\n= 72</think> <answer>72</answer>"), 1.0),
        (Sampled(text="<answer>72</answer>"), 0.0),
    ),
)
