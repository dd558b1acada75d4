"""Dagster's assets, built from the chain of declared assets.

All call the same function, except `promoted_model`, which has its own.
"""

from collections.abc import Callable
from datetime import timedelta

import dagster as dg

from assets.chain import CHAIN, trains
from assets.checks import checks_of
from assets.partitions import Partitions
from assets.promotion.promote import materialize_and_promote
from assets.running.materialize import materialize
from assets.running.pipeline import Pipeline
from assets.stores import TRAINING_POOL
from training.contract.secrets import masked_errors
from training.contract.stage import Asset

Body = Callable[[dg.AssetExecutionContext, Pipeline], dg.MaterializeResult]

# Assets with a body of their own. Every other asset only runs its stage.
BODIES: dict[str, Body] = {"promoted_model": materialize_and_promote}

DATA_OWNER = "team:data"
OWNERS = {
    "ladder": "team:models",
    "adoption": "team:models",
    "pretraining": "team:models",
    "long_context": "team:models",
    "posttraining": "team:models",
    "synthesis": "team:models",
    "evaluation": "team:evaluation",
}
# Crawls appear about once a month: a warning after five weeks without a new one, a failure after nine.
FRESHNESS = dg.FreshnessPolicy.time_window(fail_window=timedelta(weeks=9), warn_window=timedelta(weeks=5))


def build(partitions: Partitions) -> list[dg.AssetsDefinition]:
    """The Dagster assets of the whole chain."""
    return [_asset(declared, partitions) for declared in CHAIN.values()]


def _asset(declared: Asset, partitions: Partitions) -> dg.AssetsDefinition:
    body = BODIES.get(declared.name, materialize)

    @dg.asset(
        name=declared.name,
        group_name=declared.group,
        kinds=set(declared.stage.kinds),
        description=_description(declared),
        code_version=f"{declared.stage.name}-{declared.stage.version}",
        partitions_def=partitions.of(declared),
        deps=[
            *(partitions.dependency(item, declared) for item in (*declared.inputs, *declared.guards)),
            partitions.asked_of(declared),
        ],
        check_specs=checks_of(declared, partitions),
        owners=[OWNERS.get(declared.group, DATA_OWNER)],
        tags={"pedigree/scope": declared.scope, "pedigree/work": "training" if trains(declared) else "data"},
        pool=TRAINING_POOL if trains(declared) else None,
        freshness_policy=FRESHNESS if declared.name == "crawl_archives" else None,
        metadata={"stage": declared.stage.name, "module": declared.stage.module},
    )
    def asset(context: dg.AssetExecutionContext, pipeline: Pipeline) -> dg.MaterializeResult:
        with masked_errors():  # Dagster stores errors that leave this function, so secrets are masked in them
            return body(context, pipeline)

    return asset


def _description(declared: Asset) -> str:
    """The asset's description in the UI; names the module that makes the asset."""
    module = declared.stage.module
    return declared.description if module in declared.description else f"{declared.description}\n\nMade by {module}."
