"""What recipes ask for, as assets that Dagster only observes: one for each asset of the chain.

Dagster calls a partition unsynced when an input changed after the partition was made; a recipe is a file and no input.
So each asset has `<asset>_settings` as an input, whose data version in a partition is the fingerprint that the recipe
asks for: one changed setting marks the edited stage and all that descends from it, as `pedigree status` does, and a
comment marks nothing. What was changed is in the observation's metadata. The modules that made a partition and are not
as they are now are told once in the same way, which changes no data version. These assets are external: nobody can
launch them, and no dialog of what is missing offers them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import dagster as dg
from dagster._core.definitions.data_version import DATA_VERSION_TAG
from dagster._core.events import DagsterEventType

from assets.chain import CHAIN
from assets.partitions import Partitions
from assets.status import Cell
from training.stage import Asset

GROUP = "settings"
OTHER_CODE = "made_by_other_code"  # metadata: the modules that made the partition and are not as they are now


def settings_key(asset: str) -> dg.AssetKey:
    """The key of what is asked of `asset`."""
    return dg.AssetKey(f"{asset}_settings")


def build_settings(partitions: Partitions) -> list[dg.AssetSpec]:
    """The observed asset beside each asset of the chain, with its partitions."""
    return [_spec(declared, partitions) for declared in CHAIN.values()]


def _spec(declared: Asset, partitions: Partitions) -> dg.AssetSpec:
    return dg.AssetSpec(
        settings_key(declared.name),
        group_name=GROUP,
        kinds={"yaml"},
        partitions_def=partitions.of(declared),
        description=(
            f"What each recipe asks of `{declared.name}`. The data version is the fingerprint: of the settings that "
            f"`{declared.stage.name}` reads, its version, its libraries, and the fingerprints of its inputs."
        ),
    )


def observe(instance: dg.DagsterInstance, cells: Iterable[Cell]) -> None:
    """Report what is asked for where Dagster knows of nothing, or of something else. Starts no run."""
    for observation in unobserved(instance, cells):
        instance.report_runless_asset_event(observation)


def unobserved(instance: dg.DagsterInstance, cells: Iterable[Cell]) -> Iterator[dg.AssetObservation]:
    """The observations that `instance` lacks. What is not there yet (a snapshot to come) has no fingerprint."""
    by_asset: dict[str, list[Cell]] = {}
    for cell in cells:
        if cell.state != "unavailable":
            by_asset.setdefault(cell.asset, []).append(cell)
    for asset, asked in by_asset.items():
        known = instance.event_log_storage.get_latest_tags_by_partition(
            settings_key(asset),
            DagsterEventType.ASSET_OBSERVATION,
            [DATA_VERSION_TAG],
            asset_partitions=[cell.partition for cell in asked],
        )
        for cell in asked:
            is_known = known.get(cell.partition, {}).get(DATA_VERSION_TAG) == cell.fingerprint
            if not is_known or (cell.other_code and _told_code(instance, cell) != _other_code(cell)):
                yield _observation(cell)


def _other_code(cell: Cell) -> str:
    return ", ".join(cell.other_code)


def _told_code(instance: dg.DagsterInstance, cell: Cell) -> object:
    """What the last observation says of the code that made a partition. One query a partition, of which few differ."""
    key = settings_key(cell.asset)
    record = instance.get_latest_data_version_record(key, is_source=True, partition_key=cell.partition)
    said = record.asset_observation.metadata if record and record.asset_observation else {}
    return said[OTHER_CODE].value if OTHER_CODE in said else ""


def _observation(cell: Cell) -> dg.AssetObservation:
    """`differs` says in which fields what is made is not what is asked for; a first observation has none."""
    lines = "\n".join(f"- `{line}`" for line in cell.reasons)
    return dg.AssetObservation(
        settings_key(cell.asset),
        partition=cell.partition,
        metadata={
            **({"differs": dg.MetadataValue.md(lines)} if lines else {}),
            **({OTHER_CODE: _other_code(cell)} if cell.other_code else {}),
            "fingerprint": cell.fingerprint,
            "settings": dg.MetadataValue.json(cell.settings),
        },
        tags={DATA_VERSION_TAG: cell.fingerprint},
    )


def observe_used(context: dg.AssetExecutionContext, cell: Cell) -> None:
    """Let the materialization under way name `cell` as what was asked for.

    Dagster notes the inputs' versions when a step starts, before the recipe is read, and the recipe may have changed
    since somebody observed it. So what is used is observed now, and the note is taken again.
    """
    observe(context.instance, [cell])
    step = context.get_step_execution_context()
    step.wipe_input_asset_version_info(settings_key(cell.asset))
    step.maybe_fetch_and_get_input_asset_version_info(settings_key(cell.asset))
