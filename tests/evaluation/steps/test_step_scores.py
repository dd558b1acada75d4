"""A kept step is scored as it was looked at while it was trained, and its scores are drawn over tokens."""

from __future__ import annotations

import dataclasses
import json
import math
import shutil
from statistics import fmean

import pytest

pytest.importorskip("torch")

from assets.graph.pictures import picture_of
from evaluation.decision.answers import choice_in_words
from evaluation.report.run_page import leak_effects
from evaluation.stages import STAGES as EVALUATION
from evaluation.steps.choice import choice_of
from evaluation.steps.page_effects import answers_of
from evaluation.steps.readings import numbers_of, readings_of
from evaluation.steps.step_scores import bits_of
from tests.evaluation.exams.test_watched_items import SUITES, made, suites  # noqa: F401 - a fixture
from tests.jobs import commit_by_hand, job_by_hand
from tests.training.pretrain import tiny
from training.contract.artifact import find
from training.contract.progress import METRICS_FILE, read_metrics
from training.contract.records import write_record
from training.contract.running.runner import run_job
from training.data.documents import read_documents, read_lines
from training.data.exams.settings import BenchmarkRecipe
from training.order.batches import read_plan
from training.order.ledger import Ledger
from training.order.sidecars import SIDECAR_SUFFIX
from training.pretrain.watch.items import ITEMS_FILE, read_items
from training.pretrain.watch.settings import WatchRecipe
from training.provenance.lineage import item_of, lineage_of
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
    for step in STEPS:
        looked = {name: value for row in rows if row["step"] == step for name, value in row.items()}
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


@pytest.fixture(scope="module")
def chosen(scored):
    """The best of the chain's last model and its kept steps by a suite."""
    items = [item_of(find(scored.root / asset / name)) for asset, name in CANDIDATES]
    folder = scored.root / "chosen_model" / "c"
    job = job_by_hand("choose", folder, {"evaluation": asked_one(scored)}, items, asset="chosen_model")
    assert run_job(job, EVALUATION) == 0
    return find(folder)


CANDIDATES = (("kept_steps", "m-3"), ("kept_steps", "m-6"), ("base_model", "m"))


def asked_one(scored):
    """The settings of one suite, as the kept steps were asked it."""
    record = find(scored.root / "step_scores" / "m-3").record["settings"]["evaluation"]
    return record | {"suites": [one for one in record["suites"] if one["name"] == "plain"]}


def test_the_best_candidate_by_a_suite_is_a_model_with_the_table_of_all(scored, chosen):
    choice, metrics = chosen.record["notes"]["choice"], chosen.record["metrics"]
    assert [row["name"] for row in choice["candidates"]] == ["last", "step-6", "step-3"] and metrics["candidates"] == 3
    for row in choice["candidates"]:
        if row["name"] != "last":
            told = json.loads((scored.root / "step_scores" / f"m-{row['name'][5:]}" / "scores.json").read_text())
            assert (row["score"], row["interval"]) == (
                told["base"]["plain"]["score"],
                told["base"]["plain"]["interval"],
            )
            assert row["against_last"]["items"] == row["n"]
    best = max(choice["candidates"], key=lambda row: row["score"])  # the first of equal ones
    assert (choice["name"], choice["digest"], choice["instead_of"]) == (best["name"], best["digest"], "base_model")
    copied = find(scored.root / choice["asset"] / choice["fingerprint"])
    own, other = ({one["path"]: one["sha256"] for one in made.record["files"]} for made in (chosen, copied))
    assert {name: digest for name, digest in own.items() if name.startswith("model/")} == {
        name: digest for name, digest in other.items() if name.startswith("model/")
    }
    assert metrics["steps"] == copied.record["metrics"]["steps"]
    assert "too high on average, because it was chosen by it" in choice_in_words(chosen.record)


