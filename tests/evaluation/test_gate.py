"""The decision to promote, as a table."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from evaluation.gate import Champion, Evidence, decide, read_champion
from evaluation.stages import STAGES
from tests.evaluation.conftest import commit, make_job
from training.artifact import find
from training.job import RefusedInput
from training.recipe import PromoteRecipe
from training.runner import run_job

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


def chain(root: Path, *, aligned_seen: str = "", clean: bool = True) -> tuple:
    """Scores, contamination report and card of one model; `aligned_seen` is the digest that the scores are of."""
    (root / "aligned").mkdir(parents=True)
    (root / "aligned" / "weights").write_text("w")
    model = commit(root / "aligned", "aligned_model")
    seen = replace(model, digest=aligned_seen or model.digest)
    (root / "scores").mkdir()
    entry = {"score": 0.7, "stderr": 0.03, "n": 200, "chance": 0.25}
    (root / "scores" / "scores.json").write_text(json.dumps({"aligned": {"cloze": entry}}))
    scores = commit(root / "scores", "model_scores", inputs=(seen,))
    (root / "report").mkdir()
    verdict = {"name": "contamination", "passed": clean, "evidence": {"findings": []}}
    report = commit(root / "report", "contamination_report", inputs=(scores,), gates=(verdict,))
    (root / "card").mkdir()
    card = commit(root / "card", "model_card", inputs=(model,))
    return scores, report, card, model


def promote(root: Path, inputs: tuple, **settings: object) -> dict:
    job = make_job("promote", "promoted_model", root / "promoted", {"promote": {"model_name": "m"}, **settings}, inputs)
    assert run_job(job, STAGES) == 0
    record = find(root / "promoted").record
    decision = json.loads((root / "promoted" / "decision.json").read_text())
    gate = next(gate for gate in record["gates"] if gate["name"] == "promotion")
    assert gate["passed"] == decision["promoted"]
    return decision


def test_a_model_is_promoted_from_its_artifacts(tmp_path):
    inputs = chain(tmp_path)
    decision = promote(tmp_path, inputs, champion={"version": "7", "scores": {"cloze": 0.72}})
    assert decision["promoted"] and decision["scores"] == {"cloze": 0.7}
    assert decision["model"]["digest"] == inputs[3].digest and decision["champion"]["version"] == "7"


def test_scores_of_another_model_promote_nothing(tmp_path):
    decision = promote(tmp_path, chain(tmp_path, aligned_seen="0" * 64))
    assert not decision["promoted"]
    assert [check["name"] for check in decision["checks"] if not check["passed"]] == ["same_digests"]


def test_a_report_whose_gate_refused_is_not_even_read(tmp_path):
    with pytest.raises(RefusedInput, match="contamination"):
        promote(tmp_path, chain(tmp_path, clean=False))
