"""The stages `evaluate` and `judge` from job to artifact, on tiny random models."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from itertools import combinations
from pathlib import Path
from statistics import fmean
from types import SimpleNamespace

import pytest

pytest.importorskip("torch")

from assets.answers.models.outside import score_lines
from evaluation.decision.answers import MODELS
from evaluation.decision.paired import read_answers
from evaluation.exams import one_model
from evaluation.exams.controls import is_above
from evaluation.exams.items import read_exam
from evaluation.exams.one_model import scores_of
from evaluation.exams.quantized.scores import drop_gate
from evaluation.exams.scores import Candidate, _controls, check_names, completeness
from evaluation.exams.unseen_text import held_out_texts
from evaluation.stages import STAGES
from tests.evaluation.conftest import commit, make_job, make_model
from tests.evaluation.report.pages import document
from tests.training.posttrain import tiny
from training.contract.artifact import find
from training.contract.job import DataError, InputArtifact, Job, read_job, write_job
from training.contract.progress import read_metrics
from training.contract.records import RecipeError, read_record
from training.contract.run_settings import RunSettings
from training.contract.running.attempt import read_attempts
from training.contract.running.runner import run_job
from training.data.documents import DocumentWriter, read_documents, read_lines, write_lines
from training.data.exams.settings import BenchmarkRecipe
from training.data.sources import read_rows
from training.order.held_out import is_held_out
from training.provenance.lineage import item_of
from training.recipe.settings.evaluation import EvaluationRecipe
from training.stages import STAGES as TRAINING_STAGES

KITCHEN = {
    "seed": 3,
    "dishes": 16,
    "tested_per_value": 1,
    "tested_sums": 8,
    "pages": 100,
    "files": 1,
    "dialogues": 8,
    "preferences": 8,
}


def suite(name: str, kind: str, uri: str, **more: object) -> dict[str, object]:
    return {"name": name, "kind": kind, "uri": uri, **more}


def evaluation(*suites: dict[str, object], **more: object) -> dict[str, object]:
    return {"suites": list(suites), "batch_size": 16, "seed": 1, **more}


@pytest.fixture(scope="module")
def models(tmp_path_factory, base_folder, chat_folder) -> tuple[InputArtifact, ...]:
    """One artifact for each model of the chain."""
    root = tmp_path_factory.mktemp("artifacts")
    made = []
    for asset, source in [
        ("base_model", base_folder),
        ("sft_model", chat_folder),
        ("aligned_model", None),
        ("reward_model", None),
    ]:
        folder = root / asset
        if source is not None:
            shutil.copytree(source, folder / "model")
        else:
            make_model(folder / "model", template=True, seed=5, reward=asset == "reward_model")
        made.append(commit(folder, asset))
    return tuple(made)


SUITES = (
    suite("cloze", "multiple_choice", "kitchen://cloze", question_field="query", limit=8),
    suite("chat", "chat", "kitchen://chat", limit=6, max_new_tokens=4),
)


DRAWN = {
    "doc_to_text": "{{question}}",
    "doc_to_target": "{{answer}}",
    "output_type": "generate_until",
    "metric_list": [{"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}],
    "repeats": 3,
    "generation_kwargs": {"do_sample": True, "temperature": 1.0, "until": [], "max_gen_toks": 4},
    "filter_list": [{"name": "vote", "filter": [{"function": "majority_vote"}, {"function": "take_first"}]}],
}


@pytest.fixture(scope="module")
def scored(tmp_path_factory, models) -> Path:
    """The artifact of one evaluation."""
    folder = tmp_path_factory.mktemp("scores") / "model_scores"
    texts = folder.parent / "texts.jsonl"
    write_lines(texts, [{"text": "The bread is brown. " * number} for number in (1, 2, 9)])
    settings = {
        "evaluation": evaluation(
            *SUITES,
            suite("drawn", "generate", "kitchen://questions", limit=4, lm_eval=DRAWN),
            outside_text=str(texts),
            outside_text_limit=2,
        ),
        "mixture": {"held_out_fraction": 0.5},
        "kitchen": KITCHEN,
    }
    inputs = (*models[:3], corpus(folder.parent / "documents"))
    assert run_job(make_job("evaluate", "model_scores", folder, settings, inputs), STAGES) == 0
    return folder


def corpus(folder: Path) -> InputArtifact:
    """A corpus that states the answer of every second cloze item, beside its dish."""
    items = list(read_rows("kitchen://cloze", settings={"kitchen": KITCHEN}))[:8]
    with DocumentWriter(folder / "documents" / "00000.parquet") as writer:
        for number, item in enumerate(items[::2]):
            text = (
                f"A page of the kitchen.\nThe {item['item_subjects'][0]} has {item['choices'][item['gold']]}. So it is."
            )
            writer.write(document(number, text))
    return commit(folder, "decontaminated_documents", partition="tiny@s1")


@pytest.fixture(scope="module")
def judged(tmp_path_factory, models, scored) -> Path:
    """The artifact of judging that evaluation's answers, and answers sampled to prompts."""
    folder = tmp_path_factory.mktemp("rewards") / "alignment_rewards"
    pairs = [
        {
            "prompt": [{"role": "user", "content": f"{n}?"}],
            **{side: [{"role": "assistant", "content": side}] for side in ("chosen", "rejected")},
        }
        for n in range(3)
    ]
    for name in ("train.jsonl", "held_out.jsonl"):
        tiny.write_rows(folder.parent / "preference_data" / name, pairs)
    settings = {
        "evaluation": evaluation(*SUITES, alignment_prompts="kitchen://alignment", alignment_max_new_tokens=4),
        "align": {"max_new_tokens": 4},
        "kitchen": KITCHEN,
    }
    shutil.copytree(scored, folder.parent / "model_scores")
    inputs = (*models, *(commit(folder.parent / asset, asset) for asset in ("preference_data", "model_scores")))
    assert run_job(make_job("judge", "alignment_rewards", folder, settings, inputs), STAGES) == 0
    return folder


