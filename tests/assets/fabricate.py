"""Committed artifacts for every cell of a recipe, without running a stage: for tests of what follows from them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from assets.chain import CHAIN
from assets.status import Cell, Comparison, compare, write_reference
from training import artifact
from training.made_by import own_code
from training.recipe import Recipe
from training.stages import modules_of


def make_all(recipe: Recipe, root: Path, *, failing: dict[str, str] | None = None) -> Comparison:
    """Every missing cell made, in order. `failing` maps an asset to the gate that refuses it; what "
    "follows is left out."""
    while True:
        comparison = compare(recipe, root)
        ready = [cell for cell in comparison.to_do() if _is_ready(comparison, cell)]
        if not ready:
            return comparison
        for cell in ready:
            make_one(comparison, cell, (failing or {}).get(cell.asset, ""))


def _is_ready(comparison: Comparison, cell: Cell) -> bool:
    made = all(comparison.cells[key].artifact is not None for key in cell.inputs)
    return made and comparison.refused_by(cell) is None


def make_one(
    comparison: Comparison,
    cell: Cell,
    failing_gate: str = "",
    content: str = "",
    *,
    more: Callable[[Path], Iterable[str]] = lambda folder: (),
    gates: Iterable[str] = (),
) -> None:
    """Commit one artifact as the runner would. `more` writes further files and names them; `gates` passed."""
    folder = artifact.folder_of(comparison.root, cell.asset, cell.fingerprint)
    artifact.write_text(folder / "data.txt", content or cell.fingerprint)
    files = artifact.manifest(folder, ["data.txt", *more(folder)])
    stage = CHAIN[cell.asset].how
    code = own_code(*modules_of(stage, cell.settings))
    inputs = []
    for asset, partition in cell.inputs:
        made = comparison.cells[asset, partition].artifact
        assert made is not None
        where = {"asset": asset, "partition": partition, "path": str(made.path)}
        digests = {"digest": made.digest, "record_digest": made.record_digest}
        inputs.append({**where, "fingerprint": made.fingerprint, **digests})
    record = {
        "asset": cell.asset,
        "partition": cell.partition,
        "fingerprint": cell.fingerprint,
        "digest": artifact.digest_of_files(files),
        "stage_version": stage.version,
        "libraries": stage.library_versions(),
        "settings": cell.settings,
        "inputs": inputs,
        "files": files,
        "gates": [
            {"name": name, "passed": name != failing_gate, "evidence": {"why": "a test"}}
            for name in (*gates, *([failing_gate] if failing_gate else []))
        ],
        "counts": None,
        "metrics": {},
        "seconds": 0.0,
        "code": {"digest": artifact.digest_of(code), "modules": code},
        "code_revision": "",
    }
    artifact.commit_record(folder, record)
    found = artifact.find(folder)
    assert found is not None
    write_reference(comparison.root, found, cell.partition)
