import pytest

from tests.training.data.filter.pages import ALL
from training.data.filter.settings import FilterRecipe
from training.records import RecipeError


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"rules": ("url", "url")}, "at most once"),
        ({"blocked_domains": ("a.example",)}, "without effect"),
        ({"languages": ("en", "jp")}, "filter.languages: 'jp' is not one of the 176"),
        ({"personal_data": ("name",)}, "'name' is not one of"),
        ({"min_kept_fraction": 0.9, "max_kept_fraction": 0.1}, "min_kept_fraction=0.9"),
    ],
)
def test_a_recipe_that_cannot_be_meant_is_refused(fields, message):
    with pytest.raises(RecipeError, match=message):
        FilterRecipe(**fields)


def test_a_changed_limit_measures_nothing_again_and_a_changed_text_does():
    recipe = FilterRecipe(rules=ALL)
    other = FilterRecipe(rules=ALL, gopher_min_words=5, min_language_score=0.1, blocked_domains=("a.example",))
    assert other.measured() == recipe.measured()
    for changed in (
        {"c4_drop_policy_lines": False},
        {"c4_strip_lines": False},
        {"c4_drop_citations": False},
        {"c4_drop_lorem_ipsum": False},
        {"languages": ("en", "de")},
        {"personal_data": ("email",)},
    ):
        assert FilterRecipe(rules=ALL, **changed).measured() != recipe.measured()
    assert FilterRecipe(rules=ALL[1:]).measured() == recipe.measured()  # `url` measures nothing