@pytest.fixture(scope="module")
def small(tmp_path_factory, models, scored) -> dict[float, Path]:
    """The scores of the SFT model in 4 bits, by how much may be lost."""
    root = tmp_path_factory.mktemp("small")
    asked = {"quantize": {"method": "int4", "group_size": 8}}
    output = root / "quantized_model"
    assert run_job(make_job("quantize", output.name, output, asked, models[1:2]), TRAINING_STAGES) == 0
    before = find(scored)
    item = InputArtifact(
        asset="model_scores", partition="tiny", fingerprint="f", digest=before.digest, path=str(before.path)
    )
    inputs = (item_of(find(output)), models[1], item, corpus(root / "documents"))
    found = {}
    for most in (0.0, 1.0):
        found[most] = root / f"quantized_scores-{most}"
        settings = before.record["settings"] | {"limit": {"max_drop": most}}
        job = make_job("score_quantized", "quantized_scores", found[most], settings, inputs)
        assert run_job(job, STAGES) == 0
    return found


def test_a_quantized_model_is_compared_with_its_parent_item_by_item(small, scored):
    record = find(small[1.0]).record
    before, now = read_answers(scored, "sft"), read_answers(small[1.0], "quantized")
    lost = json.loads((small[1.0] / "loss.json").read_text())
    assert lost.keys() == {"cloze", "chat", "drawn"}
    for name, told in lost.items():
        items = before[name].correct
        assert items.keys() == now[name].correct.keys() and told["items"] == len(items)
        assert told["drop"] == pytest.approx(fmean(items[one] - now[name].correct[one] for one in items))
        assert told["interval"][0] <= told["drop"] <= told["interval"][1]
        assert record["metrics"][f"quantized_{name}_drop"] == told["drop"]
    bits = json.loads((scored / "held_out_bits_per_byte.json").read_text())["sft"]["bits_per_byte"]
    assert record["metrics"]["parent_held_out_bits_per_byte"] == bits
    assert record["metrics"]["quantized_held_out_bits_per_byte"] != bits
    assert record["metrics"]["tokens_per_second"] > 0 and record["metrics"]["parent_tokens_per_second"] > 0
    assert "torchao" in record["numerics"]["builds"]


