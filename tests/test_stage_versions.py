from __future__ import annotations

import ast
import importlib.util
import json
from pathlib import Path

import pytest

from tests.stage_versions import RECORD, STAGES, normalized, state_of

HOW = (
    "its code or a library moved. Raise its version in training/stages.py or evaluation/stages.py (old artifacts become"
    " outdated), or show that outputs are equal and say how under `equal` in tests/stage_versions.json;"
    " then run python -m tests.stage_versions"
)


@pytest.mark.parametrize("name", sorted(STAGES))
def test_a_stage_that_moved_has_a_new_version(name):
    assert state_of(STAGES[name]) == json.loads(RECORD.read_text("utf-8"))["stages"][name], f"stage {name}: {HOW}"


def test_comments_and_docstrings_are_not_code(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "module_one.py").write_text('"""A."""\n\ndef f():\n    """B."""\n    return 1  # c\n')
    (tmp_path / "module_two.py").write_text('"""Other."""\ndef f():\n    """Words."""\n\n    return 1\n')
    (tmp_path / "module_three.py").write_text('"""A."""\n\ndef f():\n    """B."""\n    return 2\n')
    assert normalized("module_one") == normalized("module_two") != normalized("module_three")


@pytest.mark.parametrize("name", sorted(STAGES))
def test_a_stage_is_spread_over_an_array_if_and_only_if_it_works_in_ranks(name):
    tree = ast.parse(Path(importlib.util.find_spec(STAGES[name].module).origin).read_text("utf-8"))
    functions = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    assert STAGES[name].in_ranks == ("num_ranks" in functions)
    assert ("run" in functions) != ("num_ranks" in functions)
