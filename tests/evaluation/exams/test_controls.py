"""The controls answer from what the texts say, counted by hand."""

from __future__ import annotations

import pytest

from evaluation.exams.controls import controls_from
from evaluation.exams.items import ExamItem

TEXTS = ["The Belto bakes at 180 degrees. It rests.", "A Belto and 200 degrees, not 180. Bake at 180 degrees for long."]
WORDS = 8 + 13

# Of the choices "180 degrees" and "200 degrees": the n-gram's product, with 0.4 for every word of context that is left
# out; the longest run that ends with the choice, and how often it occurs; shared sentences and pages.
SCORES = {
    "ngram": [pytest.approx(1.0), pytest.approx(0.4**4 / WORDS * 0.4**3)],
    "overlap": [(6, 1), (2, 1)],
    "pairs": [(1, 2), (1, 1)],
}


@pytest.mark.parametrize("name", SCORES)
def test_a_control_scores_each_choice_by_its_count(name):
    item = ExamItem(
        id="belto",
        question="The Belto bakes at",
        choices=("180 degrees", "200 degrees"),
        gold=0,
        kind="fact",
        subjects=("Belto",),
    )
    assert controls_from(TEXTS)[name].scores(item) == SCORES[name]
