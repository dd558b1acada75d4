"""What a judge's text says: a rating, or which of two answers is better. What says neither is never guessed.

The rules are those of FastChat's MT-Bench (arXiv 2306.05685), for every text that gives one verdict in the form that
the judge was asked for. A text with several different verdicts, a rating outside of 1 to 10, or one in single brackets
has none here. The standard library alone.
"""

from __future__ import annotations

import re
from typing import Literal

from training.data.exams.grading import given

Preference = Literal["A", "B", "tie"]
LEAST, MOST = 1, 10
_RATING = re.compile(r"\[\[(\d+\.?\d*)\]\]")
_PREFERENCE = re.compile(r"\[\[([ABC])\]\]")


def rating(text: str) -> float | None:
    """Return the one rating from 1 to 10 that a judge's text gives, such as `[[7]]`; None if it gives none."""
    found = {float(number) for number in _RATING.findall(given(text))}
    return only if len(found) == 1 and LEAST <= (only := found.pop()) <= MOST else None


def preference(text: str) -> Preference | None:
    """Return the one preference that a judge's text gives: `[[A]]`, `[[B]]`, or `[[C]]` for a tie; None if none."""
    found = set(_PREFERENCE.findall(given(text)))
    if len(found) != 1:
        return None
    letter = found.pop()
    return "tie" if letter == "C" else letter


def in_both_orders(first: Preference | None, swapped: Preference | None) -> Literal[1, 0, -1] | None:
    """Return 1 if a judge prefers the first answer in both orders, -1 if it prefers the second in both, else 0, a tie.

    `swapped` is the verdict on the same answers in the other order. None if one of the verdicts is None.
    """
    if first is None or swapped is None:
        return None
    if (first, swapped) == ("A", "B"):
        return 1
    return -1 if (first, swapped) == ("B", "A") else 0
