"""Counts that several rules make of a text."""

from __future__ import annotations

from collections.abc import Sequence


def repeated_parts(parts: Sequence[str]) -> tuple[int, int]:
    """How many of `parts` are equal to an earlier one, and their characters."""
    distinct = set(parts)
    return len(parts) - len(distinct), sum(map(len, parts)) - sum(map(len, distinct))


def fraction(part: float, whole: float) -> float:
    """A fraction; of nothing it is 0."""
    return part / whole if whole else 0.0
