"""Record digests that Dagster keeps, from when an artifact was made or used, compared with the records on disk.

A reference lies beside the artifacts, where whoever changes a record can change it too. Dagster's event log is another
store, and what was said there is not said again when a file changes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from assets.status import Cell, Comparison

RECENT = 20  # materializations of one partition that are looked through for the fingerprint


def disagreements(cells: Iterable[Cell], instance: Any) -> list[tuple[Cell, str]]:
    """Cells whose record digest differs from the one in their last Dagster materialization, each with a sentence."""
    found = []
    for cell in cells:
        told = _told(cell, instance)
        if cell.artifact is not None and told and told not in cell.artifact.stands_for:
            sentence = (
                f"{cell.artifact.path}: the record was changed: what was decided has digest"
                f" {cell.artifact.record_digest[:12]}, and Dagster was told {told[:12]}"
            )
            found.append((cell, sentence))
    return found


def disagreements_of(comparison: Comparison, cells: Iterable[Cell]) -> list[tuple[Cell, str]]:
    """The same for cells of a recipe, asked of the Dagster instance of the root; nothing where there is none."""
    home = comparison.root / "dagster"
    if not (home / "dagster.yaml").exists():
        return []
    import dagster as dg

    with dg.DagsterInstance.from_config(str(home)) as instance:
        return disagreements(cells, instance)


def _told(cell: Cell, instance: Any) -> str:
    """The record digest that the newest materialization of the cell's artifact has; empty when there is none."""
    import dagster as dg

    asked = dg.AssetRecordsFilter(asset_key=dg.AssetKey(cell.asset), asset_partitions=[cell.partition])
    for record in instance.fetch_materializations(asked, limit=RECENT).records:
        event = record.asset_materialization
        said = {name: getattr(value, "value", "") for name, value in event.metadata.items()} if event else {}
        if said.get("fingerprint") == cell.fingerprint and said.get("record_digest"):
            return str(said["record_digest"])
    return ""
