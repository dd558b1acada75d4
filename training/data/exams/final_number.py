"""The one number that an answer commits to, or none if it offers several. Standard library only.

- If an answer marks its result by `####`, `\\boxed{}` or `<answer>`, it offers the marked numbers alone: those in the
  braces or before `</answer>`, and behind `####` the first one with those that a list or a calculation joins to it.
  Words after them, and numbers in these, decide nothing.
- Without these, but with `answer is`, `answer:` or `answer =`, it offers the first number behind each mark and every
  later number that no calculation uses.
- Without a mark it offers every number that no calculation uses. In `48 / 2 = 24, 48 + 24 = 72` this is 72 alone: an
  operand is used, and a result is used if it is an operand later.
- An answer that offers two different numbers is a list or a guess, in whatever order, and commits to none.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable
from decimal import Decimal
from itertools import pairwise

WORKED = "####"  # precedes the final number of a worked answer
_SIGN = re.compile(r"\banswer\W{0,4}(?:is\b|:|=)", re.IGNORECASE)
_BEGINS = re.compile(r"\\boxed\s*\{|<answer>", re.IGNORECASE)
_ENDS = re.compile(r"</answer>|\Z", re.IGNORECASE)
_NUMBER = re.compile(r"(?:(?<![\w)%])-)?(?:\d+(?:\.\d+)?|(?<![\w.])\.\d+)")
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}\b)")
_LINE_NUMBER = re.compile(r"^[^\S\n]*\d{1,2}[.)][^\S\n]+(?=\S)", re.MULTILINE)
# What stands between two operands: a unit of up to three words, an operator, and signs of money or brackets.
_OPERATOR = re.compile(
    r"[^\S\n]*[%)}\]]*[^\S\n]*(?:[^\W\d_]+(?:(?:[^\S\n]*/[^\S\n]*|[^\S\n]+)[^\W\d_]+){0,2})?[^\S\n]*"
    r"(?:[-+*/×÷·^–]|\*\*|(?<![^\W\d_])[xX]\b|\\times|\btimes|\bplus|\bminus)[^\S\n]*[({\[$€£\\]*"
)
# What joins the values of a list; a unit stands before `or` alone, because `72 apples, 5 pears` offers one number.
_LISTED = re.compile(
    r"\s*(?:[,;/|=\n]|(?:[^\W\d_]+\s+){0,2}or\b|and\b)+[\s$€£*-]*(?:or\b|and\b)?[\s$€£]*", re.IGNORECASE
)
MOST_BETWEEN = 80  # characters between two numbers that are joined
_EQUALS = re.compile(r"=[^\S\n]*[({\[$€£\\]*$")


def final_number(answer: str) -> Decimal | None:
    """Return the one number that an answer gives as its result; None if it gives none, or several (see above)."""
    plain = _LINE_NUMBER.sub("", _THOUSANDS.sub("", answer.replace("\N{MINUS SIGN}", "-")))
    numbers = list(_NUMBER.finditer(plain))
    starts = [number.start() for number in numbers]
    operands = _operands(plain, numbers)
    marked, places = _marked(plain, numbers, starts)
    last_use = {Decimal(numbers[place][0]): place for place in sorted(operands)}

    def is_offered(place: int) -> bool:
        if place in operands or place in marked:
            return place not in operands
        before = _EQUALS.search(plain, numbers[place - 1].end() if place else 0, starts[place])
        return last_use.get(Decimal(numbers[place][0]), -1) < (place if before else 0)

    offered = {Decimal(numbers[place][0]) for place in places if is_offered(place)}
    return offered.pop() if len(offered) == 1 else None


def marked_parts(text: str) -> list[str]:
    """Return what an answer marks as its result by `\\boxed{}` or `<answer>`, in order."""
    return [text[start:end] for start, end in _spans(text)]


def _spans(text: str) -> list[tuple[int, int]]:
    """Return where the marked parts of a text begin and end."""
    spans: list[tuple[int, int]] = []
    for begin in _BEGINS.finditer(text):
        if begin.start() >= (spans[-1][1] if spans else 0):
            end = _ENDS.search(text, begin.end()) if begin[0].startswith("<") else None
            spans.append((begin.end(), _closing_brace(text, begin.end()) if end is None else end.start()))
    return spans


def _closing_brace(text: str, start: int) -> int:
    depth = 1
    for place in range(start, len(text)):
        depth += {"{": 1, "}": -1}.get(text[place], 0)
        if not depth:
            return place
    return len(text)


def _marked(text: str, numbers: list[re.Match[str]], starts: list[int]) -> tuple[set[int], Iterable[int]]:
    """Return the places, among a text's numbers, of the first behind each mark and of all that may be offered."""
    worked = [bisect_left(starts, mark.end()) for mark in re.finditer(WORKED, text)]
    spans = [(bisect_left(starts, start), bisect_left(starts, end)) for start, end in _spans(text)]
    if worked or spans:
        spans += [(first, _joined(text, numbers, first)) for first in worked if first < len(numbers)]
        return {first for first, end in spans if first < end}, {place for span in spans for place in range(*span)}
    marked = {bisect_left(starts, mark.end()) for mark in _SIGN.finditer(text)}
    return marked, range(min(marked, default=0), len(numbers))


def _joined(text: str, numbers: list[re.Match[str]], first: int) -> int:
    """Return the place after the last of the numbers that a list or a calculation joins to the first one."""
    for place in range(first, len(numbers) - 1):
        start, end = numbers[place].end(), numbers[place + 1].start()
        joins = (sign.fullmatch(text, start, end) for sign in (_OPERATOR, _LISTED))
        if end - start > MOST_BETWEEN or not any(joins):
            return place + 1
    return len(numbers)


def _operands(text: str, numbers: list[re.Match[str]]) -> set[int]:
    """Return the places, in a list of a text's numbers, of those that stand beside an operator."""
    pairs = enumerate(pairwise(numbers))
    joined = [place for place, (one, other) in pairs if _OPERATOR.fullmatch(text, one.end(), other.start())]
    return {operand for place in joined for operand in (place, place + 1)}
