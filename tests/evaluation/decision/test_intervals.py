"""Intervals against scipy's and against what they promise, counted over every outcome that there is."""

from __future__ import annotations

import math

import numpy as np
import pytest

from evaluation.decision.intervals import in_percent, paired_interval, paired_p_value, ratio_interval, share_interval


@pytest.mark.parametrize(("right", "n"), [(0, 64), (64, 64), (1, 64), (32, 64), (0, 1), (7, 1000)])
def test_the_interval_of_a_share_is_wilsons(right, n):
    from scipy.stats import binomtest  # takes 2 s, and every process of the tests imports this module

    expected = binomtest(right, n).proportion_ci(method="wilson")
    assert share_interval(right / n, n) == pytest.approx((expected.low, expected.high), abs=1e-7)


def test_none_of_64_is_not_certainly_none():
    assert in_percent(0.0, 64) == "0.0 (0.0 to 5.7)" and in_percent(1.0, 64) == "100.0 (94.3 to 100.0)"
    assert in_percent(None, 0) == "–"


@pytest.mark.parametrize("differing", [(0.0, 0.0), (0.02, 0.02), (0.3, 0.1), (0.0, 0.1), (0.5, 0.5)])
def test_the_interval_of_a_drop_holds_what_it_promises(differing):
    lost_rate, gained_rate = differing
    n, held = 25, 0.0
    for lost in range(n + 1):
        for gained in range(n + 1 - lost):
            low, high = paired_interval([1.0] * lost + [-1.0] * gained + [0.0] * (n - lost - gained))
            ways = math.factorial(n) / math.factorial(lost) / math.factorial(gained) / math.factorial(n - lost - gained)
            same = (1 - lost_rate - gained_rate) ** (n - lost - gained)
            held += (low <= lost_rate - gained_rate <= high) * ways * lost_rate**lost * gained_rate**gained * same
    assert held > 0.94


@pytest.mark.parametrize("drop", [0.0, 0.05, 0.4])
def test_the_interval_of_a_drop_of_partly_right_answers_holds_it_and_is_no_wider_than_they_vary(drop):
    rng = np.random.default_rng(1)
    intervals = [paired_interval(rng.normal(drop, 0.1, 60).clip(-1, 1).tolist()) for _ in range(500)]
    assert np.mean([low <= drop <= high for low, high in intervals]) > 0.94
    right_or_wrong = paired_interval([1.0] * round(60 * drop) + [0.0] * round(60 * (1 - drop)))
    assert drop == 0 or max(high - low for low, high in intervals) < right_or_wrong[1] - right_or_wrong[0]


@pytest.mark.parametrize(("lost", "gained"), [(0, 0), (1, 0), (8, 1), (5, 5), (900, 1100)])
def test_the_p_value_is_that_of_the_exact_test(lost, gained):
    from scipy.stats import binomtest

    exact = binomtest(lost, lost + gained).pvalue if lost + gained else 1.0
    assert paired_p_value(lost, gained) == pytest.approx(exact)


def test_the_interval_of_a_ratio_holds_the_true_one_in_95_of_100_draws():
    rng = np.random.default_rng(0)
    held = 0
    for _ in range(1000):
        sizes = rng.integers(50, 400, 60)
        bits = sizes * rng.normal(1.5, 0.4, 60)
        low, high = ratio_interval(bits.tolist(), sizes.tolist())
        held += low <= 1.5 <= high
    assert 920 <= held <= 970
