"""Record digests that Dagster and MLflow keep, from when an artifact was made or used, compared with those on disk.

A reference lies beside the artifacts, where whoever changes a record can change it too. Dagster's event log and MLflow
are other stores, and what was said there is not said again when a file changes. They are asked for this very record:
what a record says of itself, such as which one it was made in place of (`replaces`), whoever rewrites it writes too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from assets.lineage import DECISION, MODEL, lineage_of
from assets.status import Cell, Comparison
from resources.tracking.errors import TrackingError
from resources.tracking.registry import Registry, explained
from resources.tracking.reports import FLUSH_SECONDS, Tracking
from training.artifact import Artifact

RECENT = 200  # materializations of one partition that are looked through for the fingerprint
Said = tuple[Cell, str]


def contradictions(comparison: Comparison, cells: Iterable[Cell], tracking: Tracking) -> list[Said]:
    """Cells whose record Dagster or MLflow was told otherwise about, each with a sentence, before something is done
    that cannot be taken back. TrackingError when MLflow does not answer."""
    cells = list(cells)
    return told_dagster(comparison, cells) + told_tracker(cells, tracking)


def asked(ask: Callable[[], list[Said]], place: Path, name: str) -> tuple[list[Said], str]:
    """What a witness says, and why it was not asked where it cannot be: there is no store, or it does not answer."""
    if not place.exists():
        return [], f"{name} was not asked about these records: there is no {place}"
    try:
        return ask(), ""
    except TrackingError as error:
        return [], f"{name} was not asked about these records: {error}"


# Dagster


def home_of(root: Path) -> Path:
    """The file that shows that Dagster has a store under a root."""
    return root / "dagster" / "dagster.yaml"


def told_dagster(comparison: Comparison, cells: Iterable[Cell]) -> list[Said]:
    """Cells whose record digest differs from the one in their last materialization, in the instance of the root;
    nothing where there is none."""
    home = home_of(comparison.root)
    if not home.exists():
        return []
    import dagster as dg

    with dg.DagsterInstance.from_config(str(home.parent)) as instance:
        told = [(cell, told_otherwise(cell, instance)) for cell in cells]
    return [(cell, contradiction(cell.artifact, "Dagster", {other})) for cell, other in told if cell.artifact and other]


def told_otherwise(cell: Cell, instance: Any) -> str:
    """The digest of another record that this Dagster instance was told of last; empty when it was this one or none."""
    if cell.artifact is None:
        return ""
    told = _last_told(cell, instance, None) or _last_told(cell, instance, [cell.partition])
    return "" if told == cell.artifact.record_digest else told


def _last_told(cell: Cell, instance: Any, partitions: list[str] | None) -> str:
    """The record digest that Dagster's newest materialization of the cell's artifact gives; empty when there is none.

    Recipes share artifacts, so the newest materialization of any partition counts (`partitions` is None). That of the
    cell's own partition may lie further back.
    """
    import dagster as dg

    wanted = dg.AssetRecordsFilter(asset_key=dg.AssetKey(cell.asset), asset_partitions=partitions)
    for record in instance.fetch_materializations(wanted, limit=RECENT).records:
        event = record.asset_materialization
        said = {name: getattr(value, "value", "") for name, value in event.metadata.items()} if event else {}
        if said.get("fingerprint") == cell.fingerprint and said.get("record_digest"):
            return str(said["record_digest"])
    return ""


# MLflow


def told_tracker(cells: Iterable[Cell], tracking: Tracking) -> list[Said]:
    """Cells of whose artifact MLflow was told, and of this record by none of the runs that made it."""
    cells = list(cells)
    with explained(tracking):
        found = _told_by_runs(cells, tracking)
        if found and tracking.pending():  # what was made last may not be there yet
            tracking.flush(FLUSH_SECONDS)
            found = _told_by_runs(cells, tracking)
    return found


def _told_by_runs(cells: list[Cell], tracking: Tracking) -> list[Said]:
    found = []
    for cell in cells:
        told = tracking.told_of(cell.fingerprint) if cell.artifact is not None else []
        records = {tags["record_digest"] for tags in told if "record_digest" in tags}
        digests = {tags["digest"] for tags in told}
        if cell.artifact is None or not told:
            continue
        if records and cell.artifact.record_digest not in records:
            found.append((cell, contradiction(cell.artifact, "MLflow", records)))
        elif not records and cell.artifact.digest not in digests:  # runs of an earlier edition say no more
            said = f"{cell.artifact.path}: has digest {cell.artifact.digest[:12]}, and MLflow was told {_some(digests)}"
            found.append((cell, said))
    return found


def told_version(comparison: Comparison, tracking: Tracking) -> list[Said]:
    """Cells that the registered version of the recipe's model names by another record digest in its tags.

    They are those of the latest decision, so they are asked where that is the one which lies here.
    """
    decision, model = (comparison.cells[asset, comparison.recipe.name] for asset in (DECISION, MODEL))
    if decision.artifact is None or model.artifact is None:
        return []
    with explained(tracking):
        version = Registry(tracking, comparison.recipe.promote.model_name).version_of(model.artifact.digest)
    if version is None or version.tags.get("decision") != decision.artifact.digest:
        return []
    found = []
    tags = [(decision, "decision_record"), *((cell, f"record_digest.{cell.place}") for cell in lineage_of(comparison))]
    for cell, name in tags:
        told = version.tags.get(name)
        if told and cell.artifact is not None and told not in cell.artifact.stands_for:
            found.append((cell, contradiction(cell.artifact, f"version {version.version} in MLflow", {told})))
    return found


def contradiction(made: Artifact, who: str, told: set[str]) -> str:
    """What it means that somebody was told of these records and not of the one that is there."""
    if told & made.stands_for:
        return (
            f"{made.path}: {who} was told {_some(told)}, which this record {made.record_digest[:12]} says it replaces,"
            " and was not told of this one: a run was killed before it could, or somebody rewrote it"
        )
    return (
        f"{made.path}: the record was changed: what was decided has digest {made.record_digest[:12]}, and {who} was"
        f" told {_some(told)}"
    )


def _some(digests: set[str]) -> str:
    return ", ".join(digest[:12] for digest in sorted(digests))
