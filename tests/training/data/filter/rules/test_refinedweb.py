import pytest

from tests.training.data.filter.pages import GOOD, judge, reason_of, row
from training.data.filter.judge import make_rules
from training.data.filter.rule import KEPT
from training.data.filter.rules.refinedweb import refinedweb_lines
from training.data.filter.settings import FilterRecipe


def test_refinedweb_takes_lines_and_phrases_out_and_leaves_the_rest():
    text = GOOD + "\nBREAKING NEWS\n3 likes\nThe whole story is here. Read more...\nSign in to comment\n\nBye"
    loose = FilterRecipe(rules=("refinedweb",), refinedweb_max_removed_words=0.2)
    page, reason = judge(row(text), make_rules(loose, None))
    assert reason == KEPT
    assert page.text == GOOD + "\nThe whole story is here. \n to comment\n"
    words = len(text.split())
    assert page.columns["refinedweb.removed_words"] == (2 + 2 + 2 + 2 + 1) / words
    assert reason_of(text, FilterRecipe(rules=("refinedweb",))) == "refinedweb:too_many_removed_words"


@pytest.mark.parametrize(
    ("line", "goes"),
    [
        ("NASA 2024", False),  # 4 of 9 characters
        ("NASA 24", True),  # 4 of 7
        ("  OPEN NOW  ", True),  # white space around a line is none of it
        ("A B C D", True),  # 4 of 7
        ("A B C d", False),  # 3 of 7
        ("OPEN: 24 h/7 d", False),  # 4 of 14, though 4 of 6 letters
    ],
)
def test_capitals_are_counted_among_all_characters_of_a_line(line, goes):
    text, _ = refinedweb_lines(f"{GOOD}\n{line}", max_uppercase=0.5, short_line_words=10)
    assert (text == GOOD) == goes
