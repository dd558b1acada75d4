from dataclasses import replace

import pytest

from tests.examples import load_recipe
from tests.training.data.filter.pages import ALL
from training.contract.records import RecipeError
from training.data.filter.decide import broken_limit
from training.data.filter.language_limits import published_limits
from training.data.filter.rule import page_of
from training.data.filter.settings import KINDS, LIMITS, FilterRecipe
from training.data.words.languages import LANGUAGES


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


def test_a_limit_by_language_that_has_no_effect_is_refused():
    for by_language, message in (
        ({"de": {"gopher_min_word": 5}}, "filter.by_language.de.gopher_min_word: not a limit of a rule; limits are"),
        ({"de": {"c4_strip_lines": False}}, "filter.by_language.de.c4_strip_lines: not a limit"),
        ({"de": {"gopher_min_words": "few"}}, "filter.by_language.de.gopher_min_words: expected int, got 'few'"),
        ({"fr": {"gopher_min_words": 5}}, "filter.by_language.fr: without effect; add 'fr' to filter.languages"),
        ({"jp": {"gopher_min_words": 5}}, "filter.by_language: 'jp' is not one of the 176"),
    ):
        with pytest.raises(RecipeError, match=message):
            FilterRecipe(rules=ALL, languages=("en", "de"), by_language=by_language)


def test_a_language_has_its_own_limits_then_the_recipes_then_the_published_ones():
    recipe = FilterRecipe(
        rules=ALL,
        languages=(),
        fineweb_max_newline_ratio=0.6,
        gopher_max_top_ngrams=(0.3,),
        by_language={"de": {"gopher_max_top_ngrams": [0.4]}},
    )
    german, french, english = (recipe.for_pages(code) for code in ("de", "fr", "en"))
    assert english == replace(recipe, by_language={})
    assert [one.gopher_max_top_ngrams for one in (german, french)] == [(0.4,), (0.3,)]
    assert [one.fineweb_max_newline_ratio for one in (german, french)] == [0.6, 0.6]
    assert [one.gopher_max_mean_word_length for one in (german, french, english)] == [15, 11, 10]
    without = replace(recipe, language_limits="none")
    assert without.for_pages("fr") == replace(without, by_language={})
    assert recipe.measured() == FilterRecipe(rules=ALL, languages=()).measured()


def test_a_limit_by_kind_goes_before_that_of_the_language_and_must_have_an_effect():
    recipe = FilterRecipe(
        rules=ALL,
        languages=("en", "de"),
        by_language={"de": {"gopher_min_words": 9, "gopher_max_bullet_fraction": 0.5}},
        by_kind={"list": {"gopher_max_bullet_fraction": 0.0}},
    )
    found = [recipe.for_pages(*pages) for pages in (("de", "list"), ("de", "code"), ("en", "list"), ("en", ""))]
    assert [one.gopher_min_words for one in found] == [9, 9, 50, 50]
    assert [one.gopher_max_bullet_fraction for one in found] == [0.0, 0.5, 0.0, 0.9]
    assert recipe.measured() == FilterRecipe(rules=ALL, languages=("en", "de")).measured()
    pages = [page_of({"text": "", "url": "", "language": "de", "language_score": 1.0, "kind": kind}) for kind in KINDS]
    broken = [broken_limit(recipe, page, "gopher_quality:too_many_bullets") for page in pages]
    assert [limit and limit.most for limit in broken] == [0.5, 0.5, 0.5, None]  # 0 switches a limit off
    for by_kind, message in (
        ({"menu": {}}, "filter.by_kind: 'menu' is not one of 'prose', 'code', 'table', 'list'"),
        ({"code": {"c4_strip_lines": False}}, "filter.by_kind.code.c4_strip_lines: not a limit"),
        ({"code": {"gopher_min_words": "few"}}, "filter.by_kind.code.gopher_min_words: expected int, got 'few'"),
    ):
        with pytest.raises(RecipeError, match=message):
            FilterRecipe(rules=ALL, by_kind=by_kind)
    shipped = load_recipe("webdocs")
    with pytest.raises(RecipeError, match=r"filter\.by_kind: without effect"):
        replace(shipped, extract=replace(shipped.extract, extractor="resiliparse"))


def test_every_published_limit_is_one_that_a_recipe_can_have():
    published = published_limits()
    assert len(published) == 30 and published.keys() <= LANGUAGES
    for code in published:
        assert published[code].keys() <= LIMITS
        blocks = {code: {name: value for name, value in published[code].items() if not name.endswith("_length")}}
        FilterRecipe(rules=ALL, languages=(code,), by_language=blocks)


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
