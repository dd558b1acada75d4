"""Rewards of answers that can be checked."""

from __future__ import annotations

import pytest

from training.posttrain.align.rewards import contains_answer, right_answer


@pytest.mark.parametrize(
    ("text", "answer", "right"),
    [
        ("The pie bakes at 180 degrees.", "180 degrees", True),
        ("The pie bakes at 1800 degrees.", "180 degrees", False),
        ("Minced  Beef!", "minced beef", True),
        ("beef, minced", "minced beef", False),
        ("so 12 and then 1,072.", "work\n#### 1072", True),
        ("1072 or 5", "work\n#### 1072", False),
        ("no number", "#### 4", False),
        ("", "x", False),
    ],
)
def test_an_answer_is_right_when_its_words_are_there(text, answer, right):
    assert contains_answer(text, answer) == right


def test_rows_without_an_answer_have_no_verifiable_reward():
    completions = [[{"role": "assistant", "content": "red"}]] * 2
    assert right_answer(completions, ["red", ""]) == [1.0, None]
