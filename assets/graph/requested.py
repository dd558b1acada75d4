"""The asset `recipes`: it shows Dagster what the recipes ask of every asset and partition of the chain.

Dagster calls a partition unsynced if an input changed after the partition was made, but a recipe is a file, not an
input. So every asset has `recipes` as an input. It has one partition for each asset and partition of the chain, such as
`filtered_documents:kitchen@kitchen-1`, and its data version there is the fingerprint that the recipe asks for. A
changed setting marks the edited stage and everything made from it, as in `pedigree status`; a changed comment marks
nothing. The observation's metadata lists the changed fields. It also lists the modules that have changed since the
partition was made; this does not change the data version. The asset is external: it cannot be launched, and Dagster's
dialogs do not offer it as missing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import dagster as dg

from assets.graph.partitions import RECIPES, Partitions, asked_partition
from assets.services.dagster_internals import DATA_VERSION_TAG
from assets.state.cell import Cell

RECIPES_KEY = dg.AssetKey(RECIPES)
OTHER_CODE = "made_by_other_code"  # metadata key: the modules that have changed since the partition was made


def build_recipes(partitions: Partitions) -> dg.AssetSpec:
    """The asset `recipes`, with a partition for each asset and partition of the chain."""
    return dg.AssetSpec(
        RECIPES_KEY,
        group_name=RECIPES,
        kinds={"yaml"},
        partitions_def=partitions.asked,
        description=(
            "The settings that each recipe asks for, by asset. A partition here stands for an asset and one of its "
            "partitions. Its data version is the fingerprint: a hash of the settings that the stage reads, its "
            "version, its libraries and its inputs' fingerprints. A new data version marks artifacts made with other "
            "settings as unsynced. This asset cannot be launched."
        ),
    )


def observe(instance: dg.DagsterInstance, cells: Iterable[Cell]) -> None:
    """Report to Dagster the fingerprints and changed modules of cells that it does not know yet. Starts no run."""
    for observation in unobserved(instance, cells):
        instance.report_runless_asset_event(observation)


def unobserved(instance: dg.DagsterInstance, cells: Iterable[Cell]) -> Iterator[dg.AssetObservation]:
    """Yield, one for each cell, the observations of recipes' requests that the Dagster instance lacks.

    Unavailable cells have no fingerprint and are left out.
    """
    by_asset: dict[str, list[Cell]] = {}
    for cell in cells:
        if cell.state != "unavailable":
            by_asset.setdefault(cell.asset, []).append(cell)
    for asked in by_asset.values():
        known = instance.event_log_storage.get_latest_tags_by_partition(
            RECIPES_KEY,
            dg.DagsterEventType.ASSET_OBSERVATION,
            [DATA_VERSION_TAG],
            asset_partitions=[asked_partition(*cell.key) for cell in asked],
        )
        for cell in asked:
            is_known = known.get(asked_partition(*cell.key), {}).get(DATA_VERSION_TAG) == cell.fingerprint
            if not is_known or (cell.other_code and _told_code(instance, cell) != _other_code(cell)):
                yield _observation(cell)


def _other_code(cell: Cell) -> str:
    return ", ".join(cell.other_code)


def _told_code(instance: dg.DagsterInstance, cell: Cell) -> object:
    """The changed modules in the last observation of a partition, joined by commas; "" if there are none.

    This costs one query per partition, and is called only for the few partitions that were made by different code.
    """
    record = instance.get_latest_data_version_record(
        RECIPES_KEY, is_source=True, partition_key=asked_partition(*cell.key)
    )
    said = record.asset_observation.metadata if record and record.asset_observation else {}
    return said[OTHER_CODE].value if OTHER_CODE in said else ""


def _observation(cell: Cell) -> dg.AssetObservation:
    """Return Dagster's observation of one cell; its metadata `differs` lists the fields that outdate the partition."""
    lines = "\n".join(f"- `{line}`" for line in cell.reasons)
    return dg.AssetObservation(
        RECIPES_KEY,
        partition=asked_partition(*cell.key),
        metadata={
            **({"differs": dg.MetadataValue.md(lines)} if lines else {}),
            **({OTHER_CODE: _other_code(cell)} if cell.other_code else {}),
            "fingerprint": cell.fingerprint,
            "settings": dg.MetadataValue.json(cell.settings),
        },
        tags={DATA_VERSION_TAG: cell.fingerprint},
    )


def observe_used(context: dg.AssetExecutionContext, cell: Cell) -> None:
    """Record the fingerprint of `cell` as the settings version that the current materialization uses.

    Dagster reads the inputs' data versions when a step starts, before the recipe is read, and the recipe may have
    changed since the last observation. So the cell is observed now, and Dagster reads the version again.
    """
    observe(context.instance, [cell])
    step = context.get_step_execution_context()
    step.wipe_input_asset_version_info(RECIPES_KEY)
    step.maybe_fetch_and_get_input_asset_version_info(RECIPES_KEY)
