"""The decision to promote, as a table."""

from __future__ import annotations

from dataclasses import replace

import pytest

from evaluation.gate import Champion, Evidence, decide, read_champion
from training.recipe import PromoteRecipe

RECIPE = PromoteRecipe(model_name="m", min_scores={"cloze": 0.6}, max_score_drop=0.05)
GOOD = Evidence(
    aligned_digest="a",
    scored_digest="a",
    scores_digest="s",
    contamination_scores_digest="s",
    card_aligned_digest="a",
    scores={"cloze": {"score": 0.7, "stderr": 0.03, "n": 200}, "chat": {"score": 0.5, "stderr": 0.03, "n": 200}},
    contamination={"passed": True, "evidence": {}},
)
LEAK = {"passed": False, "evidence": {"findings": [{"benchmark": "cloze", "item": "c1", "url": "http://x.test/"}]}}


@pytest.mark.parametrize(
    ("recipe", "evidence", "champion", "failed"),
    [
        (RECIPE, GOOD, Champion(), []),
        (RECIPE, GOOD, Champion(version="1", scores={"cloze": 0.75, "chat": 0.55}), []),
        (RECIPE, GOOD, Champion(version="1", scores={"cloze": 0.751, "chat": 0.4}), ["drop_cloze"]),
        (RECIPE, GOOD, Champion(version="1", scores={"trivia": 0.1}), ["drop_trivia"]),
        (replace(RECIPE, min_scores={"cloze": 0.71}), GOOD, Champion(), ["score_cloze"]),
        (replace(RECIPE, min_scores={"clozze": 0.1}), GOOD, Champion(), ["score_clozze"]),
        (RECIPE, replace(GOOD, contamination=LEAK), Champion(), ["contamination"]),
        (replace(RECIPE, require_clean=False), replace(GOOD, contamination=LEAK), Champion(), []),
        (RECIPE, replace(GOOD, scored_digest="older"), Champion(), ["same_digests"]),
        (RECIPE, replace(GOOD, contamination_scores_digest=None), Champion(), ["same_digests"]),
        (RECIPE, replace(GOOD, card_aligned_digest="older"), Champion(), ["same_digests"]),
    ],
)
def test_the_champion_moves_only_when_every_condition_holds(recipe, evidence, champion, failed):
    assert [check.name for check in decide(recipe, evidence, champion) if not check.passed] == failed


def test_a_refusal_carries_the_numbers_and_the_leak():
    checks = decide(RECIPE, replace(GOOD, contamination=LEAK), Champion(version="3", scores={"chat": 0.9}))
    failed = {check.name: check.detail for check in checks if not check.passed}
    assert failed["contamination"]["findings"][0]["url"] == "http://x.test/"
    assert failed["drop_chat"] == {"suite": "chat", "champion": 0.9, "score": 0.5, "drop": 0.4, "most": 0.05}


def test_no_champion_is_not_a_champion_with_no_scores():
    assert read_champion({}) == Champion(version=None)
    assert read_champion({"version": 4, "scores": {"cloze": 1}}) == Champion(version="4", scores={"cloze": 1.0})
