"""The declaration of a judge of answers from the user's own environment. Its errors have the judge's name."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from training.contract.parts.outside import NoSettings, PartFailed, PartsOf, named

KIND = "judges"
SECTION = "evaluation"


@dataclass(frozen=True, kw_only=True, slots=True)
class AnswerJudge:
    """A judge of answers: `score` returns a finite number for a conversation whose last message is a model's answer.

    A message has `role` and `content`. The fields of the record `settings` have defaults.
    """

    score: Callable[[Sequence[Mapping[str, Any]], Any], float]
    settings: type = NoSettings


@dataclass(frozen=True, slots=True)
class ReadyJudge:
    """The judge from outside of a recipe, with its name and settings."""

    name: str
    judge: AnswerJudge
    settings: Any

    def scores(self, conversations: Sequence[Sequence[Mapping[str, Any]]]) -> list[float]:
        """Return the score of each conversation. Raise PartFailed, with the judge's name, for what is no number."""
        return [self._score(one) for one in conversations]

    def _score(self, conversation: Sequence[Mapping[str, Any]]) -> float:
        who, answer = f"judge {self.name}", conversation[-1]["content"][:80]
        with named(who, f"failed at the answer {answer!r}"):
            number = self.judge.score([dict(message) for message in conversation], self.settings)
        if not isinstance(number, bool | int | float) or not math.isfinite(number):
            raise PartFailed(f"{who} gave {number!r} for the answer {answer!r}; it must be a finite number")
        return float(number)


def outside_judge(name: str, parts: PartsOf) -> ReadyJudge:
    """Return the judge from outside that `evaluation.judge` names. Raise RecipeError if there is none."""
    found = parts.load(KIND, name, (), field="judge", cls=AnswerJudge)
    return ReadyJudge(name, found, parts.settings(name, found.settings))