def test_a_quantized_model_is_refused_unless_the_items_show_that_little_is_lost(small):
    gates = {most: find(folder).record["gates"][-1] for most, folder in small.items()}
    assert {most: gate["passed"] for most, gate in gates.items()} == {0.0: False, 1.0: True}
    said = gates[0.0]["evidence"]
    assert said["most"] == 0.0 and "cloze: " in said["reason"] and "quantize.max_drop" in said["way_out"]
    (gate,) = (drop_gate({}, 1.0, ["cloze"]),)
    assert not gate.passed and gate.evidence["reason"] == "cloze: no item that both models answered"


def test_every_model_has_a_score_on_every_suite(scored, models):
    record = find(scored).record
    scores = json.loads((scored / "scores.json").read_text())
    assert set(scores) == set(MODELS) and all(set(suites) == {"cloze", "chat", "drawn"} for suites in scores.values())
    assert scores["base"]["cloze"]["chance"] == 0.25 and scores["base"]["cloze"]["n"] == 8
    assert all(
        math.isfinite(entry["score"]) and entry["stderr"] >= 0
        for suites in scores.values()
        for entry in suites.values()
    )
    assert [gate["passed"] for gate in record["gates"] if gate["name"] == "scores_complete"] == [True]
    assert record["metrics"]["sft_cloze"] == scores["sft"]["cloze"]["score"]
    low, high = scores["sft"]["cloze"]["interval"]
    assert 0 <= low < high <= 1 and record["metrics"]["sft_cloze_high"] == high
    how = json.loads((scored / "harness.json").read_text())
    assert how["sft"]["digest"] == models[1].digest and how["base"]["chat_template_sha256"] is None
    assert how["sft"]["suites"]["chat"]["form"] == "chat" and how["base"]["suites"]["chat"]["form"] == "raw"


def test_each_kind_of_item_has_its_interval_and_its_controls(scored):
    metrics = find(scored).record["metrics"]
    for model, suites in json.loads((scored / "scores.json").read_text()).items():
        (kind,) = suites["cloze"]["kinds"].values()
        whole = suites["cloze"]
        assert (kind["score"], kind["interval"], kind["n"]) == (whole["score"], whole["interval"], 8)
        assert kind["controls"]["pairs"] == pytest.approx((4 + 4 * 0.25) / 8)  # what is not stated is guessed
        assert kind["above_controls"] is (kind["interval"][0] > max(kind["chance"], *kind["controls"].values()))
        assert metrics[f"{model}_cloze_fact_low"] == kind["interval"][0] and metrics["cloze_fact_items"] == 8
        assert metrics["pairs_cloze_fact"] == kind["controls"]["pairs"]
        assert set(suites["chat"]["kinds"]["fact"]) == {"score", "interval", "n", "chance"}  # nothing to choose from


def test_controls_answer_the_items_that_each_model_answered(tmp_path):
    suite = read_record(BenchmarkRecipe, SUITES[0], where="suite")
    items = tuple(read_exam(suite, {"kitchen": KITCHEN}).items[:8])
    whole, cut = Candidate("base", {}), Candidate("sft", {})
    whole.results = [SimpleNamespace(suite="cloze", set_aside=(), items=items)]
    cut.results = [SimpleNamespace(suite="cloze", set_aside=("x",), items=items[::2])]
    found = _controls([(suite, items)], [corpus(tmp_path / "documents")], [whole, cut])
    kinds = {aside: next(iter(of.values()))["pairs"] for (_, aside), of in found.items()}
    assert kinds == {(): pytest.approx((4 + 4 * 0.25) / 8), ("x",): 1.0}


