"""Which artifacts `pedigree run --exact` makes again.

They are artifacts that were made by different code under the same stage version.

A registered model version records the digests of everything it was made from. An artifact in such a list is never made
again. When an artifact is made again, the old one is kept under another name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from assets.state.compare import compare
from resources.tracking.errors import TrackingError
from resources.tracking.registry import explained, registered_digests
from training.contract.job import DataError

if TYPE_CHECKING:
    from assets.state.cell import Cell, Comparison
    from resources.tracking.reports import Tracking
    from training.recipe.recipe import Recipe


def compare_exactly(recipe: Recipe, root: Path, tracking: Tracking) -> Comparison:
    """Compare a recipe with its artifacts; artifacts made by different code count as outdated.

    Artifacts from which a registered model version was made do not count as outdated. Raises DataError if the
    registry does not answer, because it is then unknown what may be made again.
    """
    comparison = compare(recipe, root)
    if not any(map(_is_by_other_code, comparison.cells.values())):
        return comparison
    try:
        with explained(tracking):
            digests = registered_digests(tracking)
    except TrackingError as error:
        raise DataError(f"--exact makes nothing again that a registered version was made from, and {error}") from None
    reached = _reached(comparison, digests)
    cells = {key: _asked_again(cell, reached) for key, cell in comparison.cells.items()}
    return replace(comparison, cells=cells)


def kept(comparison: Comparison, tell: Callable[[Cell, str], None]) -> None:
    """Call `tell` for each cell whose artifact other code made but which is kept for a registered version."""
    for cell in filter(_is_by_other_code, comparison.cells.values()):
        tell(cell, f"{cell.remark}; stays, because a registered version was made from it")


def _is_by_other_code(cell: Cell) -> bool:
    return cell.state == "made" and bool(cell.other_code)


def _asked_again(cell: Cell, reached: set[str]) -> Cell:
    if not _is_by_other_code(cell) or cell.artifact is None or cell.artifact.digest in reached:
        return cell
    return replace(cell, state="outdated", artifact=None, reasons=(cell.remark,), other_code=())


def _reached(comparison: Comparison, digests: set[str]) -> set[str]:
    """Return `digests`, and the digests of all artifacts that these were made from, directly or indirectly."""
    found = set(digests)
    for cell in reversed(comparison.cells.values()):  # each cell before its inputs
        if cell.artifact is not None and cell.artifact.digest in found:
            found |= {item["digest"] for item in cell.artifact.record["inputs"]}
    return found
