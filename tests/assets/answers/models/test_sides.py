"""What `pedigree compare` is given: what is not there, is gone or is damaged is a sentence, and nothing is printed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from assets.state.compare import compare
from assets.state.recipe_folders import SHIPPED, load_recipe
from evaluation.decision.compare import Side, recipe_fields
from tests.assets.fabricate import make_all
from tests.commands import said

RECIPES = Path(__file__).parents[3] / "recipes"
NAME = "kitchen-small"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    root = tmp_path_factory.mktemp("compare") / "root"
    made = make_all(load_recipe(NAME, (RECIPES, SHIPPED)), root).cells["sft_model", NAME].artifact
    (made.path / "recipe.json").write_text(json.dumps({"name": NAME}))  # what a run writes beside an artifact
    return root


@pytest.fixture
def root(made, tmp_path, monkeypatch):
    monkeypatch.setenv("PEDIGREE_RECIPES", str(RECIPES))
    return Path(shutil.copytree(made, tmp_path / "root"))


def model(root, asset="aligned_model"):
    return compare(load_recipe(NAME, (RECIPES, SHIPPED)), root).cells[asset, NAME].artifact


@pytest.fixture
def other(root):
    """Another model under the root: the one before the last, by its fingerprint."""
    return f"sft_model/{model(root, 'sft_model').fingerprint}"


def asked(root, monkeypatch, capsys, *names):
    code, last, errors = said(monkeypatch, capsys, "compare", *names, "--root", str(root), "--json")
    return code, json.loads(last).get("error", ""), errors


def test_what_is_asked_must_be_two_different_things_that_exist(root, monkeypatch, capsys):
    for names, sentence in (
        ((NAME,), "1 given; at least two"),
        ((NAME, NAME), "kitchen-small is given twice"),
        ((NAME, "kitchen-smal"), "did you mean"),
        ((NAME, "kitchen-small/7"), "no model of this name is registered"),
        ((NAME, "kitchen-leak"), "recipe kitchen-leak has made no model"),
    ):
        code, error, errors = asked(root, monkeypatch, capsys, *names)
        assert code == 2 and sentence in error and "Traceback" not in errors


def test_a_model_that_was_removed_or_is_damaged_is_a_sentence(root, other, monkeypatch, capsys):
    record = model(root).path / "artifact.json"
    record.write_bytes(record.read_bytes().replace(b'"seconds"', b'"secondz"'))
    code, error, _ = asked(root, monkeypatch, capsys, other, NAME)
    assert code == 2 and "artifact.json" in error
    shutil.rmtree(record.parent)
    code, error, _ = asked(root, monkeypatch, capsys, other, f"aligned_model/{record.parent.name}")
    assert code == 2 and "0 artifacts under" in error


def test_scores_with_a_changed_file_or_record_are_not_read(root, other, monkeypatch, capsys):
    scores = model(root, "model_scores").path  # of both models
    (scores / "data.txt").write_text("x" * (scores / "data.txt").stat().st_size)
    code, error, _ = asked(root, monkeypatch, capsys, other, NAME)
    assert code == 2 and "data.txt" in error
    (scores / "artifact.json").write_text("{}")
    (scores / "artifact.copy.json").write_text("{}")
    code, error, _ = asked(root, monkeypatch, capsys, other, NAME)
    assert code == 2 and "damaged" in error


def differing(first: Side, second: Side) -> list[str]:
    return recipe_fields(first, second)["differences"]
