"""The answers of `pedigree trace` as lines."""

from __future__ import annotations

from assets.answers.trace.lines import lines_of, seen_in_training


def test_one_is_no_plural():
    assert seen_in_training({"documents": 1, "times": 1, "tokens": 1234}) == "1 page, 1 time, 1,234 tokens"
    assert seen_in_training({"documents": 2, "times": 0, "tokens": 0}) == "2 pages, 0 times, 0 tokens"


def test_a_step_after_an_early_end_is_not_said_to_come_after_a_kept_one():
    told = {"model": "m", "question": "step", "training": "base_model", "step": 9, "steps": 40, "rows": 2}
    told |= {"sequence_length": 8, "documents": [], "trained": False, "skipped": ["later"]}
    assert "This step comes after the last step that trained the model and did not change" in " ".join(lines_of(told))