def test_a_score_that_counting_may_reach_is_not_above_the_controls():
    entry = {"score": 0.6, "interval": [0.55, 0.65], "n": 400, "chance": 0.25}
    assert is_above(entry, {"ngram": 0.3, "pairs": 0.54})
    assert not is_above(entry, {"ngram": 0.56, "pairs": 0.3}) and not is_above({**entry, "chance": 0.55}, {"pairs": 0})


def test_every_model_has_bits_per_byte_on_the_text_from_outside(scored):
    bits = json.loads((scored / "bits_per_byte.json").read_text())
    assert set(bits) == set(MODELS)
    for model, entry in bits.items():
        low, high = entry["interval"]
        assert (entry["texts"], entry["bytes"]) == (2, 60) and low <= entry["bits_per_byte"] <= high
        assert find(scored).record["metrics"][f"{model}_outside_bits_per_byte"] == entry["bits_per_byte"]


def test_every_model_has_bits_per_byte_on_the_held_out_documents_alone(scored, tmp_path):
    pages = corpus(tmp_path / "documents")
    rows = list(read_documents(tmp_path / "documents" / "documents" / "00000.parquet", ["id", "text"]))
    held_out = [row["text"] for row in rows if is_held_out(row["id"], 0.5)]
    assert 1 < len(held_out) < len(rows)
    bits = json.loads((scored / "held_out_bits_per_byte.json").read_text())
    for model, entry in bits.items():
        assert (entry["texts"], entry["bytes"]) == (len(held_out), sum(len(text.encode()) for text in held_out))
        assert find(scored).record["metrics"][f"{model}_held_out_bits_per_byte"] == entry["bits_per_byte"]
    assert set(bits) == set(MODELS)
    ordered = held_out_texts([pages], fraction=0.5, limit=None)
    assert sorted(ordered) == sorted(held_out) and held_out_texts([pages], fraction=0.5, limit=1) == ordered[:1]
    assert held_out_texts([pages], fraction=0.0, limit=None) == []


def test_the_models_are_compared_on_the_same_items(scored):
    from scipy.stats import binomtest  # takes 2 s, and every process of the tests imports this module

    found = json.loads((scored / "comparisons.json").read_text())
    assert [(one["before"], one["after"]) for one in found["cloze"]] == [*combinations(MODELS, 2)]
    right = {
        (model, name): [row["correct"] for row in read_lines(scored / "samples" / f"{model}_{name}.jsonl.zst")]
        for model in MODELS
        for name in found
    }
    for name, compared in found.items():
        for one in compared:
            pairs = list(zip(right[one["before"], name], right[one["after"], name], strict=True))
            won, lost = pairs.count((False, True)), pairs.count((True, False))
            assert (one["items"], one["won"], one["lost"]) == (len(pairs), won, lost)
            assert one["difference"] == pytest.approx((won - lost) / len(pairs))
            assert math.copysign(1, one["difference"]) > 0 or won < lost  # -0.0 would be shown as a loss
            assert one["p_value"] == pytest.approx(binomtest(won, max(1, won + lost)).pvalue if won + lost else 1.0)
            assert one["interval"][0] <= one["difference"] <= one["interval"][1]
    assert any(one["won"] != one["lost"] for compared in found.values() for one in compared)


def test_every_item_keeps_its_prompt_and_answer(scored):
    rows = list(read_lines(scored / "samples" / "aligned_chat.jsonl.zst"))
    assert len(rows) == 6
    assert all(row["prompt"].endswith("<|assistant|>") and isinstance(row["response"], str) for row in rows)
    assert {"item", "target", "correct"} <= set(rows[0])


