"""The declaration of a judge of answers from the user's own environment. Its errors have the judge's name."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from training.contract.parts.outside import NoSettings, PartFailed, PartsOf, named

KIND = "judges"
SECTION = "evaluation"
Judge = Callable[[Sequence[Mapping[str, Any]]], float]  # returns the score of a conversation


@dataclass(frozen=True, kw_only=True, slots=True)
class AnswerJudge:
    """A judge of answers: `score` returns a finite number for a conversation whose last message is a model's answer.

    A message has `role` and `content`. The fields of the record `settings` have defaults.
    """

    score: Callable[[Sequence[Mapping[str, Any]], Any], float]
    settings: type = NoSettings


def outside_judge(name: str, parts: PartsOf) -> Judge:
    """Return the function that scores a conversation by the judge that `evaluation.judge` names.

    Raise RecipeError if there is none. The function raises PartFailed, with the judge's name, for what is no number.
    """
    judge = parts.load(KIND, name, (), field="judge", cls=AnswerJudge)
    who, settings = f"judge {name}", parts.settings(name, judge.settings)

    def score(conversation: Sequence[Mapping[str, Any]]) -> float:
        answer = conversation[-1]["content"][:80]
        with named(who, f"failed at the answer {answer!r}"):
            number = judge.score([dict(message) for message in conversation], settings)
        if not isinstance(number, bool | int | float) or not math.isfinite(number):
            raise PartFailed(f"{who} gave {number!r} for the answer {answer!r}; it must be a finite number")
        return float(number)

    return score
