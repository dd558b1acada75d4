"""The assets of Dagster, built from the chain: what each is, what comes before it, and one body for all but one."""

from collections.abc import Callable

import dagster as dg

from assets.chain import CHAIN
from assets.partitions import Partitions
from assets.promotion.promote import materialize_and_promote
from assets.running.materialize import materialize
from assets.running.pipeline import Pipeline
from assets.settings import settings_key
from training.secrets import masked_errors
from training.stage import Asset

Body = Callable[[dg.AssetExecutionContext, Pipeline], dg.MaterializeResult]

# Every other asset is what its stage makes.
BODIES: dict[str, Body] = {"promoted_model": materialize_and_promote}


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
        deps=[*(partitions.dependency(item, declared) for item in declared.inputs), settings_key(declared.name)],
        check_specs=[dg.AssetCheckSpec(name, asset=declared.name, blocking=True) for name in declared.stage.gates],
        metadata={"stage": declared.stage.name, "module": declared.stage.module},
    )
    def asset(context: dg.AssetExecutionContext, pipeline: Pipeline) -> dg.MaterializeResult:
        with masked_errors():  # what Dagster keeps of an error that leaves here holds no secret
            return body(context, pipeline)

    return asset


def _description(declared: Asset) -> str:
    """What people read, with the module that makes it where the text does not name it."""
    module = declared.stage.module
    return declared.description if module in declared.description else f"{declared.description}\n\nMade by {module}."
