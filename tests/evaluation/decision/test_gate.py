"""The decision to promote, as a table."""

from __future__ import annotations

import json
import math
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from evaluation.decision.gate import Champion, Evidence, decide, read_champion
from evaluation.decision.paired import Answers, by_item, paired
from evaluation.stages import STAGES
from tests.evaluation.conftest import commit, make_job
from training.contract.artifact import commit_record, find
from training.contract.job import RefusedInput
from training.contract.running.runner import run_job
from training.data.documents import write_lines
from training.recipe.settings.promote import PromoteRecipe

RECIPE = PromoteRecipe(model_name="m", min_scores={"cloze": 0.6}, max_score_drop=0.05)
SIGNS = "".join(map(chr, range(200, 300)))
AT_CHANCE = PromoteRecipe(model_name="m")


def answers(correct: str, *, items: str = "", metric: str = "acc") -> Answers:
    """Of `correct` each character is an item: + was right. `items` names them in place of their numbers."""
    ids = items or [str(number) for number in range(len(correct))]
    keys = [(item, f"the answer to {item}", (), 0) for item in ids]
    return Answers(metric=metric, correct={key: sign == "+" for key, sign in zip(keys, correct, strict=True)})


GOOD = Evidence(
    asset="aligned_model",
    model_digest="a",
    scored_digest="a",
    scores_digest="s",
    contamination_scores_digest="s",
    card_model_digest="a",
    scores={"cloze": {"score": 0.7, "n": 400, "chance": 0.25}, "chat": {"score": 0.5, "n": 400, "chance": 0.0}},
    contamination={"passed": True, "evidence": {}},
    answers={"cloze": answers("+" * 280 + "-" * 120), "chat": answers("+-" * 200)},
)
BETTER = {"cloze": answers("+" * 284 + "-" * 116), "chat": answers("+-" * 198 + "+" * 4)}
MUCH_BETTER = {"cloze": answers("+" * 300 + "-" * 100), "chat": answers("-" * 400)}
SOME = {"cloze": answers("+" * 20)}  # of the items, as the champion of a shorter exam answered them
MORE = {"cloze": answers("-" * 401)}  # an item more than this model answered
BEST = Champion(version="3", digest="c", answers={"cloze": MUCH_BETTER["cloze"]})
LEAK = {"passed": False, "evidence": {"findings": [{"benchmark": "cloze", "item": "c1", "url": "http://x.test/"}]}}


@pytest.mark.parametrize(
    ("recipe", "evidence", "champion", "failed"),
    [
        (RECIPE, GOOD, Champion(), []),
        (RECIPE, replace(GOOD, safety={"passed": True}, asked_digest="a"), Champion(), []),
        (RECIPE, replace(GOOD, safety={"passed": False}, asked_digest="a"), Champion(), ["safety"]),
        (RECIPE, replace(GOOD, safety={"passed": True}, asked_digest="b"), Champion(), ["same_digests"]),
        (RECIPE, GOOD, Champion(version="1", digest="b", answers=BETTER), []),
        (RECIPE, GOOD, Champion(version="1", digest="b", answers=MUCH_BETTER), ["drop_cloze"]),
        (RECIPE, GOOD, Champion(version="4", digest="b", answers=BETTER, best=[BEST]), ["drop_cloze_from_version_3"]),
        (RECIPE, GOOD, Champion(version="4", digest="b", answers=BETTER, best=[replace(BEST, digest="a")]), []),
        (
            RECIPE,
            GOOD,
            Champion(version="4", digest="b", answers=BETTER, best=[Champion(problem="gone")]),
            ["champion"],
        ),
        (RECIPE, GOOD, Champion(version="1", digest="b", answers=SOME), ["drop_cloze"]),
        (RECIPE, GOOD, Champion(version="1", digest="b", answers=MORE), ["drop_cloze"]),
        (RECIPE, GOOD, Champion(version="1", digest="b", answers={"trivia": answers("-")}), ["drop_trivia"]),
        (RECIPE, GOOD, Champion(version="1", digest="b", answers={"chat": answers("+", items="x")}), ["drop_chat"]),
        (RECIPE, GOOD, Champion(version="1", digest="b", answers={"chat": answers("-", metric="f1")}), ["drop_chat"]),
        (RECIPE, GOOD, Champion(version="1", digest="b", answers={"chat": answers("")}), ["drop_chat"]),
        (RECIPE, GOOD, Champion(version="1", digest="b", answers={}), ["champion"]),
        (RECIPE, GOOD, Champion(version="1", digest="b", problem="it lies elsewhere"), ["champion"]),
        (RECIPE, GOOD, Champion(version="1", digest="a", problem="it lies elsewhere"), []),
        (replace(RECIPE, max_score_drop=1.0), GOOD, Champion(version="1", digest="b", answers=MUCH_BETTER), []),
        (
            replace(RECIPE, max_score_drop=0.0),  # it is no better
            GOOD,
            Champion(version="1", digest="b", answers=GOOD.answers),
            ["drop_chat", "drop_cloze"],
        ),
        (replace(RECIPE, min_scores={"cloze": 0.7}), GOOD, Champion(), []),  # as much as is asked for
        (replace(RECIPE, min_scores={"cloze": 0.71}), GOOD, Champion(), ["score_cloze"]),
        (replace(RECIPE, min_scores={"clozze": 0.1}), GOOD, Champion(), ["score_clozze"]),
        (RECIPE, replace(GOOD, contamination=LEAK), Champion(), ["contamination"]),
        (RECIPE, replace(GOOD, scored_digest="older"), Champion(), ["same_digests"]),
        (RECIPE, replace(GOOD, contamination_scores_digest=None), Champion(), ["same_digests"]),
        (RECIPE, replace(GOOD, card_model_digest="older"), Champion(), ["same_digests"]),
    ],
)
def test_the_champion_moves_only_when_every_condition_holds(recipe, evidence, champion, failed):
    assert [check.name for check in decide(recipe, evidence, champion) if not check.passed] == failed


