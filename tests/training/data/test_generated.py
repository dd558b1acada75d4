"""A generated source writes files, and nothing but the one place that resolves sources knows its code."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from training.contract.identity.generated_sources import SOURCES
from training.contract.records import RecipeError
from training.data.generated import opened, source_of
from training.data.sources import read_rows

CHECKOUT = Path(__file__).parents[3]
PACKAGES = ("assets", "resources", "training", "evaluation", "benchmarks")
KITCHEN = "training.data.kitchen"
# A recipe has a section of settings for each source; the registry names the module that writes the files.
ALLOWED = {
    "training/recipe/recipe.py": {f"{KITCHEN}.settings"},
    "training/contract/identity/generated_sources.py": {f"{KITCHEN}.source"},
}


def modules_named(file: Path) -> set[str]:
    """The modules of the kitchen that a file imports, or that a text of its code names whole."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and " " not in node.value:
            found.add(node.value)
    modules = {f"{KITCHEN}.{path.stem}" for path in (CHECKOUT / "training/data/kitchen").glob("*.py")} | {KITCHEN}
    return found & modules


def test_no_module_outside_the_kitchen_knows_it():
    files = [file for package in PACKAGES for file in sorted((CHECKOUT / package).rglob("*.py"))]
    outside = [file for file in files if CHECKOUT / "training/data/kitchen" not in file.parents]
    named = {str(file.relative_to(CHECKOUT)): modules for file in outside if (modules := modules_named(file))}
    assert named == ALLOWED


def test_a_file_that_a_source_does_not_write_is_an_error_that_lists_those_it_does():
    with pytest.raises(
        RecipeError, match=r"kitchen://nothing: there is no such data; there are cloze, sums, questions, chat"
    ):
        list(read_rows("kitchen://nothing", settings={"kitchen": {}}))


def test_a_source_writes_lines_of_bytes_and_only_for_its_own_scheme():
    with opened("kitchen://abuse", {"kitchen": {}}) as stream:
        lines = stream.read().splitlines()
    assert len(lines) == 100 and all(line.startswith(b'{"id": "abuse/') for line in lines), lines[0]
    assert source_of("kitchen://abuse") is SOURCES["kitchen"]
    assert source_of("kitchen/abuse.jsonl") is None and source_of("data://kitchen/abuse.jsonl") is None
