"""Whether an answer is right: the only code that decides it, for exams, rubrics and verifiable rewards.

An answer is what comes after a closed thought (`given`). It is right when it gives an accepted value and nothing that
makes it a guess:

- A value is compared after normalization (`normalized`) and must occur as whole words.
- An answer that gives a rival beside the right value is wrong. The row names the rivals; if it names none, the right
  answers of the other rows may be rivals (`Values`). So a list of all values is never right.
- Text of the prompt that the answer repeats word for word does not count; it is removed first.
- If an accepted value ends in `#### 72`, as GSM8K's worked answers do, or if all right answers of the data set are
  numbers, an answer is right when the one number that it commits to is 72 (`final_number`). A list commits to none.
- An answer whose parts between commas, `or` and line ends are values, more than LISTED of them wrong, is a list.
- What stands in `\\boxed{}` or `<answer>` is the whole answer, of a right one too; numbers behind `####` are alike.
- If every accepted value is empty or only punctuation, no answer is right (`can_be_given`).

This module uses the standard library alone.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence

from training.data.exams.final_number import WORKED, final_number, marked_parts

MAX_CHOICES = 32  # in a set that counts as a choice; an answer that gives more values of a larger set is a list
LISTED = 2  # wrong values that an answer may give as whole parts between commas: `Springfield, Illinois, USA`
_THOUGHT = re.compile(r"<(?:think|thinking|thought|reasoning)>|<\|begin_of_thought\|>|\[THINK\]", re.IGNORECASE)
_CLOSED = re.compile(r"</(?:think|thinking|thought|reasoning)>|<\|end_of_thought\|>|\[/THINK\]", re.IGNORECASE)
_SOLUTION = re.compile(r"<\|(?:begin|end)_of_solution\|>")  # around an answer after a thought
_GAP = " | "  # replaces removed text; no normalized text has this sign
_PARTS = re.compile(r"[,;/|\n]|\b(?:or|and)\b", re.IGNORECASE)
_DIGIT = re.compile(r"\d")
_NUMBER = re.compile(r"[-+]?\d[\d,]*(?:\.\d+)?")


def given(answer: str) -> str:
    """Return the answer after its last closed thought, up to the next one; empty while a thought is not closed."""
    after = _CLOSED.split(answer)[-1]
    return _SOLUTION.sub("", _THOUGHT.split(after)[0])


def before_stop(text: str, stops: Sequence[str]) -> str:
    """Return a text up to its first stop string, which counts neither in a thought nor in the white space behind it."""
    start = 0
    while True:
        stop = min((place for one in stops if (place := text.find(one, start)) >= 0), default=len(text))
        thought = _THOUGHT.search(text, start, stop)
        if thought is None:
            return text[:stop]
        closed = _CLOSED.search(text, thought.end())
        if closed is None:
            return text
        start = len(text) - len(text[closed.end() :].lstrip())


def opened_thought(prompt: str) -> str:
    """Return the sign at the end of a prompt that begins the answer's thought; empty if there is none."""
    *_, last = (None, *_THOUGHT.finditer(prompt))
    return prompt[last.start() :] if last and not prompt[last.end() :].strip() else ""


def _result(answer: str) -> str:
    """Return what an answer marks as its result, or else the whole answer after its thought."""
    after = given(answer)
    return "\n".join(dict.fromkeys(marked_parts(after))) or after


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
    """Whether a value has a word that can be compared; for a worked answer, whether a digit follows the mark."""
    return bool(_DIGIT.search(value.rpartition(WORKED)[2]) if WORKED in value else normalized(value))


def can_be_given(value: str) -> bool:
    """Whether any answer can be right by this value: it says something and, if it is worked out, ends in one number."""
    value = _result(value)
    return says_something(value) and (WORKED not in value or final_number(value) is not None)


def equals_one(answer: str, values: Iterable[str]) -> bool:
    """Whether the whole answer equals one of the values after normalization. An empty answer never does."""
    said = normalized(_result(answer))
    return bool(said) and any(said == normalized(value) for value in values)