def test_of_equal_candidates_the_last_model_is_chosen_and_else_the_highest_score(scored):
    items = {
        name: item_of(find(scored.root / asset / own)) for name, (asset, own) in zip("abl", CANDIDATES, strict=True)
    }
    items = {"last": items["l"], "step-6": items["b"], "step-3": items["a"]}
    for numbers, best in (((0.5, 0.5, 0.5), "last"), ((0.4, 0.5, 0.5), "step-6"), ((0.4, 0.3, 0.5), "step-3")):
        scores = {
            name: {"plain": {"score": score, "interval": [0, 1], "n": 9}}
            for name, score in zip(items, numbers, strict=True)
        }
        assert choice_of("plain", items, scores, {})["name"] == best


def test_the_lineage_of_a_chosen_model_has_none_of_the_others(scored, chosen):
    lineage = lineage_of(scored.root, chosen)
    name = chosen.record["notes"]["choice"]["fingerprint"]
    models = {node.item.fingerprint for node in lineage.of("base_model", "kept_steps")}
    assert len(chosen.record["inputs"]) == 3 and models == {name}


def test_bits_have_an_interval_from_two_items_on():
    one = {"right": {"log_likelihood": -8 * math.log(2), "bytes": 2}}
    other = {"right": {"log_likelihood": -2 * math.log(2), "bytes": 2}}
    assert bits_of([one]) == {"bits_per_byte": pytest.approx(4), "bits_interval": None}
    told = bits_of([one, other, {"correct": True}])
    assert told["bits_per_byte"] == pytest.approx(2.5) and told["bits_interval"][0] < 2.5 < told["bits_interval"][1]
    assert bits_of([{"correct": True}]) == {}


