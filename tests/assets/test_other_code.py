"""What `status`, `why` and the UI say of artifacts that other code made, by the commands of an edited copy."""

from __future__ import annotations

import json

import pytest

from assets.recipe_folders import load_recipe
from tests.assets.fabricate import make_all
from tests.edited_copy import EDITED, edited_copy, pedigree

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
    return edited_copy(tmp_path_factory.mktemp("copy"))


def test_status_names_the_modules_of_what_other_code_made_and_calls_it_made(made, copy):
    said = json.loads(pedigree(copy, "status", "kitchen", "--root", str(made), "--json").stdout)["assets"]
    other = {
        asset: cell["other_code"] for asset, cells in said.items() for cell in cells.values() if cell["other_code"]
    }
    assert other == {CRAWL: [EDITED], "extracted_documents": [EDITED]}
    cell = said[CRAWL][FIRST]
    assert (cell["state"], cell["remark"]) == ("made", f"made by other code: {EDITED}")


def test_why_names_them_too(made, copy):
    said = pedigree(copy, "why", CRAWL, "kitchen", "--root", str(made)).stdout
    assert said.splitlines()[:2] == [f"{CRAWL} [{FIRST}]: made", f"  made by other code: {EDITED}"]
