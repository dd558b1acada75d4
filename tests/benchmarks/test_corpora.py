"""What one model has over another on the same texts, with an interval over the texts."""

from __future__ import annotations

import pytest

from benchmarks.corpora import added


def test_the_difference_weighs_bytes_and_its_interval_holds_it():
    first, last, sizes = [10.0, 40.0], [12.0, 40.0], [10, 30]
    low, middle, high = added(first, last, sizes, resamples=500)
    assert middle == pytest.approx(2 / 40)
    # Either text alone: all of one or all of the other.
    assert (low, high) == (pytest.approx(0.0), pytest.approx(0.2))


def test_the_same_loss_on_every_text_leaves_no_doubt():
    assert added([1.0, 2.0, 3.0], [2.0, 4.0, 6.0], [1, 2, 3], resamples=50) == (1.0, 1.0, 1.0)