def curves(scored, findings, later=()):
    """The artifact of the curves, with what a scan found. `later` are scores of steps of later trainings."""
    found = sorted({one["item"] for one in findings})
    told = {"found": {"pretraining": []}, "questions_seen": [], "not_cleared": []}
    said = dict.fromkeys((*SUITES, "written"), told) | {"plain": told | {"found": {"pretraining": found}}}
    scan = scored.root / "data_contamination" / f"found-{len(found)}-{len(later)}"
    scan.mkdir(parents=True)
    (scan / "contamination.json").write_text(json.dumps({"suites": said}))
    (scan / "findings.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in findings))
    inputs = [
        item_of(find(scored.root / asset / f"m-{step}"))
        for asset in ("step_scores", "kept_steps")
        for step in reversed(STEPS)
    ]
    inputs += [*later, commit_by_hand(scan, "data_contamination"), scored.plan_artifact, scored.shards]
    folder = scored.root / "learning_curves" / scan.name
    assert run_job(job_by_hand("learning_curves", folder, {}, inputs, asset="learning_curves"), EVALUATION) == 0
    return folder


def test_the_curves_have_each_step_with_its_tokens_and_intervals(scored):
    folder = curves(scored, [])
    told = json.loads((folder / "learning_curves.json").read_text())
    assert [(point["step"], point["tokens"]) for point in told["steps"]] == [(3, 768), (6, 1536)]
    first = told["steps"][0]["suites"]["plain"]
    assert first["interval"][0] <= first["score"] <= first["interval"][1] and first["chance"] == pytest.approx(1 / 3)
    rows = read_metrics(folder / METRICS_FILE)
    assert [(row["step"], row["tokens"], row["plain_score"]) for row in rows] == [
        (point["step"], point["tokens"], point["suites"]["plain"]["score"]) for point in told["steps"]
    ]
    page = (folder / "learning_curves.html").read_text()
    assert page.count("<svg") == 2 * len(SUITES) + 1 and "<td>written</td>" in page
    assert "found no item of these exams" in page and (folder / "leaked_items.jsonl").read_text() == ""


def test_a_step_of_fine_tuning_takes_exams_under_its_own_name_and_has_a_curve_of_its_own(scored):
    """The model of step 3 stands for one that was kept after step 2 of fine-tuning, which counts no tokens."""
    folder = scored.root / "kept_sft_steps" / "s-2"
    shutil.copytree(scored.root / "kept_steps" / "m-3" / "model", folder / "model")
    item = commit_by_hand(folder, "kept_sft_steps", partition="tiny@sft-step-2", metrics={"steps": 2})
    before = find(scored.root / "step_scores" / "m-3").record
    output = scored.root / "step_scores" / "s-2"
    settings = {"evaluation": before["settings"]["evaluation"]}
    job = job_by_hand("score_step", output, settings, (item,), asset="step_scores", partition="tiny@sft-step-2")
    assert run_job(job, EVALUATION) == 0
    metrics = find(output).record["metrics"]
    assert metrics["step"] == 2 and "tokens" not in metrics
    assert metrics["sft_plain"] == before["metrics"]["base_plain"]  # of the same weights
    assert find(output).file("samples/sft_plain.jsonl.zst").exists()
    made = find(curves(scored, [], later=[item_of(find(output))]))
    told = json.loads(made.file("learning_curves.json").read_text())
    assert [point["step"] for point in told["steps"]] == [3, 6] and told["later"].keys() == {"sft_model"}
    (point,) = told["later"]["sft_model"]
    assert point["suites"]["plain"] == told["steps"][0]["suites"]["plain"] and point.keys() == {"step", "suites"}
    rows = read_metrics(made.file(METRICS_FILE))
    assert [(row["step"], "tokens" in row, "sft_plain_score" in row) for row in rows] == [
        (3, True, False),
        (6, True, False),
        (2, False, True),
    ]
    metrics = made.record["metrics"]
    assert metrics["kept_steps"] == 3 and metrics["sft_plain_score"] == point["suites"]["plain"]["score"]
    page = made.file("learning_curves.html").read_text()
    assert "The base model after 2 kept steps" in page and "The SFT model after 1 kept step<" in page
    assert picture_of(made).count("data:image/svg+xml") == 2


def test_a_leaked_item_has_the_steps_that_read_its_page_and_an_effect(scored):
    """A page that steps 3 to 5 read first has a kept step before it and one after it."""
    plan = read_plan(scored.plan_artifact.folder)
    names = [shard.path.removesuffix(".bin") + SIDECAR_SUFFIX for shard in plan.record.shards]
    ids = [row["id"] for name in names for row in read_documents(scored.shards.file(name), ["id"])]
    readings = readings_of(plan, numbers_of(plan, [scored.shards], set(ids)), Ledger())
    late, early = (
        [name for name, own in readings.items() if own and own[0].step in steps] for steps in ((3, 4, 5), (0, 1, 2))
    )
    pages = {"i0": early[:1], "i1": late[:1], "i2": late[:2]}
    folder = curves(
        scored,
        [
            {"benchmark": "plain", "item": item, "where": "pretraining", "document": name, "url": name, "how": "item"}
            for item, names in pages.items()
            for name in names
        ],
    )
    leaks = json.loads((folder / "learning_curves.json").read_text())["leaks"]["plain"]
    before, after = leaks["steps"]
    assert (leaks["leaked"], before["read"], before["without_before"]) == (3, 1, 1)
    assert (after["read"], after["without_before"], before["score"]) == (3, 1, None)
    items = {row["item"]: row for row in read_lines(folder / "leaked_items.jsonl")}
    assert {name: row["first_step"] for name, row in items.items()} == {
        item: min(readings[name][0].step for name in names) for item, names in pages.items()
    }
    assert [at["times_read"] for at in items["i2"]["at"]] == [0, len(pages["i2"])]
    changes = [
        end["bits_per_byte"] - start["bits_per_byte"] for start, end in (items[name]["at"] for name in ("i1", "i2"))
    ]
    effect = after["bits_per_byte"]
    assert effect["interval"][0] < effect["difference"] < effect["interval"][1]
    files = [scored.root / f"step_scores/m-{step}/samples/base_plain.jsonl.zst" for step in STEPS]
    start, end = (answers_of(read_lines(file)) for file in files)
    others = [end[one]["bits_per_byte"] - start[one]["bits_per_byte"] for one in start if one[0] not in pages]
    assert effect["difference"] == pytest.approx(fmean(changes) - fmean(others))
    rows = read_metrics(folder / METRICS_FILE)
    assert rows[-1]["plain_leak_bits_per_byte"] == effect["difference"] and rows[-1]["plain_leaked_items_read"] == 3
    assert "The effect by kept step" in (folder / "learning_curves.html").read_text()
    (shown,) = leak_effects([(folder, find(folder).record)]).values()
    assert (shown["leaked"], shown["step"], shown["bits_per_byte"]) == (3, 6, effect)
