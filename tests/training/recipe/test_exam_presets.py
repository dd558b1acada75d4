"""`evaluation.preset` names suites, of which those are taken that can be scored here."""

from __future__ import annotations

import gzip
import json
from itertools import islice
from pathlib import Path

import pytest

from assets.answers.models.outside import suites_by_preset, suites_of
from assets.state.recipe_folders import SHIPPED, load_recipe
from training.contract.records import RecipeError
from training.data.exams import task_checks
from training.data.sources import read_rows
from training.recipe import exam_presets
from training.recipe.exam_presets import PRESETS, left_out, suites_at_hand, told_left_out

HERE = ("mmlu_test", "gsm8k_test", "truthfulqa")


@pytest.fixture
def some_rows(tmp_path, monkeypatch) -> Path:
    """A folder of data with a few rows of three files."""
    folder = tmp_path / "data" / "benchmarks"
    folder.mkdir(parents=True)
    for name in HERE:
        rows = list(islice(read_rows(f"data://benchmarks/{name}.jsonl.gz"), 4))
        with gzip.open(folder / f"{name}.jsonl.gz", "wt") as stream:
            stream.writelines(json.dumps(row) + "\n" for row in rows)
    monkeypatch.setenv("PEDIGREE_DATA", str(folder.parent))
    return folder


@pytest.mark.data
def test_every_suite_of_the_presets_is_a_task_that_its_rows_fit():
    for name in PRESETS["full"]:
        if (why := left_out("full").get(name, "")) == "":
            (suite,) = (one for one in suites_by_preset("full")[0].suites if one.name == name)
            task_checks.check_suite(suite)
        else:
            assert name in ("ifeval", "mbpp", "humaneval"), why


@pytest.mark.data
def test_a_suite_without_rows_or_packages_is_left_out_with_the_reason(some_rows, monkeypatch):
    found = task_checks.importlib.util.find_spec
    lacking = lambda name, of=None: None if name == "langdetect" else found(name, of)  # noqa: E731
    monkeypatch.setattr(task_checks.importlib.util, "find_spec", lacking)
    exam_presets._why_left_out.cache_clear()
    assert [one["name"] for one in suites_at_hand("chat")] == ["mmlu", "truthfulqa_mc1", "gsm8k_cot"]
    assert left_out("chat")["triviaqa"] == "data://benchmarks/triviaqa_sm_sub.jsonl.gz is not there"
    (some_rows / "ifeval.jsonl.gz").write_bytes(gzip.compress(b"{}\n"))
    exam_presets._why_left_out.cache_clear()
    said = told_left_out("chat")
    assert said.startswith("evaluation.preset: chat: not scored: triviaqa: data://") and "pip install" in said
    assert told_left_out("none") == "" and "no suite can be scored here: humaneval: data" in refusal("code")


def refusal(preset: str) -> str:
    with pytest.raises(RecipeError) as refused:
        suites_at_hand(preset)
    return str(refused.value)


@pytest.mark.data
def test_a_recipe_names_its_suites_by_one_line_and_may_replace_some(some_rows, tmp_path):
    own = {"name": "mmlu", "kind": "generate", "uri": "own.jsonl"}
    recipes = {"one": {"preset": "chat"}, "mine": {"preset": "chat", "suites": [own]}}
    for name, evaluation in recipes.items():
        text = {"extends": "kitchen", "name": name, "evaluation": evaluation}
        (tmp_path / f"{name}.yaml").write_text(json.dumps(text))
    one, mine = (load_recipe(name, (tmp_path, SHIPPED)).evaluation for name in recipes)
    assert [suite.name for suite in one.suites] == ["mmlu", "truthfulqa_mc1", "gsm8k_cot"] and one.preset == "chat"
    assert [suite.name for suite in mine.suites] == ["truthfulqa_mc1", "gsm8k_cot", "mmlu"]
    (tmp_path / "later.yaml").write_text(
        json.dumps({"extends": "one", "name": "later", "evaluation": {"suites": [own]}})
    )
    later = load_recipe("later", (tmp_path, SHIPPED)).evaluation
    assert later.preset == "none" and [suite.uri for suite in later.suites] == ["own.jsonl"]
    (tmp_path / "exams.yaml").write_text("preset: chat\n")
    assert suites_of(str(tmp_path / "exams.yaml"), tmp_path)[0].suites == one.suites
    (tmp_path / "wrong.yaml").write_text(
        json.dumps({"extends": "kitchen", "name": "w", "evaluation": {"preset": "all"}})
    )
    with pytest.raises(RecipeError, match=r"evaluation\.preset.*all"):
        load_recipe("wrong", (tmp_path, SHIPPED))
