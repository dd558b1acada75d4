"""Dagster's assets, built from the chain of declared assets."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import timedelta

import dagster as dg
from dagster_shared.utils.warnings import disable_dagster_warnings

from assets.graph.budget import tag_run
from assets.graph.checks import checks_of
from assets.graph.partitions import Partitions
from assets.graph.pipeline import Pipeline
from assets.services.stores import TRAINING_POOL
from assets.state.chain import CHAIN, trains
from training.contract.identity.closure import place_of
from training.contract.secrets import masked_errors
from training.contract.stage import Asset, Input

Body = Callable[[dg.AssetExecutionContext, Pipeline], dg.MaterializeResult]
Condition = dg.AutomationCondition[dg.AssetKey]

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


def build(
    partitions: Partitions, body: Body, bodies: Mapping[str, Body], condition: Condition | None
) -> list[dg.AssetsDefinition]:
    """The Dagster assets of the whole chain. Each calls `body`, or the function of its own in `bodies`, by its name."""
    return [_asset(declared, partitions, bodies.get(declared.name, body), condition) for declared in CHAIN.values()]


def _asset(declared: Asset, partitions: Partitions, body: Body, condition: Condition | None) -> dg.AssetsDefinition:
    @dg.asset(
        name=declared.name,
        group_name=declared.group,
        kinds=set(declared.stage.kinds),
        description=_description(declared),
        code_version=f"{declared.stage.name}-{declared.stage.version}",
        partitions_def=partitions.of(declared),
        deps=[
            *(partitions.dependency(item, declared) for item in _dependencies(declared)),
            partitions.asked_of(declared),
        ],
        check_specs=checks_of(declared, partitions),
        owners=[OWNERS.get(declared.group, DATA_OWNER)],
        tags={"pedigree/scope": declared.scope, "pedigree/work": "training" if trains(declared) else "data"},
        pool=TRAINING_POOL if trains(declared) else None,
        automation_condition=condition,
        freshness_policy=FRESHNESS if declared.name == "crawl_archives" else None,
        metadata={
            "stage": declared.stage.name,
            "module": declared.stage.module,
            "dagster/code_references": _code_of(declared),
        },
    )
    def asset(context: dg.AssetExecutionContext, pipeline: Pipeline) -> dg.MaterializeResult:
        with masked_errors():  # Dagster stores errors that leave this function, so secrets are masked in them
            try:
                tag_run(context)
                result = body(context, pipeline)
                tag_run(context, result.metadata)
                return result
            except (KeyboardInterrupt, dg.DagsterExecutionInterruptedError):
                if pipeline.cancels_on_interrupt:  # without this word, Dagster would call the run failed
                    context.instance.report_run_canceling(context.run)
                raise

    return asset


def _dependencies(declared: Asset) -> list[Input]:
    """Return inputs and guards, each asset once: one may be an input in some recipes and a guard in the others."""
    items = dict[str, Input]()
    for item in (*declared.inputs, *declared.guards):
        items[item.asset] = replace(item, when=None) if item.asset in items else item
    return list(items.values())


def _code_of(declared: Asset) -> dg.CodeReferencesMetadataValue:
    """The source file of the stage, for the link of the asset's page; its module is not imported."""
    package, *names = declared.stage.module.split(".")
    source = place_of(package).joinpath(*names)
    file = source / "__init__.py" if source.is_dir() else source.with_suffix(".py")
    with disable_dagster_warnings():  # Dagster calls code references beta
        source_of_stage = dg.LocalFileCodeReference(file_path=str(file), label=declared.stage.module)
        return dg.CodeReferencesMetadataValue(code_references=[source_of_stage])


def _description(declared: Asset) -> str:
    """The asset's description in the UI; names the module that makes the asset."""
    module = declared.stage.module
    return declared.description if module in declared.description else f"{declared.description}\n\nMade by {module}."
