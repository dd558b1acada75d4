"""What the rounds of a measurement say: medians with their range, and ratios of what was measured in one round."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median


def spread(values: Sequence[float], digits: int = 1) -> str:
    """Return the median of values and their range, as text with so many digits behind the point."""
    middle, least, most = (f"{value:.{digits}f}" for value in (median(values), min(values), max(values)))
    return f"{middle} [{least}-{most}]"


def ratios(one: Sequence[float], other: Sequence[float]) -> list[float]:
    """Return the ratio of one to the other in each round."""
    return [mine / theirs for mine, theirs in zip(one, other, strict=True)]
