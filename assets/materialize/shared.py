"""What Dagster is told of artifacts that a recipe shares with another one, such as a variant with its base.

A variant uses the artifacts of its base on which both recipes agree. Until a run takes one for the variant, Dagster is
told by an observation in the variant's partition: nothing was materialized. A run of the variant reports the inputs
that it reads as materialized, because Dagster compares later versions of an input with what the run has read. No
reference is written here: only a run says that a person wants the variant.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import dagster as dg

from assets.graph.partitions import RECIPES, offered_recipes
from assets.graph.requested import observe
from assets.graph.result import Made, metadata_of, verdicts, version_of
from assets.registry.kept_digests import told_otherwise
from assets.services.dagster_internals import (
    CODE_VERSION_TAG,
    DATA_VERSION_IS_USER_PROVIDED_TAG,
    DATA_VERSION_TAG,
    NULL_EVENT_POINTER,
    get_input_data_version_tag,
    get_input_event_pointer_tag,
)
from assets.state import tombstones
from assets.state.cell import Cell, Comparison
from assets.state.chain import CHAIN
from assets.state.compare import compare
from assets.state.recipe_folders import recipe_folders
from training.contract import artifact
from training.recipe.recipes import RecipeFiles

MATERIALIZED, OBSERVED = dg.DagsterEventType.ASSET_MATERIALIZATION, dg.DagsterEventType.ASSET_OBSERVATION
RECIPES_A_LOOK = 10  # at most so many are compared at once, 0.1 processor seconds each
PARTITIONS_A_LOOK = 50  # a look ends with the recipe that reaches so many reports, 0.035 processor seconds each


def next_look(instance: dg.DagsterInstance, root: Path, cursor: str) -> tuple[str, str]:
    """Look at the next recipes and observe the artifacts they share; return a sentence and the next look's cursor.

    A round goes through all recipes by name. It begins only if an artifact, a reference or a recipe file has changed
    since the last round began, so an idle instance costs a few calls of `stat`, and each change causes one round.
    """
    now, (mark, last) = _mark(root), json.loads(cursor or '["", ""]')
    if not last and mark == now:
        return "nothing has changed since the last look at all recipes", cursor
    mark = mark if last else now
    recipes = offered_recipes(root)
    left = sorted(name for name in recipes if name > last)
    told: dict[str, int] = {}
    for last in left[:RECIPES_A_LOOK]:
        told[last] = len(observe_shared(instance, compare(recipes[last], root, skip_unavailable=True)))
        if sum(told.values()) >= PARTITIONS_A_LOOK:
            break
    found = ", ".join(f"{name}: {number}" for name, number in told.items() if number)
    place = last if left and last < left[-1] else ""
    return f"shared partitions observed: {found or 'none'}", json.dumps([mark, place])


def _mark(root: Path) -> str:
    """Return a digest that changes with a root's recipe files, artifacts and references, and with a stage's version."""
    folders = [*recipe_folders(root), *(root / place / asset for asset in CHAIN for place in ("", "refs"))]
    files = [*folders, root / tombstones.FILE, *RecipeFiles(recipe_folders(root)).paths()]
    changed = [[str(file), file.stat().st_mtime_ns] for file in files if file.exists()]
    return artifact.digest_of([changed, [[asset, one.stage.version] for asset, one in CHAIN.items()]])


def observe_shared(instance: dg.DagsterInstance, comparison: Comparison) -> list[Cell]:
    """Observe each partition whose artifact was made for another recipe and taken by no run; return the new ones."""
    new = list(_untold(instance, comparison.cells.values(), MATERIALIZED, OBSERVED))
    for cell in new:
        made, version = _reused(cell)
        instance.report_runless_asset_event(
            dg.AssetObservation(cell.asset, partition=cell.partition, tags={DATA_VERSION_TAG: version}, **_said(made))
        )
    return new


def report_read(instance: dg.DagsterInstance, comparison: Comparison, among: Iterable[Cell]) -> list[Cell]:
    """Report shared artifacts that a run reads as materialized in its recipe's partitions; return the new ones.

    The cells have to be in the order of the chain. The settings that the recipe asks for are reported too, so that
    edits show as unsynced.
    """
    new = list(_untold(instance, among, MATERIALIZED))
    observe(instance, new)
    for cell in new:  # inputs first: an event of an asset names the last events of its inputs
        for event in _events(instance, cell, comparison):
            instance.report_runless_asset_event(event)
    return new


def report_inputs(context: dg.AssetExecutionContext, cell: Cell, comparison: Comparison) -> None:
    """Report the shared artifacts that the current materialization is made from.

    This has to come before Dagster records the versions of its inputs.
    """
    wanted: set[tuple[str, str]] = set()
    waiting = list(cell.waits_for)
    while waiting:
        key = waiting.pop()
        if key not in wanted:
            wanted.add(key)
            waiting.extend(comparison.cells[key].waits_for)
    read = [one for key, one in comparison.cells.items() if key in wanted]
    if report_read(context.instance, comparison, read):
        step = context.get_step_execution_context()
        for asset in sorted({asset for asset, _ in cell.waits_for}):
            step.wipe_input_asset_version_info(dg.AssetKey(asset))
            step.maybe_fetch_and_get_input_asset_version_info(dg.AssetKey(asset))


def is_shared(cell: Cell) -> bool:
    """Whether the cell's artifact exists and no run has taken it for this partition."""
    return cell.state == "made" and not cell.is_recorded


