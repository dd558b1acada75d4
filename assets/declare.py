"""How an asset of the chain is declared: its name and docstring by hand, everything else from the chain."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import dagster as dg

from assets.chain import CHAIN, Link
from assets.partitions import Partitions
from assets.settings import settings_key
from training.secrets import masked_errors

Declaration = Callable[..., dg.MaterializeResult]

DECLARED: dict[str, Declaration] = {}


def chain_asset(function: Declaration) -> Declaration:
    """Register the function under its name; `build` turns it into an asset once the partitions are known."""
    assert function.__name__ in CHAIN, f"{function.__name__} is not in the chain"
    DECLARED[function.__name__] = function
    return function


def build(partitions: Partitions) -> list[dg.AssetsDefinition]:
    """The Dagster assets of the whole chain."""
    return [_asset(link, DECLARED[link.name], partitions) for link in CHAIN.values()]


def _asset(link: Link, function: Declaration, partitions: Partitions) -> dg.AssetsDefinition:
    decorate: Any = dg.asset(
        name=link.name,
        group_name=link.group,
        kinds=set(link.kinds),
        description=inspect.getdoc(function),
        code_version=f"{link.stage}-{link.how.version}",
        partitions_def=partitions.of(link),
        deps=[*(partitions.dependency(item, link) for item in link.inputs), settings_key(link.name)],
        check_specs=[dg.AssetCheckSpec(name, asset=link.name, blocking=True) for name in link.gates],
        metadata={"stage": link.stage, "module": link.how.module},
    )
    return decorate(_masked(function))


def _masked(function: Declaration) -> Declaration:
    """The same function; what Dagster keeps of an error that leaves it holds no secret."""

    @functools.wraps(function)
    def called(*arguments: Any, **options: Any) -> dg.MaterializeResult:
        with masked_errors():
            return function(*arguments, **options)

    return called
