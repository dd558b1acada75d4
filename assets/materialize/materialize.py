"""The function that Dagster calls to materialize one asset and partition."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

import dagster as dg

from assets.graph.requested import observe_used
from assets.graph.result import result_of
from assets.materialize.causes import StageFailed
from assets.materialize.make import make
from assets.materialize.shared import report_inputs
from assets.materialize.watch import Watch
from assets.state.cell import Cell, Comparison
from assets.state.chain import CHAIN
from assets.state.removal_lock import nothing_removed
from training.contract.process.exit_codes import FAILED

if TYPE_CHECKING:
    from assets.graph.pipeline import Pipeline


def materialize(context: dg.AssetExecutionContext, pipeline: Pipeline) -> dg.MaterializeResult:
    """Make or reuse the artifact of the context's asset and partition, and return Dagster's result.

    Raises dg.Failure if the stage fails. Dagster may retry it unless the failure is final.
    """
    declared = CHAIN[context.asset_key.path[-1]]
    try:
        with ExitStack() as looking:
            looking.enter_context(nothing_removed(pipeline.root_path))
            cell, comparison = asked_of(context, pipeline)
            made = make(cell, comparison, pipeline, Watch.of(context, pipeline), begun=looking.close)
    except StageFailed as failure:
        raise dg.Failure(
            description=str(failure),
            allow_retries=failure.exit_code == FAILED,
            metadata={"exit_code": failure.exit_code},
        ) from None
    return result_of(declared, made)


def asked_of(context: dg.AssetExecutionContext, pipeline: Pipeline) -> tuple[Cell, Comparison]:
    """Return the cell that Dagster asks to materialize, and the state of all cells of its recipe.

    A cell is an asset in a partition. The cell's fingerprint is reported to Dagster, and so are artifacts of other
    recipes that it is made from.
    """
    comparison = pipeline.compared(pipeline.recipe(context.partition_key))
    cell = comparison.cells[context.asset_key.path[-1], context.partition_key]
    observe_used(context, cell)
    report_inputs(context, cell, comparison)
    return cell, comparison
