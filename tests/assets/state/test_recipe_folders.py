"""Which recipe a name means: the root's own first, then the added folders, then what is shipped."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from assets.state.recipe_folders import SHIPPED, load_recipe, recipe_folders
from training.contract.job import DataError


def test_a_recipe_of_the_root_goes_before_an_added_one_and_that_before_a_shipped_one(tmp_path, monkeypatch):
    root, first, second = tmp_path / "root", tmp_path / "first", tmp_path / "second"
    for folder, names in ((root / "recipes", "a"), (first, "ab"), (second, "abc")):
        folder.mkdir(parents=True)
        for name in (*names, "webdocs") if folder == second else names:
            (folder / f"{name}.yaml").write_text(f"extends: kitchen\nname: {name}\ndescription: {folder.name}\n")
    monkeypatch.setenv("PEDIGREE_RECIPES", f"{first}{os.pathsep}{second}")
    said = {name: load_recipe(name, recipe_folders(root)).description for name in ("a", "b", "c", "webdocs")}
    assert said == {"a": "recipes", "b": "first", "c": "second", "webdocs": "second"}
    assert load_recipe("a").description == "first"  # without a root
    monkeypatch.delenv("PEDIGREE_RECIPES")
    assert tuple(recipe_folders()) == (SHIPPED,)


def test_folders_of_which_the_second_begins_with_a_slash_are_no_address(monkeypatch):
    monkeypatch.setenv("PEDIGREE_RECIPES", "own:/team/recipes")
    assert recipe_folders().own == (Path("own"), Path("/team/recipes"))
    for address in ("s3://b/x", "own:s3://b/x:/team"):
        monkeypatch.setenv("PEDIGREE_RECIPES", address)
        with pytest.raises(DataError, match="PEDIGREE_RECIPES: s3://b/x"):
            recipe_folders()