def _untold(instance: dg.DagsterInstance, cells: Iterable[Cell], *kinds: dg.DagsterEventType) -> Iterator[Cell]:
    """Yield the cells with a shared artifact that no last event of these kinds tells in Dagster.

    Left out are those of whose record Dagster was told otherwise: a new event would hide that evidence.
    """
    for cell in filter(is_shared, cells):
        versions = (_last_version(instance, cell, kind) for kind in kinds)
        if _reused(cell)[1] not in versions and not told_otherwise(cell, instance):
            yield cell


def _last_version(instance: dg.DagsterInstance, cell: Cell, kind: dg.DagsterEventType) -> str | None:
    known = instance.event_log_storage.get_latest_tags_by_partition(
        dg.AssetKey(cell.asset), kind, [DATA_VERSION_TAG], asset_partitions=[cell.partition]
    )
    return known.get(cell.partition, {}).get(DATA_VERSION_TAG)


def _reused(cell: Cell) -> tuple[Made, str]:
    """Return what a run would reuse for a cell, and Dagster's version of it."""
    assert cell.artifact is not None
    made = Made(cell=cell, artifact=cell.artifact, reused=True, seconds=0.0, mlflow_url="", other_code=cell.other_code)
    return made, version_of(cell.artifact)


def _said(made: Made) -> dict[str, Any]:
    """Return description and metadata of the Dagster event for an artifact that another recipe made."""
    said = f"Made for [{made.record['partition']}]; this recipe asks for the same."
    return {"description": said, "metadata": metadata_of(made)}


def _events(
    instance: dg.DagsterInstance, cell: Cell, comparison: Comparison
) -> Iterator[dg.AssetMaterialization | dg.AssetCheckEvaluation]:
    """Yield the materialization of a shared artifact in the cell's partition, and the verdicts of its gates."""
    made, version = _reused(cell)
    tags = _provenance(instance, cell, comparison, version)
    yield dg.AssetMaterialization(cell.asset, partition=cell.partition, tags=tags, **_said(made))
    for one in verdicts(CHAIN[cell.asset], made):
        yield dg.AssetCheckEvaluation(
            dg.AssetKey(cell.asset),
            one.check_name or "",
            one.passed,
            metadata=one.metadata,
            blocking=True,
            partition=cell.partition,
        )


def _provenance(instance: dg.DagsterInstance, cell: Cell, comparison: Comparison, version: str) -> dict[str, str]:
    """The tags by which Dagster finds out whether an input has changed since.

    They hold the versions and the newest event of each input asset.
    """
    stage = CHAIN[cell.asset].stage
    tags = {
        DATA_VERSION_TAG: version,
        DATA_VERSION_IS_USER_PROVIDED_TAG: "true",
        CODE_VERSION_TAG: f"{stage.name}-{stage.version}",
    }
    read: dict[str, list[str]] = {RECIPES: [cell.fingerprint]}
    for key in cell.waits_for:
        made = comparison.cells[key].artifact
        read.setdefault(key[0], []).append(version_of(made) if made is not None else "")
    for asset, versions in read.items():
        key = dg.AssetKey(asset)
        last = instance.get_latest_data_version_record(key, is_source=asset == RECIPES)
        tags[get_input_data_version_tag(key)] = versions[0] if len(versions) == 1 else artifact.digest_of(versions)
        tags[get_input_event_pointer_tag(key)] = str(last.storage_id) if last is not None else NULL_EVENT_POINTER
    return tags
