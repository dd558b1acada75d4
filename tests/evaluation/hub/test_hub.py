"""Laying a model out for a hub, from an artifact made by hand. tests/end_to_end/test_chain.py loads a real one."""

from __future__ import annotations

import json

import pytest
import yaml
from huggingface_hub import parse_eval_result_entries

from evaluation.hub.repository import export_model
from tests.evaluation.conftest import commit
from training.contract.artifact import find
from training.contract.job import DataError


@pytest.fixture
def parts(tmp_path):
    for place, text in {
        "model/model/weights": "1 2 3",
        "model/trained.json": "{}",
        "card/README.md": "# A model",
    }.items():
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / place).write_text(text)
    for folder, asset in (("model", "aligned_model"), ("card", "model_card")):
        commit(tmp_path / folder, asset)
    return find(tmp_path / "model"), find(tmp_path / "card")


def test_a_model_is_laid_out_with_its_card_and_its_origin_alone(parts, tmp_path):
    model, card = parts
    names = export_model(model, card, (), ("mine://rows",), tmp_path / "out", scores=None)
    assert sorted(names) == ["LICENCES.md", "README.md", "pedigree.json", "weights"]  # no chat, no exam
    origin = json.loads((tmp_path / "out" / "pedigree.json").read_text())
    assert (origin["digest"], origin["card"]) == (model.digest, card.digest)
    assert "mine://rows" in (tmp_path / "out" / "LICENCES.md").read_text()


def test_a_file_that_is_not_the_records_is_not_laid_out(parts, tmp_path):
    (tmp_path / "model" / "model" / "weights").write_text("1 2 4")
    with pytest.raises(DataError, match="model/weights: "):
        export_model(*parts, (), (), tmp_path / "out", scores=None)


SUITES = [
    {"name": "own", "uri": "data://own/exam.jsonl", "kind": "multiple_choice", "harness": "no_such_package:it"},
    {"name": "gpqa", "uri": "hf://datasets/Idavidrein/gpqa/gpqa_diamond.csv", "kind": "multiple_choice"},
]


@pytest.fixture
def scores(parts, tmp_path):
    """Scores of the model in `parts` and of another one, in the files of the stage `evaluate`."""
    model, _ = parts
    result = {"score": 0.25, "interval": [0.1, 0.5], "n": 16, "metric": "acc"}
    asked = {"num_fewshot": 0, "lm_eval": "0.4.13", "task_hash": "ab12"}
    names = [one["name"] for one in SUITES]
    harness = {
        name: {
            "digest": digest,
            "suites": dict.fromkeys(names, asked) | {"own": {"harness": "mine:it", "code": "c0de"}},
        }
        for name, digest in (("sft", "another"), ("aligned", model.digest))
    }
    values = {"sft": dict.fromkeys(names, result | {"score": 0.5}), "aligned": dict.fromkeys(names, result)}
    (tmp_path / "scores").mkdir()
    (tmp_path / "scores" / "harness.json").write_text(json.dumps(harness))
    (tmp_path / "scores" / "scores.json").write_text(json.dumps(values))
    commit(tmp_path / "scores", "model_scores", settings={"evaluation": {"suites": SUITES}})
    return find(tmp_path / "scores")


def test_the_scores_of_this_model_alone_are_laid_out_as_the_hub_reads_them(parts, scores, tmp_path):
    model, card = parts
    names = export_model(model, card, (), (), tmp_path / "out", scores=scores)
    assert {name for name in names if name.startswith(".eval_results/")} == {
        ".eval_results/own.yaml",
        ".eval_results/gpqa.yaml",
    }
    read = {
        entry.task_id: entry
        for file in (tmp_path / "out" / ".eval_results").iterdir()
        for entry in parse_eval_result_entries(yaml.safe_load(file.read_text()))
    }
    assert {name: entry.dataset_id for name, entry in read.items()} == {
        "own": "data://own/exam.jsonl",
        "gpqa": "Idavidrein/gpqa",
    }
    assert {entry.value for entry in read.values()} == {0.25}
    assert "harness mine:it, code c0de" in read["own"].notes and "lm-eval 0.4.13, task ab12" in read["gpqa"].notes
    assert all(model.digest in entry.notes and scores.digest in entry.notes for entry in read.values())


def test_a_model_that_took_no_exam_has_no_results(parts, scores, tmp_path):
    (tmp_path / "model" / "model" / "weights").write_text("1 2 5")
    commit(tmp_path / "model", "aligned_model")
    names = export_model(find(tmp_path / "model"), parts[1], (), (), tmp_path / "out", scores=scores)
    assert not any(name.startswith(".eval_results/") for name in names)
