"""The Dagster run that follows a job, as functions that do not depend on Dagster."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import dagster as dg

from assets.graph.budget import stands_in_the_way
from assets.graph.job import launch_of
from assets.graph.notices import tell
from assets.graph.result import readable
from assets.registry.kept_digests import told_otherwise, was_made
from assets.state.cell import START_ANEW, Cell
from resources.notify import Notice
from training.recipe.recipe import Recipe

if TYPE_CHECKING:
    from assets.graph.pipeline import Pipeline


@dataclass(frozen=True, kw_only=True)
class Watch:
    """The Dagster run that follows a job.

    It has the run's identity, and functions to log, to report numbers, and to ask whether the run was cancelled.
    """

    launch: str
    run_id: str
    say: Callable[[str], None]
    is_canceling: Callable[[], bool]
    observe: Callable[[dict[str, Any]], None]  # numbers of a training at a step, which Dagster plots
    tell_waiting: Callable[[Cell, str], None] = lambda cell, cause: None  # posts to the profile's webhook
    stands_in_the_way: Callable[[Recipe, str], str] = lambda recipe, asset: ""  # why automation may not make it, or ""
    told_otherwise: Callable[[Cell], str] = lambda cell: ""  # Dagster's record digest if it is another one, or ""
    was_made: Callable[[Cell], bool] = lambda cell: True  # whether Dagster knows that a run made its artifact
    starts_anew: bool = False  # a training may begin at step 0, although it was begun under other settings

    @staticmethod
    def of(context: dg.AssetExecutionContext, pipeline: Pipeline) -> Watch:
        """The record of the Dagster run that `context` belongs to. All runs of a backfill share one launch."""
        tags = context.run.tags
        launch = launch_of(tags) or tags.get("dagster/backfill") or context.run.run_id

        def is_canceling() -> bool:
            run = context.instance.get_run_by_id(context.run.run_id)
            return pipeline.cancels_on_interrupt or (run is not None and run.status in _CANCELLED)

        def tell_waiting(cell: Cell, cause: str) -> None:
            where = {"asset": cell.asset, "partition": cell.partition, "run_id": context.run.run_id}
            tell(pipeline.loaded_profile().notify, Notice(kind="waiting", cause=cause, **where))

        def budget(recipe: Recipe, asset: str) -> str:
            return stands_in_the_way(context.run, context.instance, recipe, asset, pipeline.loaded_profile())

        def observe(numbers: dict[str, Any]) -> None:
            metadata = {name: readable(float(value)) for name, value in numbers.items()}
            context.log_event(
                dg.AssetObservation(context.asset_key, partition=context.partition_key, metadata=metadata)
            )

        return Watch(
            launch=launch,
            run_id=context.run.run_id,
            say=context.log.info,
            is_canceling=is_canceling,
            observe=observe,
            tell_waiting=tell_waiting,
            stands_in_the_way=budget,
            told_otherwise=lambda cell: told_otherwise(cell, context.instance),
            was_made=lambda cell: was_made(cell.asset, cell.fingerprint, context.instance, None),
            starts_anew=tags.get(START_ANEW) == "true",
        )


_CANCELLED = (dg.DagsterRunStatus.CANCELING, dg.DagsterRunStatus.CANCELED)