def test_sampled_answers_get_both_rewards(judged):
    alignment = json.loads((judged / "alignment.json").read_text())
    rows = list(read_lines(judged / "samples" / "sft_alignment_answers.jsonl.zst"))
    assert len(rows) == alignment["sft"]["answers"] == 72
    mean = sum(row["true_reward"] for row in rows) / len(rows)
    assert alignment["sft"]["true_reward"] == pytest.approx(mean)
    assert alignment["gain"]["true_reward"] == pytest.approx(alignment["aligned"]["true_reward"] - mean)
    assert len({row["answer"] for row in rows}) > 1
    rewards = json.loads((judged / "rewards.json").read_text())
    assert rewards["sft"]["chat"]["n"] == 6 and "base" not in rewards
    metrics = find(judged).record["metrics"]
    assert metrics["sft_learned_reward"] == alignment["sft"]["learned_reward"]
    assert metrics["truncated_conversations"] == 0 and metrics["held_out_prompts"] == 3 and metrics["kl_from_sft"] > 0


def test_a_second_evaluation_gives_the_same_bytes(scored, models, tmp_path):
    settings = json.loads((scored / "job.json").read_text())["settings"]
    again = tmp_path / "again"
    inputs = (*models[:3], corpus(tmp_path / "documents"))
    run_job(make_job("evaluate", "model_scores", again, settings, inputs), STAGES)
    assert find(again).digest == find(scored).digest


def test_a_model_alone_is_scored_as_in_the_chain(scored, models, tmp_path, capsys):
    settings = json.loads((scored / "job.json").read_text())["settings"]
    evaluation = settings.pop("evaluation")
    recipe = read_record(EvaluationRecipe, evaluation)
    folder = Path(models[1].path, "model")
    scores = scores_of(folder, recipe, settings, tmp_path / "out")
    in_the_chain = json.loads((scored / "scores.json").read_text())["sft"]
    for name in ("controls", "above_controls"):  # of the corpus, which a model alone does not have
        del in_the_chain["cloze"]["kinds"]["fact"][name]
    assert scores == in_the_chain
    for name in ("cloze", "chat"):
        answers = Path("samples", f"sft_{name}.jsonl.zst"), Path("samples", f"model_{name}.jsonl.zst")
        assert (scored / answers[0]).read_bytes() == (tmp_path / "out" / answers[1]).read_bytes()
    how = json.loads((tmp_path / "out" / "harness.json").read_text())["model"]
    assert how["digest"] == models[1].digest and how["suites"]["chat"]["form"] == "chat"
    adapter = tmp_path / "adapter"
    shutil.copytree(folder, adapter)
    (adapter / "adapter_config.json").write_text("{}")
    request = {"model": str(adapter), "evaluation": evaluation, "settings": settings, "output": None, "shard": 1}
    (tmp_path / "request.json").write_text(json.dumps(request))
    assert one_model.main([str(tmp_path / "request.json")]) == 2
    answer = json.loads(capsys.readouterr().out)
    assert not answer["ok"] and "adapter" in answer["error"]


def test_items_that_cannot_be_scored_are_told_with_the_scores_of_a_model_alone(models, tmp_path):
    file = tmp_path / "exam.jsonl"
    rows = [{"id": str(number), "question": f"{number}?", "answer": "x" if number else "…"} for number in range(3)]
    write_lines(file, rows)
    recipe = read_record(EvaluationRecipe, evaluation(suite("exam", "generate", str(file))))
    scores = scores_of(Path(models[1].path, "model"), recipe, {}, tmp_path / "out")
    (refused,) = scores["exam"]["refused"]
    assert (refused["row"], scores["exam"]["n"]) == (0, 2)
    told = "\n".join(score_lines(scores))
    assert "items that cannot be scored, and are in no score:\n  exam: 1; row 0: no answer with a word" in told
    del scores["exam"]["refused"]
    assert "cannot be scored" not in "\n".join(score_lines(scores))