def equals_as_written(answer: str, value: str) -> bool:
    """Whether the whole answer is the value, apart from case and white space. An empty answer never is."""
    said = _result(answer).casefold().split()
    return bool(said) and said == value.casefold().split()


def names_one(answer: str, values: Iterable[str]) -> bool:
    """Whether one of the values occurs in the answer as whole words."""
    said = _phrase(_result(answer))
    return any(_phrase(value) in said for value in values if normalized(value))


class Values:
    """The right answers of one data set, used to recognize an answer that merely lists many of them.

    The data set counts as multiple choice if it has at most MAX_CHOICES values, or if each value is right for two
    questions or more on average. Then all other values are rivals of the right one. For any other set, an answer that
    gives more than MAX_CHOICES wrong values is a list, and so is one of which more than LISTED whole parts, between
    commas or line ends, are wrong values. A set with worked answers is never a choice.
    """

    def __init__(self, answers: Sequence[str]) -> None:
        answers = list(map(_result, answers))
        self._phrases = {_short(answer) for answer in answers if can_be_given(answer)}
        self._parts = set().union(*map(_parts_of, answers))
        self._lengths = sorted({len(phrase.split()) for phrase in self._phrases})
        few = len(self._phrases) <= max(MAX_CHOICES, len(answers) / 2)
        self.is_choice = few and not any(WORKED in answer for answer in answers)
        self.are_numbers = bool(answers) and all(map(_is_number, answers))

    def named_in(self, said: str) -> set[str]:
        """Return the values that occur in a normalized text."""
        words = said.split()
        runs = (" ".join(words[i : i + length]) for length in self._lengths for i in range(len(words) - length + 1))
        return self._phrases.intersection(runs)

    def is_guess(self, answer: str, said: str, accepted: Iterable[str]) -> bool:
        """Whether an answer is a guess: beside the accepted values, it gives a rival or too many other values.

        `said` is the normalized answer from which the right values were removed.
        """
        named = len(self.named_in(said))
        if self.is_choice or named > MAX_CHOICES:
            return named > 0
        return len(self._parts.intersection(_parts_of(answer)).difference(*map(_parts_of, accepted))) > LISTED


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
    accepted = list(map(_result, accepted))
    said = _without(_phrase(_result(answer)), asked)
    rest = _without(said, accepted)
    numbers = [value for value in accepted if WORKED in value or (values is not None and values.are_numbers)]
    if numbers:
        return _commits_to(given(answer), numbers, asked) and not names_one(rest, rivals)
    if rest == said:
        return False
    if rivals:
        return not names_one(rest, rivals)
    return values is None or not values.is_guess(_result(answer), rest, accepted)


def _commits_to(answer: str, values: Iterable[str], asked: Iterable[str]) -> bool:
    """Whether the one number that the answer commits to is that of a value."""
    for text in asked:
        answer = answer.replace(text, " ") if text else answer
    said = final_number(answer)
    return said is not None and said in map(final_number, values)


def _phrase(text: str) -> str:
    return f" {normalized(text)} "


def _without(said: str, texts: Iterable[str]) -> str:
    """Return a normalized text with all occurrences of the given texts removed, the longest text first."""
    for phrase in sorted({_phrase(text) for text in texts if normalized(text)}, key=len, reverse=True):
        while phrase in said:
            said = said.replace(phrase, _GAP)
    return said


def _parts_of(text: str) -> set[str]:
    """Return the normalized parts of a text between commas, other signs of a list, and the words of one."""
    return {part for part in map(normalized, _PARTS.split(text)) if part}


def _short(value: str) -> str:
    """Return a value as it is looked for: of a worked answer its final number, else the normalized value."""
    return str(final_number(value)) if WORKED in value else normalized(value)


def _is_number(value: str) -> bool:
    return WORKED in value or _NUMBER.fullmatch(value.strip()) is not None
