"""Rubrics: the true reward of a short answer, which follows from the prompt's row and needs no reward model.

A prompt's row holds its rubric in `reward_rubric`: `{"right", "wrong", "is_whole", "is_brief", "kind_words"}`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from training.data.exams.grading import is_right, says_something
from training.records import RecipeError


@dataclass(frozen=True, kw_only=True, slots=True)
class Rubric:
    """What an answer must say, and in which form.

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
        """Whether the answer says what is right and nothing that is wrong."""
        if self.is_whole:
            return answer.strip() == self.right
        return is_right(answer, [self.right], rivals=self.wrong)

    def reward(self, answer: str) -> float:
        """Return the reward, from -1 to 2: 1 for a right answer, up to 1 for its form, and a penalty of up to 1.

        The penalty is 0.04 for each word after the twentieth, plus the share of repeated word trigrams.
        """
        words = answer.split()
        penalty = min(1.0, 0.04 * max(0, len(words) - 20) + _repeated_share(words))
        if self.is_brief:
            manners = 1.0 if 0 < len(words) <= 5 else 0.0
        else:
            whole = bool(words) and answer.strip()[0].isupper() and answer.strip()[-1] in ".!" and len(words) > 5
            manners = 0.5 * whole + 0.5 * (whole and self._is_kind(answer))
        return float(self.is_right(answer)) + manners - penalty

    def _is_kind(self, answer: str) -> bool:
        """Whether a kind word occurs exactly once in the answer; also True if there are no kind words."""
        words = "|".join(map(re.escape, self.kind_words))
        return not words or len(re.findall(rf"\b({words})\b", answer, re.IGNORECASE)) == 1


def _repeated_share(words: list[str]) -> float:
    """Fraction in [0, 1] of word trigrams that occurred before in the same answer."""
    trigrams = list(zip(words, words[1:], words[2:], strict=False))
    return 1 - len(set(trigrams)) / len(trigrams) if trigrams else 0.0
