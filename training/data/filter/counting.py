"""Counts on texts that several rules use."""

from __future__ import annotations

from collections.abc import Sequence


def repeated_parts(parts: Sequence[str]) -> tuple[int, int]:
    """Return the number of `parts` that equal an earlier one, and the sum of their characters."""
    distinct = set(parts)
    return len(parts) - len(distinct), sum(map(len, parts)) - sum(map(len, distinct))


def fraction(part: float, whole: float) -> float:
    """Return part / whole; 0 if `whole` is 0."""
    return part / whole if whole else 0.0
