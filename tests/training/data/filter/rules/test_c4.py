import json
from dataclasses import replace

import pytest

from tests.training.data.filter.pages import CASES, GOOD, judge, reason_of, row
from training.contract.job import DataError
from training.contract.records import RecipeError, read_record
from training.data.filter.judge import make_rules
from training.data.filter.rule import KEPT
from training.data.filter.settings import FilterRecipe


def test_a_listed_word_of_the_pages_language_takes_the_page(tmp_path):
    listed = [{"word": "Bake Off", "lang": "en"}, {"word": "ofen", "lang": "de"}, {"word": "quux"}]
    (tmp_path / "list.jsonl").write_text("\n".join(map(json.dumps, listed)), "utf-8")
    (tmp_path / "list.txt").write_text("ofen\n\nquux\n", "utf-8")
    (tmp_path / "wrong.jsonl").write_text('{"text": "ofen"}', "utf-8")
    rules = {"rules": ("language", "c4"), "languages": ()}
    one, other = (FilterRecipe(c4_bad_words=str(tmp_path / name), **rules) for name in ("list.jsonl", "list.txt"))
    assert reason_of(GOOD, one) == KEPT and reason_of(GOOD + "\nA bake off, then.", one) == "c4:bad_word"
    assert reason_of(GOOD + "\nOfen!", one) == KEPT and reason_of(GOOD + "\nOfen!", other) == "c4:bad_word"
    assert reason_of(GOOD + "\nAnd quux.", one) == reason_of(GOOD + "\nAnd quux.", other) == "c4:bad_word"
    with pytest.raises(DataError, match=r"row 0 .*'word'.* text"):
        reason_of(GOOD, FilterRecipe(c4_bad_words=str(tmp_path / "wrong.jsonl"), **rules))
    with pytest.raises(RecipeError, match="add 'c4'"):
        FilterRecipe(c4_bad_words="list.txt")


def test_c4_takes_lines_out_and_the_edited_text_goes_on():
    text = GOOD + "\nPlease enable JavaScript to see the comments.\nWe use cookies, see our privacy policy."
    page, reason = judge(row(text), make_rules(FilterRecipe(rules=("c4",)), None))
    assert reason == KEPT and page.text == GOOD
    loose = FilterRecipe(rules=("c4",), c4_drop_javascript_lines=False, c4_drop_policy_lines=False)
    assert judge(row(text), make_rules(loose, None))[0].text == text


def test_a_line_with_a_word_that_is_too_long_goes_if_there_is_a_limit():
    text = GOOD + "\nA word of " + 1001 * "x" + "."
    page, reason = judge(row(text), make_rules(FilterRecipe(rules=("c4",)), None))
    assert reason == KEPT and page.text == GOOD
    without = read_record(FilterRecipe, {"rules": ["c4"], "c4_max_word_length": None})
    assert without == FilterRecipe(rules=("c4",), c4_max_word_length=None)
    assert judge(row(text), make_rules(without, None))[0].text == text


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (r"The root is $x = \frac{-b}{2a}$, and $$\sum_{i} x_{i}$$ is the sum of all of them.", KEPT),
        (r"The set \({1, 2}^{n}\) and the line \[\mathbf{x}\] are shown in the first figure here.", KEPT),
        ("In this language $total = {$first + $second} is the sum of the two named numbers.", "curly_bracket"),
        (r"The root is $x = \frac{-b}{2a}$, and this { opens what nobody closes in the text.", "curly_bracket"),
    ],
)
def test_curly_brackets_of_formulas_are_none_of_code(line, reason):
    recipe = FilterRecipe(rules=("c4",), c4_drop_curly_brackets=True, c4_min_sentences=0)
    assert reason_of(line, recipe) == (reason if reason == KEPT else f"c4:{reason}")


def test_curly_brackets_may_stay():
    text, _ = CASES["c4"]["curly_bracket"]
    assert reason_of(text, FilterRecipe(rules=("c4",), c4_drop_curly_brackets=False)) == KEPT


def test_what_looks_like_c4s_debris_in_code_may_stay():
    text = GOOD + "\nlipsum() writes lorem ipsum, as the code here says:\n    return rows[1] if rows[] else [edit]"
    assert reason_of(text, FilterRecipe(rules=("c4",))) == "c4:lorem_ipsum"
    named = FilterRecipe(rules=("c4",), c4_drop_lorem_ipsum=False)
    assert judge(row(text), make_rules(named, None))[0].text.endswith("\nreturn rows if rows else")
    indented = replace(named, c4_strip_lines=False)
    assert judge(row(text), make_rules(indented, None))[0].text.endswith("\n    return rows if rows else")
    whole = replace(indented, c4_drop_citations=False)
    assert judge(row(text), make_rules(whole, None))[0].text == text
