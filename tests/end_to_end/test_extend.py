"""Parts from outside the checkout: they are used by name, identified by their code, and told when they fail."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import yaml

from tests.small_kitchen import pedigree

EXAMPLES = Path(__file__).parents[2] / "examples" / "extend"
RUN = ("run", "--until", "filtered_documents", "--snapshots", "kitchen-1")
CELL = "own-rules@kitchen-1"


@pytest.fixture
def folder(tmp_path):
    """A user's folder with the example's module and recipe, made small."""
    shutil.copy(EXAMPLES / "long_lines.py", tmp_path)
    recipe = yaml.safe_load((EXAMPLES / "rules.yaml").read_text()) | {"extends": "kitchen-small"}
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(recipe))
    return tmp_path


def run(folder, *command: str):
    path = f"{Path(__file__).parents[2]}:{folder}"
    return pedigree(command[0], str(folder / "rules.yaml"), *command[1:], root=folder / "root", PYTHONPATH=path)


def test_a_rule_from_outside_goes_through_the_chain_and_its_code_counts(folder):
    ran = run(folder, *RUN)
    assert ran.code == 0, ran.errors
    counts = ran.answer["assets"]["filtered_documents"][CELL]["counts"]
    dropped = counts["dropped"]
    assert dropped["long_lines:too_long"] > 0 and dropped["short_documents:gopher_short_doc"] > 0, dropped
    assert counts["in"] == counts["kept"] + sum(dropped.values())

    module = folder / "long_lines.py"
    module.write_text(module.read_text().replace("if line.strip()", "if line"))
    status = run(folder, "status").answer["assets"]
    cells = {asset: status[asset][CELL] for asset in status if CELL in status[asset]}
    outdated = {asset: cell for asset, cell in cells.items() if cell["state"] == "outdated"}
    assert tuple(outdated) == ("document_scores", "filtered_documents")
    assert all("parts.long_lines.code" in json.dumps(cell) for cell in outdated.values())

    module.write_text(module.read_text().replace("return sum", "assert False, 'lost'\n    return sum"))
    failed = run(folder, *RUN)
    assert failed.code == 2 and "Traceback" not in failed.errors, failed.errors
    assert "filter rule long_lines (long_lines:rule) failed at document" in failed.answer["error"]