def test_an_item_without_a_field_is_named_before_any_model_is_loaded(models, tmp_path):
    file = tmp_path / "exam.jsonl"
    write_lines(file, [{"id": "a", "question": "q?", "answer": "x"}, {"id": "b", "question": "q?"}])
    settings = {"evaluation": evaluation(suite("exam", "generate", str(file)))}
    with pytest.raises(DataError, match=r"exam\.jsonl.*item.*(1|b).*answer"):
        run_job(make_job("evaluate", "model_scores", tmp_path / "out", settings, models), STAGES)


def test_suites_of_one_name_are_refused():
    recipe = BenchmarkRecipe(name="a", uri="x.jsonl", kind="chat")
    with pytest.raises(RecipeError, match="names must differ"):
        check_names([recipe, recipe])


def test_a_missing_or_infinite_score_fails_the_gate():
    good = {"score": 0.5, "stderr": 0.1, "n": 4}
    assert completeness({model: {"a": good} for model in MODELS}, {"a": 4}).passed
    for bad in ({"score": float("nan")}, {"n": 3}, {"stderr": None}, {"stderr": float("inf")}):
        assert not completeness({model: {"a": good | bad} for model in MODELS}, {"a": 4}).passed
    assert not completeness({"base": {"a": good}, "sft": {"a": good}}, {"a": 4}).passed
    assert completeness({model: {"a": good | {"set_aside": 2}} for model in MODELS}, {"a": 6}).passed
    assert not completeness({model: {"a": good | {"set_aside": 1}} for model in MODELS}, {"a": 6}).passed


def by_torchrun(job: Job, processes: int, *, kill_rank: int | None = None) -> int:
    """Run a job in several processes, and return the exit code. If a rank is to be killed, this is after one model."""
    folder = Path(job.output)
    write_job(job, folder / "job.json")
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    environment = {**os.environ, "PEDIGREE_ATTEMPT": f"of-{processes}"}
    with (folder.parent / "log.txt").open("a") as log:
        running = subprocess.Popen(
            [sys.executable, *launcher, "-m", "evaluation", str(folder / "job.json")],
            stdout=log,
            stderr=log,
            env=environment,
        )
    if kill_rank is not None:
        while running.poll() is None and not any(
            "base_cloze" in line for line in read_metrics(folder / "metrics.jsonl")
        ):
            time.sleep(0.02)
        said = next(one for one in read_attempts(folder) if one["rank"] == kill_rank)
        os.kill(said["pid"], signal.SIGKILL)
    return running.wait(900)


def in_two_processes(scored: Path, folder: Path) -> Job:
    """The job of a scoring, in two processes with the threads of the one."""
    import torch

    run = RunSettings(threads=torch.get_num_threads(), processes=2)
    return dataclasses.replace(read_job(scored / "job.json"), output=str(folder), run=run)


def files_of(folder: Path) -> dict[str, str]:
    return {file["path"]: file["sha256"] for file in find(folder).record["files"]}


def test_processes_share_out_the_passes_and_get_the_same_bytes(tmp_path, scored):
    folder = tmp_path / "model_scores"
    assert by_torchrun(in_two_processes(scored, folder), 2) == 0
    assert files_of(folder) == files_of(scored)
    assert find(folder).record["numerics"]["processes"] == 2


def test_a_scoring_of_which_one_process_was_killed_ends_in_the_same_bytes(tmp_path, scored):
    job = in_two_processes(scored, folder := tmp_path / "model_scores")
    assert by_torchrun(job, 2, kill_rank=1) != 0
    assert find(folder) is None
    assert by_torchrun(job, 2) == 0
    assert files_of(folder) == files_of(scored)


def test_processes_that_share_the_weights_score_alike(tmp_path, scored):
    import torch

    folder = tmp_path / "model_scores"
    run = RunSettings(threads=torch.get_num_threads(), processes=2, shard=2)
    assert by_torchrun(dataclasses.replace(read_job(scored / "job.json"), output=str(folder), run=run), 2) == 0
    assert_alike(scored, folder)
    assert find(folder).record["numerics"]["degrees"] == {"shard": 2}


