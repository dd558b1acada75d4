"""What recipe and data decide is said before the money: when the recipe is read, or before the first training."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from assets.materialize.before_start import check_facts
from assets.state.chain import CHAIN, trains
from assets.state.compare import compare
from assets.state.recipe_folders import load_recipe
from tests.assets.fabricate import make_all, make_one
from tests.commands import said
from training.contract.job import DataError

LADDER = Path(__file__).parents[3] / "examples" / "recipes" / "kitchen-ladder.yaml"
LONG = LADDER.with_name("kitchen-long-context.yaml")


def variant(tmp_path: Path, text: str, base: str = "kitchen") -> str:
    path = tmp_path / "variant.yaml"
    path.write_text(f"extends: {base}\nname: variant\n{text}\n")
    return str(path)


def copied(tmp_path: Path, base: Path, text: str) -> str:
    (tmp_path / base.name).write_text(base.read_text("utf-8"))
    return variant(tmp_path, text, base.stem)


def refusal(monkeypatch, capsys, recipe: str, root: Path, *more: str) -> str:
    """What `run` says; it must be a mistake in the input, found before the root was made."""
    code, answer, _ = said(monkeypatch, capsys, "run", recipe, "--root", str(root), "--json", *more)
    assert code == 2
    return json.loads(answer)["error"]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("sft: {chat_template: chatml}", "sft.chat_template: 'chatml' is not one of 'pedigree'"),
        ("mixture: {weights: {wbe: 1.0}}", "mixture.weights: no source is called 'wbe'"),
        ("mixture: {source_epochs: {books: 2.0}}", "mixture.source_epochs: no source is called 'books'"),
        ("mixture: {weights: {web: 1}, phases: [{start: 0.5, weights: {wen: 1}}]}", "weights of web and wen"),
        ("shards: {buckets: perplexity}\nmixture: {weights: {web/top: 1}}", "no source is called 'web/top'"),
        ("preferences: {held_out_fraction: 0.0}", "preferences.held_out_fraction=0;"),
        ("sft: {trl: {learning_rate: 1}}", "sft.trl"),
    ],
)
def test_a_name_that_nothing_has_is_refused_when_the_recipe_is_read(monkeypatch, capsys, tmp_path, text, sentence):
    assert sentence in refusal(monkeypatch, capsys, variant(tmp_path, text), tmp_path / "root")
    assert not (tmp_path / "root").exists()


@pytest.mark.parametrize(("base", "section"), [(LADDER, "ladder"), (LONG, "long_context")])
def test_a_part_that_needs_held_out_text_is_refused_without_it(monkeypatch, capsys, tmp_path, base, section):
    recipe = copied(tmp_path, base, "mixture: {held_out_fraction: 0.0}")
    error = refusal(monkeypatch, capsys, recipe, tmp_path / "root")
    assert f"mixture.held_out_fraction: 0; {section} needs held-out text" in error and not (tmp_path / "root").exists()


def test_the_same_without_that_part_is_a_recipe(tmp_path):
    assert load_recipe(variant(tmp_path, "mixture: {held_out_fraction: 0.0}")).mixture.held_out_fraction == 0
    weights = {"web/head": 1.0, "web/unscored": 0.0}
    text = f"shards: {{buckets: perplexity}}\nmixture: {{weights: {json.dumps(weights)}}}"
    assert load_recipe(variant(tmp_path, text)).mixture.weights == weights


def test_a_suite_that_cannot_be_made_is_refused_when_the_recipe_is_read(monkeypatch, capsys, tmp_path):
    task = tmp_path / "own.yaml"
    task.write_text(
        "output_type: generate_until\ndoc_to_text: '{{question}}'\ndoc_to_target: '{{answer}}'\nnum_fewshot: 3\n"
    )
    rows = tmp_path / "rows.jsonl"
    rows.write_text(json.dumps({"question": "What is one and one?", "answer": "two"}) + "\n")
    suite = f"{{name: own, kind: generate, uri: {rows}, task_file: {task}}}"
    recipe = variant(tmp_path, f"evaluation: {{suites: [{suite}]}}\npromote: {{min_scores: {{}}}}")
    assert "3 examples in its prompt; name rows in fewshot_uri" in refusal(monkeypatch, capsys, recipe, tmp_path / "r")


# What the data decide


def made_to(recipe, root, *assets: str, metrics=None):
    """Make the cells of these assets and all before them, as far as no stage is needed for it."""
    wanted = {cell.asset for asset in assets for cell in compare(recipe, root).up_to(asset)}
    while True:
        comparison = compare(recipe, root)
        ready = [
            cell
            for cell in comparison.to_do()
            if cell.asset in wanted and all(comparison.cells[key].artifact for key in cell.waits_for)
        ]
        if not ready:
            return comparison
        for cell in ready:
            make_one(comparison, cell, metrics=(metrics or {}).get(cell.asset, {}))


@pytest.mark.parametrize(
    ("base", "plan", "section"), [(LADDER, "ladder_plan", "ladder"), (LONG, "long_context_plan", "long_context")]
)
def test_a_plan_that_holds_nothing_out_ends_a_run_before_its_trainings(
    monkeypatch, capsys, tmp_path, base, plan, section
):
    recipe, root = load_recipe(str(base)), tmp_path / "root"
    made_to(recipe, root, plan, metrics={plan: {"held_out_tokens": 0.0}})
    error = refusal(monkeypatch, capsys, str(base), root)
    assert error.startswith(f"{section}: no held-out text; mixture.held_out_fraction=")
    assert "above 0" not in error and "make it larger or add documents" in error
    assert not any(list((root / name).glob("*")) for name, one in CHAIN.items() if trains(one))


def test_a_plan_with_held_out_text_is_none(tmp_path):
    recipe = load_recipe(str(LADDER))
    check_facts(made_to(recipe, tmp_path, "ladder_plan", metrics={"ladder_plan": {"held_out_tokens": 9.0}}))


def test_nothing_is_asked_of_what_is_damaged_or_half_made(kitchen, tmp_path):
    made_to(kitchen, tmp_path, "tokenizer")  # no preferences yet
    check_facts(compare(kitchen, tmp_path))
    make_all(kitchen, tmp_path / "whole")
    check_facts(compare(kitchen, tmp_path / "whole"))  # nothing is left to be made, so no file is opened
    with pytest.raises((DataError, OSError)):
        (tmp_path / "whole" / "refs" / "reward_model" / "kitchen.json").unlink()
        for folder in (tmp_path / "whole" / "reward_model").iterdir():
            folder.rename(tmp_path / "gone")
        check_facts(compare(kitchen, tmp_path / "whole"))
