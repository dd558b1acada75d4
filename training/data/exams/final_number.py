"""The one number that an answer commits to, or none if it offers several. Standard library only.

- If an answer marks its result by `####`, `\\boxed`, `<answer>` or, without these, by `answer is`, `answer:` or
  `answer =`, it offers the first number behind each mark and every later number that no calculation uses.
- Without a mark it offers every number that no calculation uses. In `48 / 2 = 24, 48 + 24 = 72` this is 72 alone: an
  operand is used, and a result is used if it is an operand later.
- An answer that offers two different numbers is a list or a guess, in whatever order, and commits to none.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from decimal import Decimal
from itertools import pairwise

WORKED = "####"  # precedes the final number of a worked answer
_MARKS = (
    re.compile(r"####|\\boxed\b|<answer>", re.IGNORECASE),
    re.compile(r"\banswer\W{0,4}(?:is\b|:|=)", re.IGNORECASE),
)
_NUMBER = re.compile(r"(?:(?<![\w)%])-)?(?:\d+(?:\.\d+)?|(?<![\w.])\.\d+)")
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}\b)")
_LINE_NUMBER = re.compile(r"^[^\S\n]*\d{1,2}[.)][^\S\n]+(?=\S)", re.MULTILINE)
# What stands between two operands: a unit of up to three words, an operator, and signs of money or brackets.
_OPERATOR = re.compile(
    r"[^\S\n]*[%)}\]]*[^\S\n]*(?:[^\W\d_]+(?:(?:[^\S\n]*/[^\S\n]*|[^\S\n]+)[^\W\d_]+){0,2})?[^\S\n]*"
    r"(?:[-+*/×÷·^–]|\*\*|(?<![^\W\d_])[xX]\b|\\times|\btimes|\bplus|\bminus)[^\S\n]*[({\[$€£\\]*"
)
_EQUALS = re.compile(r"=[^\S\n]*[({\[$€£\\]*$")


def final_number(answer: str) -> Decimal | None:
    """Return the one number that an answer gives as its result; None if it gives none, or several (see above)."""
    plain = _LINE_NUMBER.sub("", _THOUSANDS.sub("", answer.replace("\N{MINUS SIGN}", "-")))
    numbers = list(_NUMBER.finditer(plain))
    starts = [number.start() for number in numbers]
    marks = next(filter(None, ([mark.end() for mark in sign.finditer(plain)] for sign in _MARKS)), [])
    marked = {bisect_left(starts, mark) for mark in marks}
    operands = _operands(plain, numbers)
    last_use = {Decimal(numbers[place][0]): place for place in sorted(operands)}

    def is_offered(place: int) -> bool:
        if place in operands or place in marked:
            return place not in operands
        before = _EQUALS.search(plain, numbers[place - 1].end() if place else 0, starts[place])
        return last_use.get(Decimal(numbers[place][0]), -1) < (place if before else 0)

    offered = {Decimal(numbers[place][0]) for place in range(min(marked, default=0), len(numbers)) if is_offered(place)}
    return offered.pop() if len(offered) == 1 else None


def _operands(text: str, numbers: list[re.Match[str]]) -> set[int]:
    """Return the places, in a list of a text's numbers, of those that stand beside an operator."""
    pairs = enumerate(pairwise(numbers))
    joined = [place for place, (one, other) in pairs if _OPERATOR.fullmatch(text, one.end(), other.start())]
    return {operand for place in joined for operand in (place, place + 1)}
