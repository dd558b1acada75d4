"""All assets of the chain, with the functions that materialize them."""

import dagster as dg

from assets.graph.declare import build
from assets.graph.partitions import Partitions
from assets.materialize.materialize import materialize
from assets.materialize.promote import materialize_and_promote


def all_assets(
    partitions: Partitions, condition: dg.AutomationCondition[dg.AssetKey] | None = None
) -> list[dg.AssetsDefinition]:
    """The Dagster assets of the whole chain: all run their stage, and `promoted_model` moves the champion too.

    `condition` says when automation makes a partition; None where no automation runs.
    """
    return build(partitions, materialize, {"promoted_model": materialize_and_promote}, condition)
