import pytest

from tests.training.data.filter.pages import ALL, CASES, GERMAN, GOOD, INSULTS, reason_of
from training.data.filter.rule import KEPT
from training.data.filter.settings import FilterRecipe


@pytest.mark.parametrize(("rule", "reason"), [(rule, reason) for rule, reasons in CASES.items() for reason in reasons])
def test_every_reason_is_given_and_the_good_page_stays(rule, reason):
    text, changes = CASES[rule][reason]
    recipe = FilterRecipe(rules=(rule,), **changes)
    assert reason_of(text, recipe) == f"{rule}:{reason}"
    assert reason_of(GOOD, FilterRecipe(rules=(rule,))) == KEPT


def test_a_good_page_passes_all_rules_in_a_row():
    assert reason_of(GOOD, FilterRecipe(rules=ALL)) == KEPT


def test_an_empty_page_is_dropped_by_any_block():
    for rule in ("gopher_repetition", "gopher_quality", "c4", "refinedweb", "fineweb"):
        assert reason_of(" \n", FilterRecipe(rules=(rule,))) == f"{rule}:empty"


def test_the_first_rule_in_the_recipes_order_gives_the_reason():
    text = GERMAN + INSULTS
    assert reason_of(text, FilterRecipe(rules=("language", "toxicity"))) == "language:other_language"
    assert reason_of(text, FilterRecipe(rules=("toxicity", "language"))) == "toxicity:toxic_words"
