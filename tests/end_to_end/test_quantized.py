"""The small kitchen's last model in small numbers, made by a run and used by the command line."""

from __future__ import annotations

import json
from io import StringIO

import pytest
from rich.console import Console

from assets.state.compare import compare
from assets.state.recipe_folders import SHIPPED, load_recipe
from evaluation.hub.repository import _of_steps
from evaluation.report.scoreboard import scoreboard
from evaluation.report.scoreboard_print import render
from resources.profile import load_profile
from resources.tracking.registry import CANDIDATE, CHAMPION, Registry
from resources.tracking.reports import Tracking
from tests.assets.fabricate import point_to_shared
from tests.small_kitchen import RECIPES, linked_copy, pedigree
from training.contract.artifact import find

NAME = "quantizing"
MODEL = f"{NAME}@quantized"


def ask(root, quantize):
    """Write the recipe into the root, and point it to what is made already."""
    (root / "recipes").mkdir(exist_ok=True)
    text = f"extends: kitchen-small\nname: {NAME}\nquantize: {quantize}\npromote: {{model_name: {NAME}}}\n"
    (root / "recipes" / f"{NAME}.yaml").write_text(text)
    point_to_shared(load_recipe(NAME, folders=(root / "recipes", RECIPES, SHIPPED)), root)


@pytest.fixture(scope="module")
def quantized(first, untouched, tmp_path_factory):
    """A root in which the quantized model was made and scored."""
    root = linked_copy(untouched, tmp_path_factory.mktemp("quantized") / "root")
    ask(root, "{method: int8, max_drop: 1.0}")
    ran = pedigree("run", NAME, "--until", "quantized_scores", root=root)
    assert ran.code == 0, ran.errors
    return root


def made(quantized, asset):
    (one,) = [one for path in quantized.glob(f"{asset}/*") if (one := find(path)) and one.record["recipe"] == NAME]
    return one


def test_the_scoreboard_shows_it_beside_the_last_model(quantized):
    assets = ("base_model", "model_scores", "quantized_model", "quantized_scores")
    comparison = compare(load_recipe(NAME, folders=(quantized / "recipes", RECIPES, SHIPPED)), quantized)
    records = [(one.path, one.record) for one in (comparison.made(asset, NAME) for asset in assets)]
    console = Console(width=80, record=True, file=StringIO())
    render(scoreboard(records), console)
    shown = console.export_text()
    head, *_ = [line for line in shown.splitlines() if line.startswith("suite ")]
    assert head.split()[:5] == ["suite", "aligned", "int8", "sft", "base"]
    scores = json.loads((made(quantized, "quantized_scores").path / "scores.json").read_text())["quantized"]
    (row,) = [line.split() for line in shown.splitlines() if line.split()[:1] == ["cloze"]]
    assert f"{100 * scores['cloze']['score']:.1f}" in row[2:4]
    assert "In small numbers (int8): " in shown and "MB of weights instead of" in shown
    console = Console(width=80, record=True, file=StringIO())
    render(scoreboard(records[:2]), console)
    assert "int8" not in console.export_text()


def test_commands_take_it_by_its_name(quantized):
    scored = pedigree("evaluate", MODEL, "--suites", "kitchen-small", root=quantized)
    assert scored.code == 0, scored.errors
    of_run = json.loads((made(quantized, "quantized_scores").path / "scores.json").read_text())["quantized"]
    assert {name: one["score"] for name, one in scored.answer["scores"].items()} == {
        name: one["score"] for name, one in of_run.items()
    }
    chat = pedigree("chat", MODEL, "--prompt", "hello", root=quantized)
    assert chat.code == 0, chat.errors
    told = pedigree("compare", "kitchen-small", MODEL, root=quantized)
    assert told.code == 0 and not any("was not scored" in line for line in told.answer["not_compared"]), told.errors
    assert _of_steps(made(quantized, "quantized_model").record) == "the weights of the aligned model by int8"
    other = pedigree("chat", "kitchen-small@quantized", root=quantized)
    assert other.code == 2 and "kitchen-small quantizes no model (quantize.method)" in other.errors


def test_trace_and_attestation_go_through_it_to_the_pages(quantized, tmp_path):
    seen = pedigree("trace", MODEL, "--step", "1", root=quantized).answer
    same = pedigree("trace", "kitchen-small", "--step", "1", root=quantized).answer
    assert {**seen, "model": same["model"]} == same and (seen["training"], seen["trained"]) == ("base_model", True)
    told = pedigree("attest", MODEL, str(tmp_path / "attested"), root=quantized)
    assert told.code == 0, told.errors
    text = (tmp_path / "attested" / "attestation.json").read_text("utf-8")
    assert made(quantized, "quantized_model").digest in text and "crawl_archives" in text


def test_it_is_registered_as_a_version_that_points_to_its_parent(quantized):
    added = pedigree("register", MODEL, root=quantized)
    assert added.code == 0 and added.answer["moved"], added.errors
    registry = Registry(Tracking(load_profile("local").tracker, quantized), NAME)
    version = registry.version(added.answer["version"])
    small = made(quantized, "quantized_model")
    assert version.tags["digest"] == small.digest and version.tags["quantized"] == "int8"
    assert version.tags["parent"] == small.record["notes"]["parent"]["digest"] and "kept" not in version.tags
    assert [registry.holder(alias) for alias in (CHAMPION, CANDIDATE)] == [None] * 2
    traced = pedigree("trace", f"{NAME}/{version.version}", "--step", "1", root=quantized).answer
    assert traced["training"] == "base_model"


def test_a_model_that_lost_too_much_is_refused_and_not_registered(quantized, tmp_path):
    copy = linked_copy(quantized, tmp_path / "root")
    ask(copy, "{method: int8, max_drop: 0.0}")
    ran = pedigree("run", NAME, "--until", "quantized_scores", root=copy)
    assert ran.code == 3 and "max_drop" in ran.errors, ran.errors
    told = pedigree("register", MODEL, root=copy)
    assert told.code == 1 and "its gate max_drop refused it" in told.answer["error"], told.errors
