"""Length: 1 for an answer of at most so many words, falling to 0 at twice as many."""

from __future__ import annotations

from dataclasses import dataclass

from training.contract.records import RecipeError
from training.posttrain.scoring import Reward, Sampled


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """The number of words up to which an answer has the whole reward. An empty answer has none."""

    most_words: int = 50


def score(answer: Sampled, settings: Settings) -> float:
    """Return a reward from 0 to 1 for the number of words, which white space separates."""
    words = len(answer.text.split())
    return min(1.0, max(0.0, 2 - words / settings.most_words)) if words else 0.0


def check(settings: Settings) -> None:
    """Raise RecipeError for less than one word."""
    if settings.most_words < 1:
        raise RecipeError(f"align.parts.length.most_words={settings.most_words}; it must be at least 1")


REWARD = Reward(
    score=score,
    settings=Settings,
    checked=check,
    examples=(
        (Sampled(text="one two"), 1.0),
        (Sampled(text="word " * 75), 0.5),
        (Sampled(text="word " * 100), 0.0),
        (Sampled(text=" "), 0.0),
    ),
)