def at(share: float, *, n: int = 64, chance: float = 0.25, rights: str = "") -> Evidence:
    """The evidence of a model with one score; `rights` are the right answers of the items, a character each."""
    kept = {(str(item), right, (), 0): True for item, right in enumerate(rights)}
    entry = {"score": share, "n": n, "chance": chance}
    return replace(GOOD, scores={"mine": entry}, answers={"mine": Answers(metric="acc", correct=kept)})


@pytest.mark.parametrize(
    ("evidence", "rule", "passed"),
    [
        (at(0.1, n=10), "required", False),  # one of ten
        (at(0.25, n=10_000), "required", False),
        (at(21 / 64), "required", False),
        (at(25 / 64), "required", True),
        (at(0.0, chance=0.0), "required", False),  # nothing is not above nothing
        (at(0.01, n=100, chance=0.0, rights=SIGNS), "required", False),  # one answer may always be right
        (at(0.06, n=100, chance=0.0, rights=SIGNS), "required", True),
        (at(0.62, n=100, chance=0.5, rights="y" * 62 + "n" * 38), "required", False),  # it always says yes
        (at(0.75, n=100, chance=0.5, rights="y" * 62 + "n" * 38), "required", True),
        (replace(GOOD, scores={f"s{number}": {"score": 25 / 64, "n": 64, "chance": 0.25} for number in range(9)}),
         "required", False),  # one of nine suites is as far above by luck
        (at(0.1, n=10), "not_required", True),
        (at(0.1, n=10), "if_scored", False),
        (replace(GOOD, scores={}), "if_scored", True),
        (replace(GOOD, scores={}), "required", False),
    ],
)  # fmt: skip
def test_a_model_that_is_not_above_chance_is_no_champion(evidence, rule, passed):
    checks = decide(replace(AT_CHANCE, above_chance=rule), evidence, Champion())
    (check,) = [check for check in checks if check.name == "above_chance"]
    assert check.passed is passed and all(one.passed for one in checks if one is not check)
    assert check.reason.startswith("above chance on") == (passed and rule == "required")
    way_out = "pedigree promote RECIPE" if evidence.scores else "evaluation.suites"
    assert (way_out in check.detail.get("way_out", "")) is not passed


