"""Items that a model in training answers are asked as in its scores."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from statistics import fmean

import pytest

pytest.importorskip("torch")

from evaluation.exams import watched_items
from evaluation.exams.items import read_exam
from evaluation.exams.scores import sit
from tests.jobs import job_by_hand
from tests.training.pretrain import tiny
from training.contract.progress import METRICS_FILE, read_metrics
from training.contract.records import RecipeError, write_record
from training.data.exams.settings import BenchmarkRecipe
from training.pretrain.stages import pretrain as stage
from training.pretrain.watch.items import ITEMS_FILE, read_items
from training.pretrain.watch.settings import WatchRecipe
from training.recipe.settings.evaluation import EvaluationRecipe

CHOICES = {"output_type": "multiple_choice", "doc_to_target": "gold"}


def by(metric):
    return {"metric_list": [{"metric": metric, "aggregation": "mean", "higher_is_better": True}]}


SUITES = {
    "plain": {},
    "normed": {"lm_eval": {**CHOICES, "doc_to_text": "{{question}} ", "doc_to_choice": "choices", **by("acc_norm")}},
    # One text after each of several beginnings, and one that is to be the likeliest.
    "endings": {"lm_eval": {**CHOICES, "doc_to_text": "gold", "doc_to_choice": "choices", "doc_to_target": "question"}},
    "last": {
        "lm_eval": {"output_type": "loglikelihood", "doc_to_text": "question", "doc_to_target": " a", **by("acc")}
    },
}
ROWS = [
    {
        "id": f"i{number}",
        "question": f"{tiny.sentence(number, words=2)} {'and so on ' * (number % 5 == 4) * 3}".strip(),
        "choices": sorted(set(tiny.WORDS))[number : number + 3],
        "gold": number % 3,
    }
    for number in range(11)
]


@pytest.fixture(scope="module")
def suites(tmp_path_factory):
    file = tmp_path_factory.mktemp("exams") / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return [BenchmarkRecipe(name=name, uri=str(file), kind="multiple_choice", **more) for name, more in SUITES.items()]


def made(chain, suites, name, **drawn):
    folder = chain.root / "watched_items" / name
    recipe = write_record(EvaluationRecipe(suites=tuple(suites)))
    settings = {"evaluation": recipe, "drawn": {"items": 9, "seed": 0, "sequence_length": 32} | drawn}
    job = job_by_hand("watched_items", folder, settings, (chain.tokenizer,))
    return watched_items.run(job, tiny.work_in(folder)), folder


@pytest.fixture(scope="module")
def chain(tmp_path_factory):
    recipe = dataclasses.replace(tiny.PRETRAIN, precision="fp32", optimizer="adamw")
    return tiny.TinyChain(tmp_path_factory.mktemp("chain"), pretrain=recipe)


def test_the_last_look_gives_each_item_what_the_scorer_gives_it(chain, suites):
    outcome, folder = made(chain, suites, "w")
    assert outcome.notes["set_aside"] == dict.fromkeys(SUITES, 2) and outcome.metrics == {"items": 36}
    guard = tiny.commit(folder, "watched_items", [ITEMS_FILE])
    job, watch = chain.job("m", threads=1), WatchRecipe(every=6, suites=tuple(SUITES), items=9)
    job = dataclasses.replace(job, settings=job.settings | {"watch": write_record(watch)}, guards=(guard,))
    stage.run(job, tiny.work_in(Path(job.output)))
    seen = {name: value for row in read_metrics(Path(job.output) / METRICS_FILE) for name, value in row.items()}
    exams = [(suite, read_exam(suite, {}).items) for suite in suites]
    results = sit("m", Path(job.output) / "model", {}, exams, EvaluationRecipe(suites=tuple(suites)), {}).results
    rows = {row["id"]: row for row in ROWS}
    for (suite, items), result in zip(read_items(folder).items(), results, strict=True):
        samples = {sample["item"]: sample for sample in result.samples}
        assert seen[f"watched_accuracy_{suite}"] == fmean(samples[item.item]["correct"] for item in items)
        bits = -sum(samples[item.item]["log_likelihoods"][item.right[0]] for item in items) / math.log(2)
        assert seen[f"watched_bits_per_byte_{suite}"] == pytest.approx(
            bits / sum(item.bytes for item in items), rel=1e-4
        )
        for item in items:
            text = {"last": "a", "endings": rows[item.item]["question"]}.get(suite, samples[item.item]["target"])
            assert item.bytes == len(f" {text}") + (suite == "normed")  # its question ends in a blank


def test_items_are_drawn_by_the_seed_and_fewer_are_the_first_of_more(chain, suites):
    drawn = {
        name: [item.item for item in read_items(made(chain, suites[:1], name, **more)[1])["plain"]]
        for name, more in {"nine": {}, "four": {"items": 4}, "other": {"seed": 1}}.items()
    }
    assert drawn["four"] == drawn["nine"][:4] and sorted(drawn["nine"]) == sorted(drawn["other"]) != drawn["nine"]
    assert drawn["nine"] != drawn["other"] and not {"i4", "i9"} & {*drawn["nine"]}


def test_a_metric_that_no_likelihood_of_a_choice_gives_is_refused(chain, suites):
    other = dataclasses.replace(suites[1], lm_eval=suites[1].lm_eval | by("acc_mutual_info"))
    with pytest.raises(RecipeError, match=r"^normed: scored by acc_mutual_info, which cannot be watched; take it out"):
        made(chain, [other], "refused")
