"""The assets of Dagster, built from the chain: what each is, what comes before it, and one body for all but one."""

from collections.abc import Callable

import dagster as dg

from assets.chain import CHAIN, Link
from assets.partitions import Partitions
from assets.promotion import materialize_and_promote
from assets.settings import settings_key
from assets.stage import Pipeline, materialize
from training.secrets import masked_errors

Body = Callable[[dg.AssetExecutionContext, Pipeline], dg.MaterializeResult]

# Every other asset is what its stage makes.
BODIES: dict[str, Body] = {"promoted_model": materialize_and_promote}


def build(partitions: Partitions) -> list[dg.AssetsDefinition]:
    """The Dagster assets of the whole chain."""
    return [_asset(link, partitions) for link in CHAIN.values()]


def _asset(link: Link, partitions: Partitions) -> dg.AssetsDefinition:
    body = BODIES.get(link.name, materialize)

    @dg.asset(
        name=link.name,
        group_name=link.group,
        kinds=set(link.kinds),
        description=_description(link),
        code_version=f"{link.stage}-{link.how.version}",
        partitions_def=partitions.of(link),
        deps=[*(partitions.dependency(item, link) for item in link.inputs), settings_key(link.name)],
        check_specs=[dg.AssetCheckSpec(name, asset=link.name, blocking=True) for name in link.gates],
        metadata={"stage": link.stage, "module": link.how.module},
    )
    def asset(context: dg.AssetExecutionContext, pipeline: Pipeline) -> dg.MaterializeResult:
        with masked_errors():  # what Dagster keeps of an error that leaves here holds no secret
            return body(context, pipeline)

    return asset


def _description(link: Link) -> str:
    """What people read, with the module that makes it where the text does not name it."""
    module = link.how.module
    return link.description if module in link.description else f"{link.description}\n\nMade by {module}."
