"""The exponential function and the natural logarithm, with the same bits on every processor.

The exp and log of numpy and of the C library have several implementations, and the instructions of the processor decide
which one runs; their last bits differ. These here use only operations whose result IEEE 754 fixes to the bit: +, -, *
and / of doubles, and scaling by powers of two. The largest errors are below 1 unit in the last place
(tests/training/test_elementary.py).

The constants are Taylor coefficients. Stages that call a function for each document compile it (training.data.words.
elementary), which changes no bit.
"""

from __future__ import annotations

from math import floor, frexp, inf, ldexp, nan
from typing import Final

# ln 2 as a sum: a product of the first part with an integer below 2^20 is exact, because its last 21 bits are 0.
_LN2: Final = float.fromhex("0x1.62e42fee00000p-1")
_LN2_REST: Final = float.fromhex("0x1.a39ef35793c76p-33")
_PER_LN2: Final = float.fromhex("0x1.71547652b82fep+0")
_ROOT_OF_HALF: Final = float.fromhex("0x1.6a09e667f3bcdp-1")
_LARGEST: Final = float.fromhex("0x1.62e42fefa39efp+9")  # exp of the next larger double exceeds all doubles
_SMALLEST: Final = -745.2  # exp of smaller numbers rounds to 0


def exp(x: float) -> float:
    """Return e to the power of `x`: 0 if that is too small for a double, and infinity if it is too large."""
    if x != x:
        return x
    if x > _LARGEST:
        return inf
    if x < _SMALLEST:
        return 0.0
    # x = twos · ln 2 + high - low with |high| below 0.35; exp(high - low) is a Taylor series.
    twos = floor(x * _PER_LN2 + 0.5)
    high = x - twos * _LN2
    low = twos * _LN2_REST
    y = high - low
    series = 1 / 6227020800
    series = series * y + 1 / 479001600
    series = series * y + 1 / 39916800
    series = series * y + 1 / 3628800
    series = series * y + 1 / 362880
    series = series * y + 1 / 40320
    series = series * y + 1 / 5040
    series = series * y + 1 / 720
    series = series * y + 1 / 120
    series = series * y + 1 / 24
    series = series * y + 1 / 6
    series = series * y + 1 / 2
    return ldexp(1.0 + (high + (y * y * series - low)), twos)


def log(x: float) -> float:
    """Return the natural logarithm of `x`: minus infinity for 0, and NaN for negative numbers."""
    if x != x or x == inf:
        return x
    if x <= 0.0:
        return -inf if x == 0.0 else nan
    part, twos = frexp(x)
    if part < _ROOT_OF_HALF:
        part, twos = 2.0 * part, twos - 1
    # x = 2^twos · (1 + f); log(1 + f) = 2 · artanh(s) with s = f / (2 + f), which is f - f²/2 + s · (f²/2 + series).
    f = part - 1.0
    s = f / (2.0 + f)
    square = s * s
    series = 2 / 23
    series = series * square + 2 / 21
    series = series * square + 2 / 19
    series = series * square + 2 / 17
    series = series * square + 2 / 15
    series = series * square + 2 / 13
    series = series * square + 2 / 11
    series = series * square + 2 / 9
    series = series * square + 2 / 7
    series = series * square + 2 / 5
    series = series * square + 2 / 3
    half = 0.5 * f * f
    return twos * _LN2 + (f - (half - (s * (half + series * square) + twos * _LN2_REST)))
