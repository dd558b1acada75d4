"""`pedigree verify`: check every file and record of a recipe's artifacts, and everything that keeps a record digest."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from assets.registry.kept_digests import Said, asked, home_of, told_dagster, told_loadable, told_tracker, told_version
from assets.state.cell import Cell, Comparison
from assets.state.references import apart, aside
from assets.state.tombstones import erased_by
from resources.tracking.reports import Tracking
from training.contract import artifact
from training.contract.artifact import Damaged, damaged_files, foreign_files
from training.contract.files.checked import FOREIGN
from training.contract.files.stored_root import not_stored, store_files


@dataclass(kw_only=True)
class Verified:
    """The result of `pedigree verify`.

    `verified` is the number of artifacts read. `problems` and `remarks` are pairs of cell and sentence. `not_asked`
    says why Dagster or MLflow could not be asked.
    """

    recipe: str
    verified: int = 0
    problems: list[tuple[Cell, str]] = field(default_factory=list)
    remarks: list[tuple[Cell, str]] = field(default_factory=list)
    not_asked: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """Return the object that `pedigree verify --json` prints."""
        return {
            "recipe": self.recipe,
            "ok": not self.problems,
            "verified": self.verified,
            "problems": [_entry(cell, "problem", line) for cell, line in self.problems],
            "remarks": [_entry(cell, "remark", line) for cell, line in self.remarks],
            "not_asked": self.not_asked,
        }

    def lines(self) -> list[str]:
        """Return the lines to print: problems first, then each remark once, then stores that could not be asked."""
        problems = [f"{cell.asset} [{cell.partition}]: {line}" for cell, line in self.problems]
        cells: dict[str, list[Cell]] = {}
        for cell, line in self.remarks:
            cells.setdefault(line, []).append(cell)
        return problems + [f"{_named(some)}: {line}" for line, some in cells.items()] + self.not_asked


def _named(cells: list[Cell]) -> str:
    others = len(cells) - 1
    more = f" and {others} other{'s' * (others > 1)}" if others else ""
    return f"{cells[0].asset} [{cells[0].partition}]{more}"


def _entry(cell: Cell, kind: str, line: str) -> dict[str, str]:
    return {"asset": cell.asset, "partition": cell.partition, kind: line}


def verified(comparison: Comparison, tracking: Tracking, *, mend: bool = False) -> Verified:
    """Read all artifacts of the recipe, and compare their records with the record digests in Dagster and MLflow.

    With `mend`, the folder of an artifact with a damaged file or a changed record is set aside, and so are files that
    somebody put into an artifact's folders. Files of a registered version that are not those of its model are written
    again.
    """
    found = Verified(recipe=comparison.recipe.name)
    told, told_by_version = _told(comparison, tracking, found, mend=mend)
    for cell in comparison.cells.values():
        damage = [f"{line}; {cell.way_out}" for line in cell.reasons] if cell.state == "damaged" else []
        if cell.artifact is None:
            found.problems += [(cell, line) for line in damage]
            continue
        found.verified += 1
        broken, foreign = damaged_files(cell.artifact), foreign_files(cell.artifact)
        erased, unknown = erased_by(cell.artifact)
        # what lies beside goes with a takedown, here and in the store
        beside = () if erased else cell.artifact.record.get("beside", ())
        entries = [*cell.artifact.record["files"], *beside]
        lacking = not_stored(cell.artifact.path, entries)
        if lacking and mend and not broken:
            store_files(cell.artifact.path, [one for one in entries if (cell.artifact.path / one["path"]).exists()])
            still = not_stored(cell.artifact.path, entries)
            found.remarks.append((cell, f"{len(lacking) - len(still)} of its files were written to the store again"))
            lacking = still
        changed = [line for other, line in told if other.key == cell.key]
        damage += [*broken, *lacking, *(f"{path}: {FOREIGN}" for path in foreign), *_copy_problems(cell), *changed]
        damage += [line for other, line in told_by_version if other.key == cell.key]
        damage += unknown
        found.remarks += [(cell, line) for line in erased]
        found.problems += [(cell, line) for line in damage]
        if (broken or changed) and mend:
            found.remarks.append((cell, f"set aside as {aside(cell.artifact.path, 'damaged').name}"))
        elif foreign and mend:
            found.remarks.append((cell, f"set aside in {apart(cell.artifact, foreign).name}"))
        elif cell.remark:
            found.remarks.append((cell, cell.remark))
    return found


def _told(comparison: Comparison, tracking: Tracking, found: Verified, *, mend: bool) -> tuple[list[Said], list[Said]]:
    """Return contradictions between records on disk and other stores.

    The first list is about Dagster and MLflow's runs, the second about the files of the registered version. Why a store
    could not be asked is added to `found.not_asked`.
    """
    cells = [cell for cell in comparison.cells.values() if cell.artifact is not None]
    if not cells:
        return [], []
    home, store = home_of(comparison.root), tracking.store or comparison.root
    dagster, no_dagster = asked(lambda: told_dagster(comparison.root, cells), home, "Dagster")
    runs, no_tracker = asked(lambda: told_tracker(cells, tracking), store, "MLflow")
    version = [] if no_tracker else asked(lambda: told_version(comparison, tracking), store, "MLflow")[0]
    version += [] if no_tracker else asked(lambda: told_loadable(comparison, tracking, mend=mend), store, "MLflow")[0]
    found.not_asked += [line for line in (no_dagster, no_tracker) if line]
    return dagster + runs, version


def _copy_problems(cell: Cell) -> list[str]:
    """Return problems with the backup copy of a cell's record."""
    assert cell.artifact is not None
    try:
        copy = artifact.find_copy(cell.artifact.path)
    except Damaged as error:
        return [f"{error}; it is only needed when {artifact.ARTIFACT_FILE} is lost too"]
    if copy is not None and copy.record != cell.artifact.record:
        return [f"{cell.artifact.path}: {artifact.COPY_FILE} is not the record's copy"]
    return []
