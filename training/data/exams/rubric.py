"""Rubrics: the true reward of a short answer, which follows from the prompt's row and needs no reward model.

A prompt's row holds its rubric in `reward_rubric`: `{"right", "wrong", "is_whole", "is_brief", "kind_words"}`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from training.contract.records import RecipeError
from training.data.exams.grading import given, is_right, says_something

# What a part of the true reward adds when it is 1. The parts after `right` are manners, not knowledge.
WORTH: Final = {"right": 1.0, "whole_sentence": 0.5, "courtesy": 0.5, "brief": 1.0, "length": -1.0}


@dataclass(frozen=True, kw_only=True, slots=True)
class Rubric:
    """The criteria that decide the true reward of an answer to one prompt.

    The answer must give the value `right` and none of the values `wrong` (training.data.exams.grading). With
    `is_whole`, it must equal `right` word for word. With `is_brief`, the question wants the value alone; otherwise it
    wants a whole sentence with one of `kind_words`, if there are any.
    """

    right: str
    wrong: tuple[str, ...] = ()
    is_whole: bool = False
    is_brief: bool = False
    kind_words: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not says_something(self.right):
            raise RecipeError(f"right={self.right!r} has no word in it; an answer that says nothing would be right")

    def is_right(self, answer: str) -> bool:
        """Whether the answer gives the right value and no wrong one."""
        if self.is_whole:
            return given(answer).strip() == self.right
        return is_right(answer, [self.right], rivals=self.wrong)

    def reward(self, answer: str) -> float:
        """Return the reward, from -1 to 2: the sum of the answer's parts, each times its WORTH."""
        return sum(WORTH[part] * value for part, value in self.parts(answer).items())

    def parts(self, answer: str) -> dict[str, float]:
        """Return the parts of the reward, each from 0 to 1, by their names in WORTH, of the answer after its thought.

        `right` is about what the answer says. `brief`, or `whole_sentence` and `courtesy`, are about its form. `length`
        is the penalty: 0.04 for each word after the twentieth, plus the share of repeated word trigrams.
        """
        answer = given(answer)
        words = answer.split()
        parts = {"right": float(self.is_right(answer))}
        if self.is_brief:
            parts["brief"] = float(0 < len(words) <= 5)
        else:
            whole = bool(words) and answer.strip()[0].isupper() and answer.strip()[-1] in ".!" and len(words) > 5
            parts |= {"whole_sentence": float(whole), "courtesy": float(whole and self._is_kind(answer))}
        return parts | {"length": min(1.0, 0.04 * max(0, len(words) - 20) + _repeated_share(words))}

    def _is_kind(self, answer: str) -> bool:
        """Whether a kind word occurs exactly once in the answer; also True if there are no kind words."""
        words = "|".join(map(re.escape, self.kind_words))
        return not words or len(re.findall(rf"\b({words})\b", answer, re.IGNORECASE)) == 1


def _repeated_share(words: list[str]) -> float:
    """Fraction in [0, 1] of word trigrams that occurred before in the same answer."""
    trigrams = list(zip(words, words[1:], words[2:], strict=False))
    return 1 - len(set(trigrams)) / len(trigrams) if trigrams else 0.0
