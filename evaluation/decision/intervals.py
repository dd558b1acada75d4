"""95 % intervals of shares, means, paired differences and ratios, and McNemar's test of paired answers.

The intervals of shares also hold for 0 and for all of n items. This module uses the standard library alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist

NORMAL_95 = 1.959964  # standard errors on each side of the mean that enclose 95 % of a normal distribution


def square(x: float) -> float:
    """Return x · x. Python computes `x**2` by the C library's `pow`, whose last bit depends on the machine."""
    return x * x


def normal_for(intervals: int) -> float:
    """Return the standard errors on each side with which so many intervals hold all at once, in 95 % (Bonferroni)."""
    return NORMAL_95 if intervals < 2 else round(NormalDist().inv_cdf(1 - 0.025 / intervals), 6)


def share_interval(share: float, n: int, *, normal: float = NORMAL_95) -> tuple[float, float]:
    """Return Wilson's 95 % interval of a share of `n` items; for 0 of 64 items it is 0 to 0.057.

    `normal` are the standard errors on each side, for another interval than that of 95 %.

    `share` may also be the mean of values between 0 and 1. Such values vary at most as much as right and wrong answers
    with the same mean, so the interval may be too wide but is never too narrow. Source: Wilson 1927, doi
    10.1080/01621459.1927.10502953.
    """
    squared = square(normal) / n
    middle = share + squared / 2
    half = math.sqrt(squared * (share * (1 - share) + squared / 4))
    return max(0.0, (middle - half) / (1 + squared)), min(1.0, (middle + half) / (1 + squared))


def in_percent(share: float | None, n: int) -> str:
    """Return a share in percent with its 95 % interval, such as `0.0 (0.0 to 5.7)`; a dash for None."""
    if share is None:
        return "–"
    low, high = share_interval(share, n)
    return f"{100 * share:.1f} ({100 * low:.1f} to {100 * high:.1f})"


def paired_interval(drops: Sequence[float]) -> tuple[float, float]:
    """Return the 95 % interval of a mean drop, from the drop of each pair of answers, which is from -1 to 1.

    For right and wrong answers it is that of Bonett and Price, doi 10.3102/1076998611411915: Wald's interval after
    adding one lost and one gained pair, which has a width even if all pairs agree.
    """
    n, lost = len(drops) + 2, math.fsum(max(drop, 0) for drop in drops)
    before, after = (lost + 1) / n, (lost - math.fsum(drops) + 1) / n
    partly = math.fsum(abs(drop) - square(drop) for drop in drops) / n  # 0 for right and wrong answers
    drop = before - after
    half = NORMAL_95 * math.sqrt((before + after - partly - square(drop)) / n)
    return max(-1.0, drop - half), min(1.0, drop + half)


# Student's t for a two-sided 95 % interval, by degrees of freedom from 1 on; beyond 30 the last is a little too wide.
STUDENT_95 = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131),
    *(2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)


def mean_interval(values: Sequence[float]) -> list[float] | None:
    """Return Student's 95 % interval of the mean of some values, such as scores by seed; None for fewer than two."""
    if len(values) < 2:
        return None
    mean, half = math.fsum(values) / len(values), _student(len(values) - 1) * math.sqrt(_squared_error(values))
    return [mean - half, mean + half]


def mean_difference_interval(before: Sequence[float], after: Sequence[float]) -> list[float] | None:
    """Return Welch's 95 % interval of mean(after) - mean(before); None if both have fewer than two values.

    A group with one value counts as if it varied as much as the other group. If no value varies, the interval has
    no width.
    """
    if max(len(before), len(after)) < 2:
        return None
    errors = [_squared_error(values) if len(values) > 1 else None for values in (before, after)]
    freedom = [max(1, len(values) - 1) for values in (before, after)]
    sizes = (len(before), len(after))
    first, second = (
        error if error is not None else (errors[1 - number] or 0.0) * sizes[1 - number]
        for number, error in enumerate(errors)
    )
    difference = math.fsum(after) / len(after) - math.fsum(before) / len(before)
    if first + second == 0:
        return [difference, difference]
    if None in errors:
        degrees = float(max(freedom))
    else:
        degrees = square(first + second) / (square(first) / freedom[0] + square(second) / freedom[1])
    half = _student(int(degrees)) * math.sqrt(first + second)
    return [difference - half, difference + half]


def _squared_error(values: Sequence[float]) -> float:
    """Return the squared standard error of the mean."""
    mean = math.fsum(values) / len(values)
    return math.fsum(square(value - mean) for value in values) / (len(values) - 1) / len(values)


def _student(degrees: int) -> float:
    return STUDENT_95[min(max(degrees, 1), len(STUDENT_95)) - 1]


def ratio_interval(over: Sequence[float], under: Sequence[float]) -> tuple[float, float]:
    """Return the normal 95 % interval of sum(over) / sum(under), such as bits per byte over the same texts.

    At least two texts are needed.
    """
    n, ratio = len(under), sum(over) / sum(under)
    squares = sum(square(bits - ratio * size) for bits, size in zip(over, under, strict=True))
    half = NORMAL_95 * math.sqrt(squares * n / (n - 1)) / sum(under)
    return ratio - half, ratio + half


def paired_p_value(lost: int, gained: int) -> float:
    """Return the two-sided p-value of McNemar's exact test: how probable such a difference is between equal models."""
    differing, fewer = lost + gained, min(lost, gained)
    tail = sum(math.comb(differing, k) for k in range(fewer + 1)) / 2**differing
    return min(1.0, 2 * tail)
