"""The rules that ask a model: classifier, perplexity, toxicity_classifier."""

import pytest

from tests.training.data.filter.pages import GOOD, FixedScore, judge, row
from training.contract.records import RecipeError
from training.data.filter.judge import make_rules
from training.data.filter.rule import KEPT
from training.data.filter.settings import FilterRecipe
from training.data.quality.quality import BucketedNgrams, QualityModels


@pytest.mark.parametrize(
    ("score", "perplexity", "limit", "reason", "bucket"),
    [
        (0.9, 100.0, None, KEPT, "head"),
        (0.9, 300.0, 500.0, KEPT, "middle"),
        (0.9, 9000.0, None, KEPT, "tail"),
        (0.9, 9000.0, 500.0, "perplexity:too_high", "tail"),
        (0.1, 100.0, None, "classifier:low_score", None),
    ],
)
def test_scores_are_kept_and_judged_by_the_recipes_limits(score, perplexity, limit, reason, bucket):
    ngrams = {"": BucketedNgrams(ngram=FixedScore(perplexity), bucket_limits=(200.0, 400.0))}
    models = QualityModels(ngrams=ngrams, classifier=FixedScore(score))
    recipe = FilterRecipe(rules=("classifier", "perplexity"), min_quality_score=0.2, max_perplexity=limit)
    page, found = judge(row(GOOD), make_rules(recipe, models))
    assert found == reason
    assert page.columns["quality_score"] == score and page.columns.get("perplexity_bucket") == bucket


def test_toxicity_is_scored_by_a_model_of_its_own_or_refused():
    recipe = FilterRecipe(rules=("toxicity_classifier",), max_toxicity_score=0.5)
    for score, reason in ((0.4, KEPT), (0.6, "toxicity_classifier:too_high")):
        models = QualityModels(ngrams={}, classifier=None, toxicity=FixedScore(score))
        page, found = judge(row(GOOD), make_rules(recipe, models))
        assert found == reason and page.columns["toxicity_score"] == score
    for without in (None, QualityModels(ngrams={}, classifier=FixedScore(0.9))):
        with pytest.raises(RecipeError, match=r"toxicity_classifier.*quality\.toxicity\.positive is empty"):
            make_rules(recipe, without)
    with pytest.raises(RecipeError, match=r"quality\.reference is empty"):
        make_rules(FilterRecipe(rules=("classifier",)), models)
