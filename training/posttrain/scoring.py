"""The declaration of a reward that is a function of one sampled answer. Standard library only."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from training.contract.parts.outside import NoSettings, PartFailed, PartsOf, guarded
from training.contract.records import RecipeError

KIND = "rewards"
LEARNED, RIGHT_ANSWER = "learned", "right_answer"
SCALE_PAIRS = 256  # training pairs from whose scores the learned reward's mean and deviation are computed
MODELLED = (LEARNED, RIGHT_ANSWER)  # rewards that need the reward model, or the answers of all prompts


@dataclass(frozen=True, kw_only=True, slots=True)
class Sampled:
    """A sampled answer: its text, the question before it, and the right answer and the wrong ones, where known."""

    text: str
    question: str = ""
    right: str = ""
    rivals: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Reward:
    """A reward: `score` returns a number for an answer and the settings, or None for an answer that it leaves out.

    `settings` is its record, whose fields have defaults. `examples` are answers with the reward that each must have
    under the default settings: they are computed whenever a recipe with the reward is read, so that a reward that
    prefers wrong answers trains nothing. At least two of them must differ. `needs_right`: rows without a right answer
    are left out.
    """

    score: Callable[[Sampled, Any], float | None]
    examples: tuple[tuple[Sampled, float | None], ...]
    settings: type = NoSettings
    needs_right: bool = False
    checked: Callable[[Any], None] = field(default=lambda settings: None)  # raises RecipeError for wrong settings

    def check(self, name: str, settings: Any) -> None:
        """Raise RecipeError for wrong settings, and if the reward of an example is not the one that it must be."""
        _ = self.checked(settings)
        if len({expected for _, expected in self.examples}) < 2:
            raise RecipeError(f"align.rewards.{name}: needs examples with at least two different rewards")
        for answer, expected in self.examples:
            try:
                given = self.score(answer, self.settings())
            except PartFailed as error:
                raise RecipeError(f"align.rewards.{name}: {error}") from error
            if given is None or expected is None:
                is_right = given is expected
            else:
                is_right = math.isclose(given, expected, abs_tol=1e-9)
            if not is_right:
                raise RecipeError(f"align.rewards.{name}: gave {given} for its example {answer.text!r}, not {expected}")


def outside_reward(name: str, parts: PartsOf, known: tuple[str, ...]) -> Reward:
    """Return the reward from outside that `align.rewards` names. Raise RecipeError if it is none."""
    found = parts.load(KIND, name, known, field="rewards", cls=Reward)
    who = f"reward {name}"
    score = guarded(who, "failed", found.score)

    def finite(answer: Sampled, settings: Any) -> float | None:
        given = score(answer, settings)
        if given is None:
            return None
        if isinstance(given, bool | int | float) and math.isfinite(given):
            return float(given)
        raise PartFailed(
            f"{who} gave {given!r} for the answer {answer.text[:80]!r}; it must be a finite number or None"
        )

    return replace(found, score=finite)
