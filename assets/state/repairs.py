"""Repair a cell's damaged record or reference, and the record digests that still point to a lost artifact."""

from __future__ import annotations

from pathlib import Path

from assets.state.cell import Cell, Comparison
from assets.state.references import aside, look, put_back, read_reference, reference_path
from training.contract import artifact
from training.contract.artifact import Damaged


def held_digests(comparison: Comparison, cell: Cell) -> tuple[str, ...]:
    """Record digests that still point to this cell's lost or damaged artifact, sorted.

    They come from the cell's reference and from the records of cells made from it. The digests that the artifact itself
    replaced are included.
    """
    own = look(artifact.folder_of(comparison.root, cell.asset, cell.fingerprint), cell.asset, set()).artifact
    found = set(own.record.get("replaces", ())) if own is not None else set()
    if cell.reference and cell.reference.fingerprint == cell.fingerprint:
        found.add(cell.reference.record_digest)
    for other in comparison.cells.values():
        if cell.key in other.waits_for:
            folder = artifact.folder_of(comparison.root, other.asset, other.fingerprint)
            made = look(folder, other.asset, set()).artifact
            items = [*made.record["inputs"], *made.record.get("guards", ())] if made is not None else []
            found |= {item["record_digest"] for item in items if item["fingerprint"] == cell.fingerprint}
    return tuple(sorted(found - {""}))


def mend(cell: Cell, root: Path) -> list[str]:
    """Restore the record and set aside the damaged reference of a cell whose artifact is whole or can be restored.

    Returns one line for each repair.
    """
    assert cell.artifact is not None
    said = []
    if look(cell.artifact.path, cell.asset, {cell.artifact.record_digest}).damage:
        said.append(put_back(cell.artifact))
    try:
        read_reference(root, cell.asset, cell.partition)
    except Damaged:
        damaged = aside(reference_path(root, cell.asset, cell.partition), "damaged")
        said.append(f"its reference is written again; the damaged one is {damaged.name}")
    return said
