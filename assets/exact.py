"""Which artifacts `pedigree run --exact` makes again: those that other code of the same version made.

A registered version says which bytes it was made from; nothing of that is made again, under whatever name the version
is registered. What is made again takes the place of the old artifact, which keeps its bytes under another name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from assets.status import Cell, Comparison, compare
from resources.tracking.errors import TrackingError
from resources.tracking.registry import explained, registered_digests
from resources.tracking.reports import Tracking
from training.job import DataError
from training.recipe import Recipe


def compare_exactly(recipe: Recipe, root: Path, tracking: Tracking) -> Comparison:
    """Recipe against artifacts, where one that other code made counts as outdated unless a version was made from it.

    DataError when the registry does not answer: nobody knows then what may be made again.
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
    """Say what other code made and stays."""
    for cell in filter(_is_by_other_code, comparison.cells.values()):
        tell(cell, f"{cell.remark}; stays, because a registered version was made from it")


def _is_by_other_code(cell: Cell) -> bool:
    return cell.state == "made" and bool(cell.other_code)


def _asked_again(cell: Cell, reached: set[str]) -> Cell:
    if not _is_by_other_code(cell) or cell.artifact is None or cell.artifact.digest in reached:
        return cell
    return replace(cell, state="outdated", artifact=None, reasons=(cell.remark,), other_code=())


def _reached(comparison: Comparison, digests: set[str]) -> set[str]:
    """These digests, and those of everything that what has one of them was made from."""
    found = set(digests)
    for cell in reversed(comparison.cells.values()):  # inputs come before what is made from them
        if cell.artifact is not None and cell.artifact.digest in found:
            found |= {item["digest"] for item in cell.artifact.record["inputs"]}
    return found
