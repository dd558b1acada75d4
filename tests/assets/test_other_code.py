"""What `status`, `why` and the UI say of artifacts that other code made, by the commands of an edited copy."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from assets.recipe_folders import load_recipe
from tests.assets.fabricate import make_all

PROJECT = Path(__file__).parent.parent.parent
EDITED = "training.data.crawl.crawl"  # of the crawl, and of extraction, which opens what it wrote
CRAWL = "crawl_archives"
FIRST = "kitchen@kitchen-1"


@pytest.fixture(scope="module")
def kitchen():
    return load_recipe("kitchen")


@pytest.fixture(scope="module")
def made(kitchen, tmp_path_factory):
    root = tmp_path_factory.mktemp("root")
    make_all(kitchen, root)
    return root


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    """A copy of the packages, of which one module has one more line of code."""
    place = tmp_path_factory.mktemp("copy")
    for package in ("assets", "resources", "training", "evaluation"):
        shutil.copytree(PROJECT / package, place / package)
    with open(place / f"{EDITED.replace('.', '/')}.py", "a") as module:
        module.write("\nUNUSED = 1\n")
    return place


def pedigree(copy, *arguments):
    """What a command of the copy prints."""
    environment = os.environ | {"PYTHONPATH": str(copy)}
    command = [sys.executable, "-c", "from assets.cli import main; main()", *arguments]
    return subprocess.run(command, env=environment, check=True, capture_output=True, text=True, cwd=copy).stdout


def test_status_names_the_modules_of_what_other_code_made_and_calls_it_made(made, copy):
    said = json.loads(pedigree(copy, "status", "kitchen", "--root", str(made), "--json"))["assets"]
    other = {
        asset: cell["other_code"] for asset, cells in said.items() for cell in cells.values() if cell["other_code"]
    }
    assert other == {CRAWL: [EDITED], "extracted_documents": [EDITED]}
    cell = said[CRAWL][FIRST]
    assert (cell["state"], cell["remark"]) == ("made", f"made by other code: {EDITED}")


def test_why_names_them_too(made, copy):
    said = pedigree(copy, "why", CRAWL, "kitchen", "--root", str(made))
    assert said.splitlines()[:2] == [f"{CRAWL} [{FIRST}]: made", f"  made by other code: {EDITED}"]