def test_a_score_by_which_a_model_was_chosen_counts_less_and_each_condition_on_it_says_so():
    """25 of 64 is above chance for a model that nobody chose, and by luck the best of nine may answer as many."""
    recipe, chosen = replace(AT_CHANCE, min_scores={"mine": 0.3}), {"chosen_on": "mine", "candidates": 9}
    before = Champion(version="1", digest="b", answers={"mine": answers("+-" * 32)})
    for share, passed in ((25 / 64, False), (40 / 64, True)):
        evidence = replace(at(share), **chosen, answers={"mine": answers("+-" * 32)})
        checks = {check.name: check for check in decide(recipe, evidence, before)}
        assert checks["above_chance"].passed is passed
        for name in ("score_mine", "drop_mine", *(["above_chance"] if passed else [])):
            assert "mine (by which the model was chosen among 9, so its score there is too high" in checks[name].reason
    other = replace(at(40 / 64), chosen_on="cloze", candidates=9)
    assert not any("was chosen" in check.reason for check in decide(recipe, other, Champion()))


def test_ten_promotions_cannot_halve_a_champion():
    """From 240 to 120 of 256 in ten steps of 12 items, each with p = 0.0005 and below 5 %; and one item at a time."""
    sat = [Champion(version=str(lost), digest=str(lost), answers={"x": answers("+" * (240 - lost) + "-" * (16 + lost))})
           for lost in range(121)]  # fmt: skip
    for step in (1, 2, 4, 12):
        champion, best = sat[0], sat[0]
        for model in sat[::step]:
            evidence = replace(GOOD, model_digest=model.digest, answers=model.answers)
            line = replace(champion, best=[best] if best is not champion else [])
            if all(check.passed for check in decide(replace(AT_CHANCE), evidence, line) if "drop" in check.name):
                champion = model
        assert int(champion.version or 0) < 12, step
    (check,) = [one for one in decide(AT_CHANCE, replace(GOOD, answers=sat[12].answers), sat[0]) if "drop" in one.name]
    assert check.detail["p_value"] == pytest.approx(0.0005, abs=1e-4) and check.detail["drop"] < 0.05
    assert "on 256 items" in check.reason and "p = 0.00049" in check.reason and "interval 1.9 to 7.4" in check.reason


def test_a_refusal_carries_the_numbers_and_the_leak():
    champion = Champion(version="3", digest="b", answers={"chat": answers("+" * 360 + "-" * 40)})
    checks = decide(RECIPE, replace(GOOD, contamination=LEAK), champion)
    failed = {check.name: check.detail for check in checks if not check.passed}
    assert failed["contamination"]["findings"][0]["url"] == "http://x.test/"
    said = failed["drop_chat"]
    assert said.items() >= {"suite": "chat", "champion": 0.9, "score": 0.5, "drop": 0.4, "most": 0.05}.items()
    assert (said["items"], said["lost"], said["gained"]) == (400, 180, 20)
    assert said["reason"].endswith("which does not show that at most 5.0 are lost")
    (equal,) = [one for one in decide(RECIPE, GOOD, replace(champion, answers=GOOD.answers)) if one.name == "drop_chat"]
    assert equal.passed and equal.reason.endswith("which shows that at most 5.0 are lost")


def test_the_error_of_a_drop_is_that_of_the_differences_by_item():
    before, now = answers("+" * 8 + "-" * 2), answers("-" * 3 + "+" * 6 + "-")
    differences = [1, 1, 1, 0, 0, 0, 0, 0, -1, 0]
    drop = paired(before, now)
    assert drop.drop == pytest.approx(sum(differences) / 10)
    assert drop.stderr == pytest.approx(statistics.stdev(differences) / math.sqrt(10))
    low, high = drop.interval
    assert low < 0 < 0.2 < high
    assert drop.p_value == pytest.approx(2 * (1 + 4) / 2**4)
    assert paired(answers("+"), answers("+")).stderr is None
    low, high = paired(answers("+-"), answers("+-")).interval
    assert low < 0 < high  # that two items agree does not show that all do


def test_partly_right_answers_are_compared_by_how_much_they_are_right():
    before, now = [0.5, 1.0, 0.25, 0.0, 0.8], [0.75, 0.5, 0.25, 0.0, 0.3]
    items = answers("+" * 5).correct
    scored = (Answers(metric="own", correct=dict(zip(items, some, strict=True))) for some in (before, now))
    drop = paired(*scored)
    differences = [one - other for one, other in zip(before, now, strict=True)]
    assert (drop.champion, drop.score, drop.lost, drop.gained) == (0.51, 0.36, 2, 1)
    assert drop.sentence.startswith("51.0 % before and 36.0 % now on 5 items, a drop of 15.0 points")
    assert drop.drop == pytest.approx(0.15) and drop.interval[0] < 0.15 < drop.interval[1]
    assert drop.stderr == pytest.approx(statistics.stdev(differences) / math.sqrt(5))


