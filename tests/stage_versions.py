"""What each stage's code is, so that a hand-written version cannot lie.

`python -m tests.stage_versions` records the present state in `stage_versions.json`; do that together with a raised
version, or with a line under `equal` in that file saying how it was shown that the outputs are equal.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

from evaluation.stages import STAGES as EVALUATION_STAGES
from training.stages import STAGES as TRAINING_STAGES
from training.stages import Stage

RECORD = Path(__file__).with_name("stage_versions.json")
STAGES: dict[str, Stage] = {**TRAINING_STAGES, **EVALUATION_STAGES}


def state_of(stage: Stage) -> dict[str, Any]:
    """Version, digest of the normalized code of its modules, and its libraries' versions."""
    code = [normalized(module) for module in stage.modules]
    digest = hashlib.sha256("\n".join(code).encode()).hexdigest()[:16]
    return {"version": stage.version, "code": digest, "libraries": stage.library_versions()}


def normalized(module: str) -> str:
    """A module's syntax tree as text: no comments, no docstrings, no layout."""
    spec = importlib.util.find_spec(module)
    assert spec is not None and spec.origin is not None, module
    tree = ast.parse(Path(spec.origin).read_text("utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            _drop_docstring(node)
    return ast.dump(tree)


def _drop_docstring(node: Any) -> None:
    first = node.body[0] if node.body else None
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
        node.body[0] = ast.Pass()


def main() -> None:
    """Record the present state of every stage; what was said under `equal` stays."""
    old = json.loads(RECORD.read_text("utf-8")) if RECORD.exists() else {"equal": []}
    states = {name: state_of(stage) for name, stage in sorted(STAGES.items())}
    RECORD.write_text(json.dumps({"equal": old["equal"], "stages": states}, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    sys.exit(main())
