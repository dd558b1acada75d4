"""What `status`, `why` and the UI say of artifacts that other code made, by the commands of an edited copy."""

from __future__ import annotations

import json

import pytest

from tests.edited_copy import EDITED, edited_copy, pedigree

CRAWL = "crawl_archives"
FIRST = "kitchen@kitchen-1"
RULE = """
from dataclasses import dataclass

from training.data.filter.rule import CommonSettings, Rule


@dataclass(frozen=True, kw_only=True)
class UnheardSettings(CommonSettings):
    unheard_most: int = 3


RULE = Rule(settings=UnheardSettings)
"""


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    """A copy with a line more in one module, and with a filter rule that no recipe names."""
    copy = edited_copy(tmp_path_factory.mktemp("copy"))
    (copy / "training" / "data" / "filter" / "rules" / "unheard.py").write_text(RULE)
    return copy


def test_status_names_the_modules_of_what_other_code_made_and_calls_it_made(made, copy):
    said = json.loads(pedigree(copy, "status", "kitchen", "--root", str(made), "--json").stdout)["assets"]
    other = {
        asset: cell["other_code"] for asset, cells in said.items() for cell in cells.values() if cell["other_code"]
    }
    assert other == {CRAWL: [EDITED], "extracted_documents": [EDITED]}
    cell = said[CRAWL][FIRST]
    assert (cell["state"], cell["remark"]) == ("made", f"made by other code: {EDITED}")


def test_a_part_that_is_named_is_its_code(copy, kitchen, made):
    rule = copy / "training" / "data" / "filter" / "rules" / "url.py"
    assert "url" in kitchen.filter.rules
    rule.write_text(rule.read_text("utf-8") + "\nUNUSED = 1\n")
    said = json.loads(pedigree(copy, "status", "kitchen", "--root", str(made), "--json").stdout)["assets"]
    other = {asset: cells.get(FIRST, {}).get("other_code") for asset, cells in said.items()}
    assert other["filtered_documents"] == ["training.data.filter.rules.url"]
    assert other["document_scores"] == []  # the rule measures nothing, so what measures does not run it
    rule.write_text(rule.read_text("utf-8").removesuffix("\nUNUSED = 1\n"))


def test_why_names_them_too(made, copy):
    said = pedigree(copy, "why", CRAWL, "kitchen", "--root", str(made)).stdout
    assert said.splitlines()[:2] == [f"{CRAWL} [{FIRST}]: made", f"  made by other code: {EDITED}"]