def test_only_the_items_that_both_sat_are_compared():
    drop = paired(answers("+++-", items="abcd"), answers("-+++", items="cdef"))
    assert (drop.items, drop.champion_items, drop.model_items) == (2, 4, 4)
    assert (drop.champion, drop.score, drop.lost, drop.gained) == (0.5, 0.5, 1, 1)
    other_key = Answers(metric="acc", correct={("a", "another answer", (), 0): True})
    twice = by_item([{"item": "a", "target": "t", "correct": one} for one in (True, False)])
    assert list(twice.values()) == [1.0, 0.0]  # an exam that asks the same twice
    assert paired(other_key, answers("+", items="a")) is None  # one id, another right answer


def test_no_champion_is_not_a_champion_with_no_scores(tmp_path):
    assert read_champion({}, tmp_path) == Champion(version=None)
    unread = read_champion({"version": "4", "tags": {"digest": "d"}}, tmp_path)
    assert unread.version == "4" and unread.problem
    gone = {"folder": "model_scores/f", "partition": "p", "fingerprint": "f", "digest": "d", "record_digest": ""}
    assert "no finished artifact" in read_champion({"version": "4", "digest": "d", "scores": gone}, tmp_path).problem


def chain(
    root: Path,
    *,
    aligned_seen: str = "",
    clean: bool = True,
    name: str = "model",
    right: int = 70,
    notes: dict | None = None,
    asset: str = "aligned_model",
) -> tuple:
    """Scores, contamination report and card of one model, which gives `right` of 100 right answers.

    `aligned_seen` is the digest that the scores are of, and `notes` are those of the model's record.
    """
    folders = {one: root / one / name for one in (asset, "model_scores", "contamination_report", "card")}
    for folder in folders.values():
        folder.mkdir(parents=True)
    (folders[asset] / "weights").write_text(name)
    model = commit(folders[asset], asset, notes=notes or {})
    seen = replace(model, digest=aligned_seen or model.digest)
    entry = {"score": right / 100, "stderr": 0.03, "n": 100, "chance": 0.25, "metric": "acc"}
    (folders["model_scores"] / "scores.json").write_text(json.dumps({"aligned": {"cloze": entry}}))
    rows = [{"item": str(item), "target": str(item), "correct": item < right} for item in range(100)]
    write_lines(folders["model_scores"] / "samples" / "aligned_cloze.jsonl.zst", rows)
    told = {"models": {"aligned": {"digest": seen.digest}}}
    scores = commit(folders["model_scores"], "model_scores", inputs=(seen,), notes=told)
    verdict = {"name": "contamination", "passed": clean, "evidence": {"findings": []}}
    report = commit(folders["contamination_report"], "contamination_report", inputs=(scores,), gates=(verdict,))
    card = commit(folders["card"], "model_card", inputs=(model,))
    return scores, report, card, model


def champion_in(root: Path, right: int, **how: Any) -> dict:
    """A champion in a job's settings, with its scores under `root`."""
    scores, _, _, model = chain(root, name="champion", right=right, **how)
    folder = str(Path(scores.path).relative_to(root))
    named = {"partition": scores.partition, "fingerprint": scores.fingerprint, "digest": scores.digest}
    record_digest = find(Path(scores.path)).record_digest
    return {
        "version": "7",
        "digest": model.digest,
        "scores": {"folder": folder, **named, "record_digest": record_digest},
    }


def promote(
    root: Path, inputs: tuple, champion: dict | None = None, *, asked: dict | None = None, **rules: object
) -> dict:
    settings = {"promote": {"model_name": "m", **rules}, "champion": champion or {}, **(asked or {})}
    job = make_job("promote", "promoted_model", root / "promoted_model" / "f", settings, inputs)
    assert run_job(job, STAGES) == 0
    record = find(Path(job.output)).record
    decision = json.loads(Path(job.output, "decision.json").read_text())
    gate = next(gate for gate in record["gates"] if gate["name"] == "promotion")
    assert gate["passed"] == decision["promoted"]
    assert gate["evidence"].get("failed", {}) == failed(decision)
    return decision


