"""A judge of answers from the user's own environment, beside the reward model."""

from __future__ import annotations

import pytest

from evaluation.exams.answer_rewards import SampledAnswers, judge
from evaluation.stages import _judge, _scores
from tests.examples import load_recipe
from training.contract.parts.code import PARTS
from training.contract.parts.outside import PartFailed
from training.contract.records import read_record
from training.recipe.settings.evaluation import EvaluationRecipe

pytestmark = pytest.mark.usefixtures("examples")

QUESTION = [{"role": "user", "content": "How hot?"}]


def recipe_of(place: str, **given) -> EvaluationRecipe:
    data = {"suites": [], "judge": "mine", "parts": {"mine": {"from": place, **given}}}
    return read_record(EvaluationRecipe, data, where="evaluation")


def test_its_scores_stand_beside_those_of_the_reward_model():
    groups = [
        SampledAnswers(
            model=model,
            suite=suite,
            prompts=[QUESTION] * 2,
            answers=answers,
            tokens=[1, 2],
            ids="ab",
            rubrics=[None] * 2,
        )
        for model, suite, answers in (
            ("sft", "chat", ["180", "How hot?"]),
            ("sft", "", ["It is very hot", "180"]),
            ("aligned", "", ["180", "180"]),
        )
    ]
    own = recipe_of("brief:judge", words=2).outside_judge
    scores = [own(one) for group in groups for one in group.conversations]
    assert scores == [1.0, 0.0, 0.5, 1.0, 1.0, 1.0]
    found, plain = judge(groups, [0.0] * 6, scores), judge(groups, [0.0] * 6)
    assert found.by_suite["sft"]["chat"]["judged_mean"] == 0.5
    assert [row["judged_reward"] for row in found.alignment_samples["sft"]] == [0.5, 1.0]
    assert found.alignment["gain"]["judged_reward"] == 0.25
    metrics = found.metrics()
    assert metrics["sft_chat_judged_reward"] == 0.5 and metrics["aligned_judged_reward"] == 1.0
    assert not any("judged" in name for name in plain.metrics())


@pytest.mark.parametrize(
    ("gives", "problem"),
    [
        ("1 / 0", "failed at the answer '180': ZeroDivisionError"),
        ("'good'", "gave 'good' for the answer '180'; it must be a finite number"),
        ("float('nan')", "gave nan for the answer '180'"),
    ],
)
def test_what_fails_in_a_judge_is_told_under_its_name(write, gives, problem):
    body = (
        "from training.recipe.settings.answer_judge import AnswerJudge\njudge = AnswerJudge(score=lambda said, _: {})\n"
    )
    own = recipe_of(f"{write(body.format(gives))}:judge").outside_judge
    with pytest.raises(PartFailed, match=f"judge mine {problem}"):
        own([*QUESTION, {"role": "assistant", "content": "180"}])


def test_a_judge_is_in_the_settings_of_judging_alone(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(
        'extends: kitchen\nname: mine\nevaluation: {judge: mine, parts: {mine: {from: "brief:judge", words: 12}}}\n'
    )
    recipe = load_recipe(str(path))
    assert _judge(recipe, "")[PARTS].keys() == {"mine"} and PARTS not in _scores(recipe, "")
    assert _scores(recipe, "") == _scores(load_recipe("kitchen"), "")
