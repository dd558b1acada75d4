"""The answers of `pedigree trace` as lines."""

from __future__ import annotations

from assets.answers.trace.lines import seen_in_training


def test_one_is_no_plural():
    assert seen_in_training({"documents": 1, "times": 1, "tokens": 1234}) == "1 page, 1 time, 1,234 tokens"
    assert seen_in_training({"documents": 2, "times": 0, "tokens": 0}) == "2 pages, 0 times, 0 tokens"
