"""Committed artifacts for every cell of a recipe, without running a stage: for tests of what follows from them."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from assets.state.asked_cell import seed_of
from assets.state.cell import Cell, Comparison
from assets.state.chain import CHAIN
from assets.state.compare import compare
from assets.state.references import write_reference
from training.contract import artifact
from training.contract.artifact import Artifact
from training.contract.identity.closure import current_code
from training.contract.progress import METRICS_FILE
from training.contract.stage import modules_of
from training.recipe.recipe import Recipe


def make_all(recipe: Recipe, root: Path, *, failing: dict[str, str] | None = None) -> Comparison:
    """Make every missing cell, in order.

    `failing` maps an asset to the gates that refuse it, divided by blanks; the assets that follow are left out.
    """

    def make(comparison: Comparison, cell: Cell) -> Artifact:
        return make_one(comparison, cell, (failing or {}).get(cell.asset, ""))

    return make_each(recipe, root, make)


def make_each(
    recipe: Recipe,
    root: Path,
    make: Callable[[Comparison, Cell], Artifact],
    *,
    leave: Callable[[Cell], bool] = lambda cell: False,
) -> Comparison:
    """Let `make` make every cell that is not done, in order, but those to `leave` and those that wait for them."""
    while True:
        comparison, is_over = compare(recipe, root), True
        for cell in comparison.to_do():
            if not leave(cell) and _is_ready(comparison, cell):
                comparison.cells[cell.key] = replace(cell, state="made", artifact=make(comparison, cell))
                is_over = False
        if is_over:
            return comparison


def _is_ready(comparison: Comparison, cell: Cell) -> bool:
    made = all(comparison.cells[key].artifact is not None for key in cell.waits_for)
    return made and cell.state != "unavailable" and comparison.refused_by(cell) is None


def make_one(
    comparison: Comparison,
    cell: Cell,
    failing_gates: str = "",
    content: str = "",
    *,
    more: Callable[[Path], Iterable[str]] = lambda folder: (),
    gates: Iterable[str] = (),
    metrics: Mapping[str, float] | None = None,
) -> Artifact:
    """Commit one artifact as the runner would. `more` writes further files and names them; `gates` passed."""
    folder = artifact.folder_of(comparison.root, cell.asset, cell.fingerprint)
    artifact.write_text(folder / "data.txt", content or cell.fingerprint)
    files = artifact.manifest(folder, ["data.txt", *more(folder)])
    stage = CHAIN[cell.asset].stage
    code = current_code().digests(*modules_of(stage, cell.settings))
    record = {
        "asset": cell.asset,
        "stage": stage.name,
        "recipe": comparison.recipe.name,
        "partition": cell.partition,
        "fingerprint": cell.fingerprint,
        "seed": seed_of(cell.settings),
        "digest": artifact.digest_of_files(files),
        "stage_version": stage.version,
        "libraries": stage.library_versions(),
        "settings": cell.settings,
        "inputs": _inputs(comparison, cell.inputs),
        "guards": _inputs(comparison, [key for key in cell.guards if comparison.cells[key].artifact is not None]),
        "files": files,
        "gates": [
            {"name": name, "passed": name not in failing_gates.split(), "evidence": {"why": "a test"}}
            for name in (*gates, *failing_gates.split())
        ],
        "counts": {"in": 1, "kept": 1, "dropped": {}, "quarantined": {}} if metrics else None,
        "metrics": dict(metrics or {}),
        "notes": {},
        "cost": {},
        "seconds": 0.0,
        "code": {"digest": artifact.digest_of(code), "modules": code},
        "code_revision": "",
    }
    return _commit(comparison, cell, record)


def _inputs(comparison: Comparison, keys: Iterable[tuple[str, str]]) -> list[dict[str, Any]]:
    inputs = []
    for asset, partition in keys:
        made = comparison.cells[asset, partition].artifact
        assert made is not None
        where = {"asset": asset, "partition": partition, "path": str(made.path)}
        digests = {"digest": made.digest, "record_digest": made.record_digest}
        inputs.append({**where, "fingerprint": made.fingerprint, **digests})
    return inputs


def _commit(comparison: Comparison, cell: Cell, record: dict[str, Any]) -> Artifact:
    folder = artifact.folder_of(comparison.root, cell.asset, cell.fingerprint)
    artifact.commit_record(folder, record)
    found = artifact.find(folder)
    assert found is not None
    write_reference(comparison.root, found, cell.partition)
    return found


def point_to_shared(recipe: Recipe, root: Path) -> Comparison:
    """Let the partitions of `recipe` point to all artifacts that it shares with recipes that were run.

    Reuse does the same, but a run would take a step of Dagster for each.
    """
    comparison = compare(recipe, root)
    for cell in comparison.cells.values():
        if cell.artifact is not None:
            write_reference(root, cell.artifact, cell.partition)
    return comparison


def stand_in_models(recipe: Recipe, like: Recipe, root: Path) -> None:
    """Commit copies of the models and scores of `like` as those of `recipe`, whose data is made.

    Files and numbers are real, and nothing is trained. Each copy has a file of its own, so that it is another artifact.
    """
    from resources.tracking.reports import Tracking

    tracking = Tracking("", root, in_background=False)  # the next command sends it
    for asset in ("base_model", "sft_model", "reward_model", "aligned_model", "model_scores", "alignment_rewards"):
        comparison = compare(recipe, root)
        cell = comparison.cells[asset, recipe.name]
        stood_for = compare(like, root).cells[asset, like.name].artifact
        assert stood_for is not None
        folder = artifact.folder_of(root, asset, cell.fingerprint)
        names = [entry["path"] for entry in stood_for.record["files"]]
        for name in (*names, *(path.name for path in stood_for.path.glob(METRICS_FILE))):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(stood_for.path / name, folder / name)
        artifact.write_text(folder / "stands_in.txt", cell.fingerprint)
        files = artifact.manifest(folder, [*names, "stands_in.txt"])
        own = {"partition": cell.partition, "recipe": recipe.name, "fingerprint": cell.fingerprint}
        made = {"settings": cell.settings, "inputs": _inputs(comparison, cell.inputs), "files": files}
        digest = artifact.digest_of_files(files)
        committed = _commit(comparison, cell, stood_for.record | own | made | {"digest": digest})
        where = {"asset": asset, "partition": cell.partition, "fingerprint": cell.fingerprint}
        tags = {"recipe_digest": "d", "digest": digest, "record_digest": committed.record_digest}
        tracking.stage_run("stood-in", **where, tags=tags).finish("FINISHED")