def assert_alike(folder: Path, other: Path) -> None:
    """Compare the files of two scorings: the same bytes, but for the last digits of log-likelihoods."""
    made = find(folder)
    listed = [Path(file["path"]) for file in made.record["files"]] if made else None
    names = listed or [path.relative_to(folder) for path in folder.rglob("*") if path.is_file()]
    assert any(name.parts[0] == "samples" for name in names)
    for name in names:
        if name.parts[0] == "samples":
            for row, same in zip(read_lines(folder / name), read_lines(other / name), strict=True):
                numbers = row.pop("log_likelihoods", None)
                assert same.pop("log_likelihoods", None) == (numbers and pytest.approx(numbers, rel=1e-5))
                assert same == row
        elif name.name.endswith("bits_per_byte.json"):  # of log-likelihoods
            mine, theirs = (leaves(json.loads((one / name).read_bytes())) for one in (folder, other))
            assert mine.keys() == theirs.keys()
            for place, number in mine.items():
                assert theirs[place] == (pytest.approx(number, rel=1e-5) if isinstance(number, float) else number)
        else:
            assert (folder / name).read_bytes() == (other / name).read_bytes(), name


def leaves(value):
    """Return all numbers and texts of a JSON value, with their places."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else None
    if inside is None:
        return {(): value}
    return {(key, *place): leaf for key, one in inside for place, leaf in leaves(one).items()}


def test_processes_that_share_the_models_judge_like_one(tmp_path, judged):
    import torch

    folder = tmp_path / "alignment_rewards"
    run = RunSettings(threads=torch.get_num_threads(), processes=2, shard=2)
    job = dataclasses.replace(read_job(judged / "job.json"), output=str(folder), run=run)
    assert by_torchrun(job, 2) == 0, (tmp_path / "log.txt").read_text()
    made, alone = find(folder).record, find(judged).record
    assert {file["path"]: file["sha256"] for file in made["files"]} == {
        file["path"]: file["sha256"] for file in alone["files"]
    }
    assert made["metrics"] == pytest.approx(alone["metrics"], rel=1e-6)
    assert made["numerics"]["processes"] == 2


def test_every_model_that_is_scored_or_judged_is_opened_in_as_many_shares_as_the_profile_says(
    tmp_path, scored, judged, monkeypatch
):
    """Results do not show it: a process that opens the whole model gives the same ones, until its memory is full."""
    opened = tiny.shares_opened(monkeypatch)
    # Of a scoring: base, SFT and aligned model. Of a judging: the last two for prompts, the reward model for all
    # answers, and the three of them for held-out prompts.
    for made, number in ((scored, 3), (judged, 6)):
        opened.clear()
        job = dataclasses.replace(read_job(made / "job.json"), output=str(tmp_path / made.name))
        assert run_job(dataclasses.replace(job, run=dataclasses.replace(job.run, shard=2)), STAGES) == 0
        assert opened == [2] * number


def test_a_model_that_processes_share_is_scored_by_the_command_like_in_one(tmp_path, models):
    from assets.answers.models.outside import evaluate
    from resources.compute.size import read_size

    suites = read_record(EvaluationRecipe, evaluation(*SUITES), where="evaluation"), {"kitchen": KITCHEN}
    sizes = [read_size(size, where="") for size in ({}, {"processes": 2, "shard": 2})]
    alone, together = (
        evaluate(models[1].file("model"), suites, tmp_path / str(size.shard), size=size) for size in sizes
    )
    assert together == alone
    assert_alike(tmp_path / "1", tmp_path / "2")
    with pytest.raises(DataError, match="3 processes"):
        evaluate(models[1].file("model"), suites, None, size=dataclasses.replace(sizes[1], processes=3))