def failed(decision: dict) -> dict:
    return {check["name"]: check["detail"] for check in decision["checks"] if not check["passed"]}


def test_a_model_is_promoted_from_its_artifacts(tmp_path):
    inputs = chain(tmp_path)
    decision = promote(tmp_path, inputs, champion_in(tmp_path, 71))
    assert decision["promoted"] and decision["scores"] == {"cloze": 0.7}
    assert decision["model"]["digest"] == inputs[3].digest and decision["champion"]["version"] == "7"


def test_a_chosen_model_is_promoted_with_a_word_and_compared_with_a_chosen_champion(tmp_path):
    rows = [{"name": "last", "score": 0.6}, {"name": "align-step-3", "score": 0.7}]
    choice = {"suite": "cloze", "name": "align-step-3", "instead_of": "aligned_model", "candidates": rows}
    how: dict[str, Any] = {"asset": "chosen_model", "notes": {"choice": choice}}
    decision = promote(tmp_path, chain(tmp_path, **how), champion_in(tmp_path, 71, **how))
    assert decision["promoted"] and "chosen on cloze among 2 models of its training" in decision["choice"]
    record = find(tmp_path / "promoted_model" / "f").record
    assert record["gates"][-1]["evidence"]["choice"] == decision["choice"]
    said = {check["name"]: check["detail"]["reason"] for check in decision["checks"] if "reason" in check["detail"]}
    assert all("by which the model was chosen among 2" in said[name] for name in ("above_chance", "drop_cloze"))


def test_a_fall_from_95_to_10_percent_is_refused(tmp_path):
    decision = promote(tmp_path, chain(tmp_path, right=10), champion_in(tmp_path, 95), max_score_drop=0.0)
    assert not decision["promoted"]
    assert failed(decision)["drop_cloze"]["drop"] == 0.85


@pytest.mark.parametrize("harm", ["gone", "a flipped answer", "an edited record", "another model's"])
def test_a_champion_that_cannot_be_read_is_never_compared_with_nothing(tmp_path, harm):
    champion = champion_in(tmp_path, 10)
    folder = tmp_path / champion["scores"]["folder"]
    if harm == "gone":
        folder.rename(tmp_path / "elsewhere")
    elif harm == "a flipped answer":
        path = folder / "samples" / "aligned_cloze.jsonl.zst"
        path.write_bytes(path.read_bytes()[:-1] + b"x")
    elif harm == "an edited record":
        record = json.loads((folder / "artifact.json").read_text())
        record["metrics"]["aligned_cloze"] = 0.0
        commit_record(folder, record)
    else:
        champion["digest"] = "0" * 64
    decision = promote(tmp_path, chain(tmp_path), champion, max_score_drop=1.0)
    assert not decision["promoted"]
    assert list(failed(decision)) == ["champion"] and "pedigree rollback" in failed(decision)["champion"]["way_out"]


def test_a_model_that_learned_to_please_its_reward_is_not_promoted(tmp_path):
    fall = {"sentence": "from step 1 to step 6 …", "step": 6, "since_step": 1}
    seen = {"truth": "rubric", "prompts": 32, "looks": [{}] * 7, "proxy_up_truth_down": fall}
    decision = promote(tmp_path, chain(tmp_path, notes={"watched": seen}))
    refused = failed(decision)["proxy_up_truth_down"]
    assert not decision["promoted"] and refused["step"] == 6 and fall["sentence"] in refused["reason"]
    assert "align.beta" in refused["way_out"]
    honest = promote(tmp_path / "2", chain(tmp_path / "2", notes={"watched": {**seen, "proxy_up_truth_down": None}}))
    assert honest["promoted"] and "proxy_up_truth_down" in {check["name"] for check in honest["checks"]}
    blind = promote(tmp_path / "3", chain(tmp_path / "3"), asked={"watched": ["aligned_model"]})
    assert "without any" in failed(blind)["proxy_up_truth_down"]["reason"]


def test_scores_of_another_model_promote_nothing(tmp_path):
    decision = promote(tmp_path, chain(tmp_path, aligned_seen="0" * 64))
    assert not decision["promoted"] and list(failed(decision)) == ["same_digests"]


def test_a_report_whose_gate_refused_is_not_even_read(tmp_path):
    with pytest.raises(RefusedInput, match="contamination"):
        promote(tmp_path, chain(tmp_path, clean=False))
