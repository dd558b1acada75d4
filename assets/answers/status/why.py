"""`pedigree why`: how an artifact differs, field by field, from what is asked for or from another recipe's artifact."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from assets.state.cell import Cell
from assets.state.chain import CHAIN
from assets.state.compare import compare
from assets.state.reasons import class_lines
from training.contract.identity import made_by
from training.contract.records import RecipeError, differences, no_such
from training.contract.running import reuse
from training.recipe.recipe import Recipe


def explain(asset: str, recipe: Recipe, other: Recipe | None, root: Path) -> dict[str, Any]:
    """The differences of every partition of `asset`, as the JSON answer of `pedigree why`.

    Without `other`, the recipe is compared with the artifact that each partition points to; with `other`, with the
    partition of that recipe for the same snapshot or rung. Raises RecipeError for an unknown asset.
    """
    if asset not in CHAIN:
        raise RecipeError(no_such(f"no asset is called {asset!r}", asset, CHAIN))
    cells = [cell for cell in compare(recipe, root).cells.values() if cell.asset == asset]
    if other is None:
        entries = [
            {
                "partition": cell.partition,
                "state": cell.state,
                "differences": [line for line in (*cell.reasons, cell.way_out, _remark(cell)) if line],
                "other_code": list(cell.other_code),
                "numerics": class_lines(cell.asset, cell.artifact),
                "reused_ranks": reuse.in_words(cell.artifact.record) if cell.artifact else "",
            }
            for cell in cells
        ]
        return {"asset": asset, "recipe": recipe.name, "partitions": entries}
    theirs = {cell.part: cell for cell in compare(other, root).cells.values() if cell.asset == asset}
    entries = []
    for cell in cells:
        match = theirs.get(cell.part)
        if match is None:
            entries.append(
                {"partition": cell.partition, "state": f"{other.name} has no such snapshot", "differences": list[str]()}
            )
            continue
        same = cell.fingerprint == match.fingerprint
        lines = differences(match.settings, cell.settings)
        state = "the same artifact" if same else "differs" if lines else "differs by its inputs"
        entries.append({"partition": cell.partition, "state": state, "differences": lines})
    return {"asset": asset, "recipe": recipe.name, "other": other.name, "partitions": entries}


def _remark(cell: Cell) -> str:
    """The cell's remark as in `pedigree status`, but with the names of all changed modules."""
    if cell.artifact is None or not cell.other_code:
        return cell.remark
    return made_by.in_words(cell.artifact.record, cell.other_code, most=len(cell.other_code))
