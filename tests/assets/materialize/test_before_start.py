"""A finished training is not repeated because the code is of another version."""

from __future__ import annotations

import json
import shutil
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from assets.graph.pipeline import Pipeline
from assets.materialize.before_start import Repeats
from assets.materialize.causes import StageFailed
from assets.materialize.make import make
from assets.state.chain import CHAIN, ancestors
from assets.state.compare import compare
from assets.state.recipe_folders import load_recipe
from tests.assets.fabricate import make_all, make_one
from tests.small_kitchen import pedigree
from training.contract import artifact
from training.contract.files.checked import ARTIFACT_FILE
from training.contract.job import DataError
from training.contract.running.phase import RANKS_FOLDER

MODEL = ("base_model", "own")
UNCHANGED = "extends: kitchen\nname: own\n"
CORPUS = ancestors("base_model")


def as_earlier(monkeypatch, asset: str) -> None:
    """Declare a stage as the code before did, with another version."""
    declared = CHAIN[asset]
    monkeypatch.setitem(CHAIN, asset, replace(declared, stage=replace(declared.stage, version="earlier")))


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A recipe, and the root in which earlier code, whose extraction was another one, made all of it."""
    folder = tmp_path_factory.mktemp("earlier")
    (folder / "own.yaml").write_text(UNCHANGED)
    with pytest.MonkeyPatch.context() as monkeypatch:
        as_earlier(monkeypatch, "extracted_documents")
        make_all(load_recipe(str(folder / "own.yaml")), folder / "root")
    return folder


@pytest.fixture
def made(whole, tmp_path):
    shutil.copytree(whole, tmp_path / "copy", symlinks=True)
    return tmp_path / "copy"


def asked(made, recipe: str = UNCHANGED):
    (made / "own.yaml").write_text(recipe)
    return compare(load_recipe(str(made / "own.yaml")), made / "root")


def is_ready(cell, comparison) -> bool:
    return all(comparison.cells[key].artifact for key in cell.waits_for)


def test_a_run_refuses_to_repeat_a_training_that_nobody_asked_for(made):
    ran = pedigree("run", str(made / "own.yaml"), root=made / "root")
    assert ran.code == 2 and "Traceback" not in ran.errors and ran.answer["ok"] is False, ran.errors
    assert "base_model [own] is trained" in ran.answer["error"]
    assert ran.answer["error"].count("extracted_documents: stage_version: 'earlier' → ") == 1  # of two snapshots
    assert "--start-anew" in ran.answer["error"]
    assert asked(made).cells["extracted_documents", "own@kitchen-1"].artifact is None  # nothing was begun


def test_the_ui_refuses_it_too_when_the_corpus_was_made_again(made):
    comparison = asked(made)
    while ready := [cell for cell in comparison.to_do() if cell.asset in CORPUS and is_ready(cell, comparison)]:
        for cell in ready:
            make_one(comparison, cell)
        comparison = asked(made)
    assert comparison.cells["token_shards", "own@kitchen-1"].state == "made"
    cell = comparison.cells[MODEL]
    anybody = {"run_id": "run", "launch": "launch", "stands_in_the_way": lambda recipe, asset: ""}
    with pytest.raises(StageFailed, match="trained again: no field") as failed:
        make(cell, comparison, Pipeline(root=str(made / "root")), SimpleNamespace(starts_anew=False, **anybody))
    assert failed.value.exit_code == 2


@pytest.mark.parametrize(
    "recipe",
    [
        UNCHANGED + "filter: {gopher_min_words: 61}\n",  # of an ancestor
        UNCHANGED + "pretrain: {learning_rate: 0.00123}\n",  # of the training itself
        UNCHANGED + "extract: {extractor: trafilatura}\n",  # of the stage that is another one
    ],
)
def test_what_a_person_changed_is_trained_without_a_word(made, recipe):
    comparison = asked(made, recipe)
    assert comparison.cells[MODEL].state == "outdated"
    Repeats(comparison).check(comparison.cells[MODEL])


def test_a_change_that_is_in_no_fingerprint_asks_for_nothing(made):
    comparison = asked(made, UNCHANGED + "pretrain: {watch: {every: 7}}\n")
    assert comparison.cells[MODEL].settings["watch"]["every"] == 7
    assert all(" is another one" in reason for reason in comparison.cells[MODEL].reasons)
    with pytest.raises(DataError, match="no field of the recipe is known to differ"):
        Repeats(comparison).check(comparison.cells[MODEL])


def test_the_version_that_made_it_sees_nothing_to_do(made, monkeypatch):
    as_earlier(monkeypatch, "extracted_documents")
    assert asked(made).cells[MODEL].state == "made"


def folders(made, asset: str) -> list[Path]:
    references = (made / "root" / "refs" / asset).iterdir()
    return [made / "root" / asset / json.loads(reference.read_text())["fingerprint"] for reference in references]


def test_of_ancestors_that_are_gone_nobody_can_tell(made):
    for folder in folders(made, "extracted_documents"):  # with them goes the version that tells of the code
        shutil.rmtree(folder)
    comparison = asked(made)
    gone = "no field of the recipe is known to differ; whether a field differs cannot be told .*: extracted_documents "
    with pytest.raises(DataError, match=gone):
        Repeats(comparison).check(comparison.cells[MODEL])
    comparison = asked(made, UNCHANGED + "pretrain: {learning_rate: 0.00123}\n")
    Repeats(comparison).check(comparison.cells[MODEL])


def cost(made, *hours: float) -> None:
    """Write into the records of the extractions how many processor hours they took."""
    for folder, each in zip(folders(made, "extracted_documents"), hours, strict=True):
        record = json.loads((folder / ARTIFACT_FILE).read_text())
        artifact.commit_record(folder, record | {"cost": {"cpu_seconds": each * 3600.0}})


@pytest.mark.parametrize(
    ("hours", "said"),
    [
        ((11, 12), ""),
        ((25, 0), r"\] took 25 processor hours and would be made again: no field"),
        ((12, 13), r"\] is one of 2 artifacts that took 25 processor hours and would be made again: no field"),
    ],
)
def test_data_that_took_long_together_is_not_made_again_unasked(made, hours, said):
    cost(made, *hours)
    comparison = asked(made)
    cells = [comparison.cells["extracted_documents", f"own@kitchen-{number}"] for number in (1, 2)]
    assert [cell.state for cell in cells] == ["outdated", "outdated"]
    for cell in cells:
        with pytest.raises(DataError, match=said) if said else nullcontext():
            Repeats(comparison).check(cell)
    if said:
        own = artifact.folder_of(comparison.root, cells[0].asset, cells[0].fingerprint)
        artifact.write_text(own / RANKS_FOLDER / "00000.json", "{}")  # begun, which only a person could allow
        Repeats(comparison).check(cells[0])
        comparison = asked(made, UNCHANGED + "extract: {extractor: trafilatura}\n")
        Repeats(comparison).check(comparison.cells[cells[1].key])
