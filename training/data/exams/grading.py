"""Whether an answer is right: the only code that decides it, for exams, rubrics and verifiable rewards.

An answer is right when it gives an accepted value and nothing that makes it a guess:

- A value is compared after normalization (`normalized`) and must occur as whole words.
- An answer that gives a rival beside the right value is wrong. The row names the rivals; if it names none, the right
  answers of the other rows may be rivals (`Values`). So a list of all values is never right.
- Text of the prompt that the answer repeats word for word does not count; it is removed first.
- If an accepted value ends in `#### 72`, as GSM8K's worked answers do, an answer is right when its last number is 72.
- If every accepted value is empty or only punctuation, no answer is right.

This module uses the standard library alone.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from decimal import Decimal

MAX_CHOICES = 32  # in a set that counts as a choice; an answer that gives more values of a larger set is a list
WORKED = "####"  # precedes the final number of a worked answer
_GAP = " | "  # replaces removed text; no normalized text has this sign
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


def normalized(text: str) -> str:
    """Return a text in lower case, without articles, punctuation and extra spaces, as SQuAD compares answers.

    Decimal points stay. A text of articles alone, such as the choice `A`, keeps them. Source: the evaluation script of
    arXiv 1606.05250; beyond it, compatibility forms (NFKC) are folded.
    """
    folded = unicodedata.normalize("NFKC", text).casefold()
    folded = re.sub(r"(?<=\d),(?=\d{3}\b)", "", folded)  # thousands
    folded = re.sub(r"(?<!\d)\.|\.(?!\d)", " ", folded)
    folded = "".join(" " if unicodedata.category(c)[0] in "PSZC" and c not in ".%" else c for c in folded)
    words = folded.split()
    return " ".join([word for word in words if word not in ("a", "an", "the")] or words)


def says_something(value: str) -> bool:
    """Whether a value has a word that can be compared; for a worked answer, whether it has a final number."""
    return bool(_numbers(value.rpartition(WORKED)[2]) if WORKED in value else normalized(value))


def equals_one(answer: str, values: Iterable[str]) -> bool:
    """Whether the whole answer equals one of the values after normalization. An empty answer never does."""
    said = normalized(answer)
    return bool(said) and any(said == normalized(value) for value in values)


def names_one(answer: str, values: Iterable[str]) -> bool:
    """Whether one of the values occurs in the answer as whole words."""
    return any(_phrase(value) in _phrase(answer) for value in values if normalized(value))


class Values:
    """The right answers of one data set, used to recognize an answer that merely lists many of them.

    The data set counts as multiple choice if it has at most MAX_CHOICES values, or if each value is right for two
    questions or more on average. Then all other values are rivals of the right one. For any other set, an answer that
    gives more than MAX_CHOICES wrong values is a list. A set with worked answers is never a choice.
    """

    def __init__(self, answers: Sequence[str]) -> None:
        self._phrases = {
            _final_number(answer) if WORKED in answer else normalized(answer)
            for answer in answers
            if says_something(answer)
        }
        self._lengths = sorted({len(phrase.split()) for phrase in self._phrases})
        few = len(self._phrases) <= max(MAX_CHOICES, len(answers) / 2)
        self.is_choice = few and not any(WORKED in answer for answer in answers)

    def named_in(self, said: str) -> set[str]:
        """Return the values that occur in a normalized text."""
        words = said.split()
        runs = (" ".join(words[i : i + length]) for length in self._lengths for i in range(len(words) - length + 1))
        return self._phrases.intersection(runs)

    def is_guess(self, said: str) -> bool:
        """Whether an answer is a guess: without its right values, it still gives a rival or too many other values.

        `said` is the normalized answer from which the right values were removed.
        """
        return len(self.named_in(said)) > (0 if self.is_choice else MAX_CHOICES)


def is_right(
    answer: str,
    accepted: Sequence[str],
    *,
    rivals: Sequence[str] = (),
    asked: Sequence[str] = (),
    values: Values | None = None,
) -> bool:
    """Whether the answer gives an accepted value and no rival, by the rules in the module's docstring.

    `asked` are the texts that were shown. If the row names no `rivals`, the right answers of the other rows (`values`)
    are the rivals.
    """
    said = _without(_phrase(answer), asked)
    rest = _without(said, accepted)
    if rest == said and not _is_worked_out(answer, accepted, asked):
        return False
    if rivals:
        return not names_one(rest, rivals)
    return values is None or not values.is_guess(rest)


def _is_worked_out(answer: str, accepted: Iterable[str], asked: Iterable[str]) -> bool:
    for text in asked:
        answer = answer.replace(text, " ") if text else answer
    return any(WORKED in value and _ends_in(answer, value) for value in accepted)


def _phrase(text: str) -> str:
    return f" {normalized(text)} "


def _without(said: str, texts: Iterable[str]) -> str:
    """Return a normalized text with all occurrences of the given texts removed, the longest text first."""
    for phrase in sorted({_phrase(text) for text in texts if normalized(text)}, key=len, reverse=True):
        while phrase in said:
            said = said.replace(phrase, _GAP)
    return said


def _ends_in(answer: str, worked: str) -> bool:
    """Whether the last number in the answer is the result of a worked solution."""
    said, wanted = _numbers(answer), _final_number(worked)
    return bool(said and wanted) and Decimal(said[-1]) == Decimal(wanted)


def _final_number(worked: str) -> str:
    numbers = _numbers(worked.rpartition(WORKED)[2])
    return numbers[-1] if numbers else ""


def _numbers(text: str) -> list[str]:
    return _NUMBER.findall(text.replace(",", ""))
