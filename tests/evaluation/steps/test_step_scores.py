"""A kept step is scored as it was looked at while it was trained, and its scores are drawn over tokens."""

from __future__ import annotations

import dataclasses
import json
import math
from statistics import fmean

import pytest

pytest.importorskip("torch")

from evaluation.stages import STAGES as EVALUATION
from evaluation.steps.step_scores import bits_of
from tests.evaluation.exams.test_watched_items import SUITES, made, suites  # noqa: F401 - a fixture
from tests.jobs import job_by_hand
from tests.training.pretrain import tiny
from training.contract.artifact import find
from training.contract.progress import METRICS_FILE, read_metrics
from training.contract.records import write_record
from training.contract.running.runner import run_job
from training.data.documents import read_lines
from training.data.exams.settings import BenchmarkRecipe
from training.pretrain.watch.items import ITEMS_FILE, read_items
from training.pretrain.watch.settings import WatchRecipe
from training.provenance.lineage import item_of
from training.recipe.settings.evaluation import EvaluationRecipe
from training.stages import STAGES

STEPS = (3, 6)


@pytest.fixture(scope="module")
def scored(tmp_path_factory, suites):  # noqa: F811
    """A chain whose base model was looked at after the steps that it kept, and the scores of these steps."""
    plain = dataclasses.replace(tiny.PRETRAIN, precision="fp32", optimizer="adamw")
    chain = tiny.TinyChain(tmp_path_factory.mktemp("chain"), pretrain=plain)
    made(chain, suites, "w")
    guard = tiny.commit(chain.root / "watched_items" / "w", "watched_items", [ITEMS_FILE])
    job, watch = chain.job("m", threads=1), WatchRecipe(every=3, suites=tuple(SUITES), items=9)
    job = dataclasses.replace(job, settings=job.settings | {"watch": write_record(watch)}, guards=(guard,))
    assert run_job(dataclasses.replace(job, on_the_way=tuple(kept(chain, job, step) for step in STEPS)), STAGES) == 0
    written = BenchmarkRecipe(name="written", uri=suites[0].uri, kind="generate", answer_field="id", max_new_tokens=2)
    for step in STEPS:
        recipe = write_record(EvaluationRecipe(suites=(*suites, written)))
        item = item_of(find(chain.root / "kept_steps" / f"m-{step}"))
        folder = chain.root / "step_scores" / f"m-{step}"
        given = job_by_hand("score_step", folder, {"evaluation": recipe}, (item,), asset="step_scores")
        assert run_job(dataclasses.replace(given, partition=f"tiny@step-{step}"), EVALUATION) == 0
    return chain


def kept(chain, job, step):
    """The job of a kept step, which is scored without what was watched."""
    settings = {name: told for name, told in job.settings.items() if name != "watch"}
    called = {"asset": "kept_steps", "partition": f"tiny@step-{step}", "fingerprint": f"m-{step}"}
    output = str(chain.root / "kept_steps" / called["fingerprint"])
    return dataclasses.replace(job, **called, settings=settings | {"kept": {"step": step}}, output=output, guards=())


def test_a_kept_step_is_scored_as_the_look_at_it(scored):
    rows = read_metrics(scored.root / "base_model" / "m" / METRICS_FILE)
    looked = {
        step: {name: value for row in rows if row["step"] == step for name, value in row.items()} for step in STEPS
    }
    for step in STEPS:
        folder = scored.root / "step_scores" / f"m-{step}"
        metrics = find(folder).record["metrics"]
        assert (metrics["step"], metrics["tokens"]) == (step, step * 256)
        for suite, items in read_items(scored.root / "watched_items" / "w").items():
            samples = {row["item"]: row for row in read_lines(folder / "samples" / f"base_{suite}.jsonl.zst")}
            some = [samples[item.item] for item in items]
            assert looked[f"watched_accuracy_{suite}"] == fmean(row["correct"] for row in some)
            bits = bits_of(some)["bits_per_byte"]
            assert looked[f"watched_bits_per_byte_{suite}"] == pytest.approx(bits, rel=1e-4)
            assert metrics[f"base_{suite}_bits_per_byte"] == bits_of(list(samples.values()))["bits_per_byte"]


def test_written_answers_have_a_score_and_no_bits(scored):
    told = json.loads((scored.root / "step_scores" / "m-3" / "scores.json").read_text())["base"]
    assert "score" in told["written"] and "bits_per_byte" not in told["written"]
    assert all("right" not in row for row in read_lines(scored.root / "step_scores/m-3/samples/base_written.jsonl.zst"))


def test_bits_have_an_interval_from_two_items_on():
    one = {"right": {"log_likelihood": -8 * math.log(2), "bytes": 2}}
    other = {"right": {"log_likelihood": -2 * math.log(2), "bytes": 2}}
    assert bits_of([one]) == {"bits_per_byte": pytest.approx(4), "bits_interval": None}
    told = bits_of([one, other, {"correct": True}])
    assert told["bits_per_byte"] == pytest.approx(2.5) and told["bits_interval"][0] < 2.5 < told["bits_interval"][1]
    assert bits_of([{"correct": True}]) == {}


def test_the_curves_have_each_step_with_its_tokens_and_intervals(scored):
    inputs = tuple(item_of(find(scored.root / "step_scores" / f"m-{step}")) for step in reversed(STEPS))
    folder = scored.root / "learning_curves" / "m"
    assert run_job(job_by_hand("learning_curves", folder, {}, inputs, asset="learning_curves"), EVALUATION) == 0
    told = json.loads((folder / "learning_curves.json").read_text())["steps"]
    assert [(point["step"], point["tokens"]) for point in told] == [(3, 768), (6, 1536)]
    first = told[0]["suites"]["plain"]
    assert first["interval"][0] <= first["score"] <= first["interval"][1] and first["chance"] == pytest.approx(1 / 3)
    rows = read_metrics(folder / METRICS_FILE)
    assert [(row["step"], row["tokens"], row["plain_score"]) for row in rows] == [
        (point["step"], point["tokens"], point["suites"]["plain"]["score"]) for point in told
    ]
    page = (folder / "learning_curves.html").read_text()
    assert page.count("<svg") == 2 * len(SUITES) + 1 and "<td>written</td>" in page
