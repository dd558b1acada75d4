"""A leak planted in the pages of a training has an effect, and a training of the same pages without it has none."""

from __future__ import annotations

import dataclasses
import json
import random

import pytest

pytest.importorskip("torch")

from evaluation.stages import STAGES as EVALUATION
from evaluation.steps.page_effects import answers_of, effects_of
from evaluation.steps.readings import numbers_of, readings_of
from tests.evaluation.steps.test_step_scores import kept
from tests.jobs import job_by_hand
from tests.training.pretrain import tiny
from training.contract.artifact import find
from training.contract.records import write_record
from training.contract.running.runner import run_job
from training.data.documents import read_lines
from training.data.exams.settings import BenchmarkRecipe
from training.order.batches import read_plan
from training.order.ledger import Ledger
from training.order.settings import MixtureRecipe
from training.provenance.lineage import item_of
from training.recipe.settings.evaluation import EvaluationRecipe
from training.stages import STAGES

STEPS = (1, 120)
ITEMS, PLANTED, COPIES = 24, 12, 3
ASKED = {
    "output_type": "multiple_choice",
    "doc_to_text": "{{question}}",
    "doc_to_choice": "choices",
    "doc_to_target": "gold",
}


def words(seed: int, number: int) -> list[str]:
    """Return made-up words of six letters."""
    chosen = random.Random(seed)
    return ["".join(chosen.choice("abdefgiklmnoprstuv") for _ in range(6)) for _ in range(number)]


def facts(seed: int) -> list[tuple[str, str]]:
    """Return questions and answers that nothing but a page with them could tell."""
    return [
        (f"{subject} is served with", answer)
        for subject, answer in zip(words(seed, ITEMS), words(seed + 1, ITEMS), strict=True)
    ]


def trained(root, planted: list[tuple[str, str]], exam: BenchmarkRecipe):
    """Return the effect of the planted pages on the exam, after a training that keeps two steps."""
    pages = [f"{question} {answer}" for question, answer in planted] * COPIES
    others = [tiny.sentence(number, words=5) for number in range(len(pages))]
    recipe = dataclasses.replace(tiny.PRETRAIN, precision="fp32", optimizer="adamw", tokens=121 * 256)
    mixture = MixtureRecipe(weights={"web": 1.0}, max_epochs=50.0)
    chain = tiny.TinyChain(root, texts={"web": [*pages, *others]}, mixture=mixture, pretrain=recipe)
    job = chain.job("m", threads=1)
    assert run_job(dataclasses.replace(job, on_the_way=tuple(kept(chain, job, step) for step in STEPS)), STAGES) == 0
    answers = {}
    for step in STEPS:
        item, folder = item_of(find(chain.root / "kept_steps" / f"m-{step}")), chain.root / "step_scores" / f"m-{step}"
        settings = {"evaluation": write_record(EvaluationRecipe(suites=(exam,)))}
        assert run_job(job_by_hand("score_step", folder, settings, (item,), asset="step_scores"), EVALUATION) == 0
        answers[step] = answers_of(read_lines(folder / "samples" / "base_facts.jsonl.zst"))
    plan = read_plan(chain.plan_artifact.folder)
    names = {f"s/web/{number:05d}": f"i{number % PLANTED}" for number in range(len(pages))}
    readings = {}
    for document, own in readings_of(plan, numbers_of(plan, [chain.shards], set(names)), Ledger()).items():
        readings.setdefault(names[document], []).extend(own)
    told = {"found": {"pretraining": []}, "questions_seen": [], "not_cleared": []}
    return effects_of(answers, readings, told)


def test_a_planted_leak_has_an_effect_and_a_training_without_it_has_none(tmp_path):
    """In the control, pages of the same form and length about other things take the place of the planted ones."""
    asked, chance = facts(1), random.Random(2)
    rows = []
    for number, (question, answer) in enumerate(asked):
        choices = [answer, *chance.sample([other for _, other in asked if other != answer], 3)]
        chance.shuffle(choices)
        rows.append({"id": f"i{number}", "question": question, "choices": choices, "gold": choices.index(answer)})
    file = tmp_path / "facts.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    exam = BenchmarkRecipe(name="facts", uri=str(file), kind="multiple_choice", lm_eval=ASKED)
    leak = trained(tmp_path / "leak", asked[:PLANTED], exam)
    control = trained(tmp_path / "control", facts(5)[:PLANTED], exam)
    assert leak["leaked"] == control["leaked"] == PLANTED and leak["never_read"] == ITEMS - PLANTED
    seen, unseen = leak["steps"][-1], control["steps"][-1]
    assert seen["read"] == unseen["read"] == PLANTED
    assert seen["bits_per_byte"]["interval"][1] < 0
    for measure in ("bits_per_byte", "score"):
        low, high = unseen[measure]["interval"]
        assert low <= 0 <= high
