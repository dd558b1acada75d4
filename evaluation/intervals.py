"""95 % intervals of shares, and tests of differences between shares. They hold for 0 and for all of n items too.

Standard library only.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

NORMAL_95 = 1.959964  # standard errors on each side that hold 95 % of a normal distribution


def share_interval(share: float, n: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share of `n` items: of 0 of 64 it is 0 to 0.057.

    `share` may also be the mean of values between 0 and 1: these vary less than right and wrong with the same mean do,
    so that the interval is then too wide and never too narrow. Source: Wilson 1927, doi 10.1080/01621459.1927.10502953.
    """
    squared = NORMAL_95**2 / n
    middle = share + squared / 2
    half = math.sqrt(squared * (share * (1 - share) + squared / 4))
    return max(0.0, (middle - half) / (1 + squared)), min(1.0, (middle + half) / (1 + squared))


def in_percent(share: float | None, n: int) -> str:
    """A share with its interval for people, such as `0.0 (0.0 to 5.7)`; a dash for none."""
    if share is None:
        return "–"
    low, high = share_interval(share, n)
    return f"{100 * share:.1f} ({100 * low:.1f} to {100 * high:.1f})"


def paired_interval(lost: int, gained: int, n: int) -> tuple[float, float]:
    """The 95 % interval of a drop measured on `n` pairs, of which `lost` fell from right to wrong and `gained` rose.

    It has a width where the pairs all agree. Source: Bonett and Price, doi 10.3102/1076998611411915: Wald's interval
    with one pair added of each kind that differs.
    """
    before, after = (lost + 1) / (n + 2), (gained + 1) / (n + 2)
    drop = before - after
    half = NORMAL_95 * math.sqrt((before + after - drop**2) / (n + 2))
    return max(-1.0, drop - half), min(1.0, drop + half)


def ratio_interval(over: Sequence[float], under: Sequence[float]) -> tuple[float, float]:
    """The normal 95 % interval of a ratio of two sums over the same texts, such as bits and bytes; of two at least."""
    n, ratio = len(under), sum(over) / sum(under)
    squares = sum((bits - ratio * size) ** 2 for bits, size in zip(over, under, strict=True))
    half = NORMAL_95 * math.sqrt(squares * n / (n - 1)) / sum(under)
    return ratio - half, ratio + half


def paired_p_value(lost: int, gained: int) -> float:
    """The probability that models equally good differ at least as much as measured: McNemar's exact test, two-sided."""
    differing, fewer = lost + gained, min(lost, gained)
    tail = sum(math.comb(differing, k) for k in range(fewer + 1)) / 2**differing
    return min(1.0, 2 * tail)
