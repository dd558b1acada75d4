"""The own exp and log: their errors, their limits, and the same bits compiled and as plain Python."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import mpmath
import numpy as np
import pytest

from training import elementary
from training.data.words.elementary import exp, log, logs, total_of

DRAWN = 5000


def arguments(name: str) -> list[float]:
    rng = random.Random(name)
    if name == "exp":
        wide, narrow = [rng.uniform(-708, 709) for _ in range(DRAWN)], [rng.uniform(-1, 1) for _ in range(DRAWN)]
        halves = [(number + 0.5) * math.log(2) + side for number in range(-1000, 1000) for side in (-1e-13, 0.0, 1e-13)]
        return wide + narrow + halves
    near_one = [1 + rng.uniform(-1, 1) * 2.0 ** -rng.randrange(1, 52) for _ in range(DRAWN)]
    return near_one + [math.ldexp(rng.uniform(0.5, 1), rng.randrange(-1020, 1024)) for _ in range(DRAWN)]


@pytest.mark.parametrize(
    ("own", "exact"), [(elementary.exp, mpmath.exp), (elementary.log, mpmath.log)], ids=["exp", "log"]
)
def test_errors_are_below_one_unit_in_the_last_place(own: Callable[[float], float], exact: Callable[..., mpmath.mpf]):
    with mpmath.workprec(120):
        for x in arguments(own.__name__):
            true = exact(mpmath.mpf(x))
            assert abs(own(x) - true) < math.ulp(float(true)), x


def test_compiled_functions_have_the_bits_of_plain_python():
    for compiled, plain in ((exp, elementary.exp), (log, elementary.log)):
        for x in arguments(plain.__name__)[::5]:
            assert compiled(x) == plain(x), x
    some = arguments("log")[::5]
    assert logs(np.array(some)).tolist() == [elementary.log(x) for x in some]
    assert total_of(np.array(some)[: DRAWN // 5]) == total_of.py_func(some[: DRAWN // 5])


@pytest.mark.parametrize("compiled", [False, True])
def test_limits(compiled):
    power, logarithm = (exp, log) if compiled else (elementary.exp, elementary.log)
    assert [power(x) for x in (0.0, -0.0, math.inf, -math.inf, 710.0, -746.0)] == [1, 1, math.inf, 0, math.inf, 0]
    assert power(709.782712893384) == pytest.approx(math.exp(709.782712893384), rel=1e-15)
    assert power(-745.1) == 5e-324
    assert [logarithm(x) for x in (1.0, 0.0, -0.0, math.inf)] == [0, -math.inf, -math.inf, math.inf]
    assert logarithm(5e-324) == pytest.approx(math.log(5e-324), rel=1e-15)
    assert all(math.isnan(value) for value in (power(math.nan), logarithm(math.nan), logarithm(-1.0)))
