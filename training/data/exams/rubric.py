"""What a short answer is worth where the row of the prompt says what is right: a reward that no model has to guess.

A prompt's row holds it in `reward_rubric`: `{"right", "wrong", "is_whole", "is_brief", "kind_words"}`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from training.data.exams.grading import is_right, says_something
from training.records import RecipeError


@dataclass(frozen=True, kw_only=True, slots=True)
class Rubric:
    """What an answer must say, and in which manner.

    `right` is the value that it must give, and none of `wrong` may stand beside it (training.data.exams.grading). With
    `is_whole`, `right` is the only right answer, word for word. With `is_brief` the question wants nothing but the
    value; otherwise it wants a whole sentence with one of `kind_words` in it, where there are any.
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
        """What the answer is worth, from -1 to 2: 1 for being right, up to 1 for manners, up to -1 for going on and on.

        Twenty words may be said for nothing, and no three words twice.
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
        """Whether just one of the kind words stands in the answer."""
        words = "|".join(map(re.escape, self.kind_words))
        return not words or len(re.findall(rf"\b({words})\b", answer, re.IGNORECASE)) == 1


def _repeated_share(words: list[str]) -> float:
    """Fraction in [0, 1] of word trigrams that occurred before in the same answer."""
    trigrams = list(zip(words, words[1:], words[2:], strict=False))
    return 1 - len(set(trigrams)) / len(trigrams) if trigrams else 0.0
