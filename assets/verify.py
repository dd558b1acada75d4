"""What `pedigree verify` reads: every file, every record, and whatever else keeps a record's digest."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from assets.found import aside, write_reference
from assets.status import Cell, Comparison
from assets.witnesses import disagreements_of
from training import artifact
from training.artifact import Damaged, damaged_files


@dataclass(kw_only=True)
class Verified:
    """What was read, and what was found: (cell, sentence)."""

    recipe: str
    verified: int = 0
    problems: list[tuple[Cell, str]] = field(default_factory=list)
    remarks: list[tuple[Cell, str]] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """The object that `--json` prints."""
        return {
            "recipe": self.recipe,
            "ok": not self.problems,
            "verified": self.verified,
            "problems": [_entry(cell, "problem", line) for cell, line in self.problems],
            "remarks": [_entry(cell, "remark", line) for cell, line in self.remarks],
        }

    def lines(self) -> list[str]:
        """For people: problems first, then each remark once."""
        problems = [f"{cell.asset} [{cell.partition}]: {line}" for cell, line in self.problems]
        cells: dict[str, list[Cell]] = {}
        for cell, line in self.remarks:
            cells.setdefault(line, []).append(cell)
        return problems + [f"{_named(some)}: {line}" for line, some in cells.items()]


def _named(cells: list[Cell]) -> str:
    more = f" and {len(cells) - 1} others" if len(cells) > 1 else ""
    return f"{cells[0].asset} [{cells[0].partition}]{more}"


def _entry(cell: Cell, kind: str, line: str) -> dict[str, str]:
    return {"asset": cell.asset, "partition": cell.partition, kind: line}


def verified(comparison: Comparison, *, mend: bool = False, protect: bool = False) -> Verified:
    """Read what the recipe has made. With `mend` an artifact with a damaged file is set aside, whole; with `protect`
    the reference of a whole one that an earlier edition made keeps the digest of its record from now on."""
    found = Verified(recipe=comparison.recipe.name)
    told = disagreements_of(comparison, comparison.cells.values())
    for cell in comparison.cells.values():
        damage = [f"{line}; {cell.way_out}" for line in cell.reasons] if cell.state == "damaged" else []
        if cell.artifact is None:
            found.problems += [(cell, line) for line in damage]
            continue
        found.verified += 1
        broken = damaged_files(cell.artifact)
        damage += [*broken, *_copy_problems(cell), *(line for other, line in told if other.key == cell.key)]
        found.problems += [(cell, line) for line in damage]
        if broken and mend:
            found.remarks.append((cell, f"set aside as {aside(cell.artifact.path, 'damaged').name}"))
        elif protect and not damage and not cell.artifact.is_protected and cell.is_recorded:
            write_reference(comparison.root, cell.artifact, cell.partition)
            found.remarks.append((cell, "made by an earlier edition: its reference keeps the digest of its record now"))
        elif cell.remark:
            found.remarks.append((cell, cell.remark))
    return found


def _copy_problems(cell: Cell) -> list[str]:
    """What is wrong with the copy of a record; an earlier edition made none."""
    assert cell.artifact is not None
    try:
        copy = artifact.find_copy(cell.artifact.path)
    except Damaged as error:
        return [f"{error}; it is only needed when {artifact.ARTIFACT_FILE} is lost too"]
    if copy is not None and copy.record != cell.artifact.record:
        return [f"{cell.artifact.path}: {artifact.COPY_FILE} is not the record's copy"]
    return []
