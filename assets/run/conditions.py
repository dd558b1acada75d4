"""The automation condition of every asset, and the sensor that evaluates it and requests backfills.

A condition belongs to an asset, a decision to a recipe. So the sensor asks `plans` once a tick for all recipes, and the
parts of the condition say of each partition which of its reasons hold. The asset's page shows them under *Automation*.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import replace
from functools import reduce
from operator import and_
from pathlib import Path

import dagster as dg
from dagster_shared.utils.warnings import disable_dagster_warnings

from assets.run.automation import SENSOR, BackfillPlan, in_scope, is_rebuilding, plans, subset_of, tags_of
from assets.services.dagster_internals import BaseAssetGraph, SensorExecutionData
from assets.state.cell import Cell
from assets.state.chain import CHAIN
from resources.profile import load_profile

SENSOR_SECONDS = 60

REASONS: Mapping[str, Callable[[BackfillPlan], Collection[Cell]]] = {
    "a recipe asks automation for it": lambda plan: in_scope(plan.comparison),
    "it is missing or outdated": lambda plan: plan.comparison.to_do(),
    "its inputs are there, or are made with it": lambda plan: plan.due,
    "no open backfill and no budget holds the recipe back": lambda plan: () if plan.held_back else plan.due,
    "no run is making it": lambda plan: plan.cells,
}
"""What must hold for automation to make a partition, with the cells of a plan for which it holds. Each reason is asked
of the partitions for which all reasons before it hold."""

_CELLS: ContextVar[Mapping[tuple[str, str], set[str]]] = ContextVar("partitions by reason and asset")


class Holds(dg.AutomationCondition[dg.AssetKey]):
    """True for the partitions for which one of REASONS holds at this tick."""

    def __init__(self, reason: str) -> None:
        self._reason = reason

    @property
    def name(self) -> str:
        """The reason: the asset's page shows it."""
        return self._reason

    @property
    def description(self) -> str:
        """The reason: the history of evaluations shows it."""
        return self._reason

    @property
    def requires_cursor(self) -> bool:
        """False, because nothing is kept from one tick to the next."""
        return False

    def evaluate(self, context: dg.AutomationContext[dg.AssetKey]) -> dg.AutomationResult[dg.AssetKey]:
        """Return the partitions that are still candidates and for which the reason holds."""
        candidates = context.candidate_subset
        holds = _CELLS.get()[self._reason, context.key.path[-1]]
        known = holds & candidates.expensively_compute_partition_keys()
        return dg.AutomationResult(context, candidates.compute_intersection_with_partition_keys(known))


CONDITION = reduce(and_, map(Holds, REASONS))


class NewSnapshots(dg.AutomationConditionSensorDefinition):
    """The sensor that requests one backfill for each recipe, of the partitions for which the condition is true."""

    def __init__(self, root: Path, profile: str) -> None:
        with disable_dagster_warnings():  # Dagster calls conditions of one's own beta
            super().__init__(
                name=SENSOR,
                target=dg.AssetSelection.assets(*CHAIN),
                minimum_interval_seconds=SENSOR_SECONDS,
                description=(
                    "Backfills what is missing or outdated of the recipes that ask for automation, also of snapshots"
                    " that they name anew."
                ),
                use_user_code_server=True,
            )
        self._root, self._profile = root, profile

    def evaluate_tick(self, context: dg.SensorEvaluationContext) -> SensorExecutionData:
        """Return the conditions of this tick, and one request for each recipe or the reasons why there is none."""
        assert context.repository_def is not None
        if is_rebuilding(context.instance):
            return SensorExecutionData(skip_message="a run of `rebuild` has not ended", cursor=context.cursor)
        graph = context.repository_def.asset_graph
        found = tuple(_loaded(one, graph) for one in plans(context.instance, self._root, load_profile(self._profile)))
        said = "; ".join(map(_said, found)) or "no recipe of this root asks for automation"
        context.log.info(said)
        token = _CELLS.set(_by_reason(found))
        try:
            evaluated = super().evaluate_tick(context)
        finally:
            _CELLS.reset(token)
        of_sensor = dg.DagsterRun.tags_for_sensor(self)
        requests = [_request(plan, graph, of_sensor) for plan in found if plan.cells]
        return SensorExecutionData(
            run_requests=requests,
            skip_message=None if requests else said,
            cursor=evaluated.cursor,
            log_key=evaluated.log_key,
            automation_condition_evaluations=evaluated.automation_condition_evaluations,
        )

    def resolve_run_requests(self, *given: object, **named: object) -> Sequence[dg.RunRequest]:
        """Drop the requests that Dagster makes of the conditions: they mix the partitions of all recipes."""
        return ()

    validate_backfill_requests = resolve_run_requests


def _by_reason(found: Iterable[BackfillPlan]) -> Mapping[tuple[str, str], set[str]]:
    """Return the partitions for which each reason holds, by reason and asset."""
    partitions: dict[tuple[str, str], set[str]] = defaultdict(set)
    for plan in found:
        for reason, cells in REASONS.items():
            for cell in cells(plan):
                partitions[reason, cell.asset].add(cell.partition)
    return partitions


def _loaded(plan: BackfillPlan, graph: BaseAssetGraph) -> BackfillPlan:
    """Return the plan, held back while it has partitions that Dagster has not loaded since the recipe's last edit."""
    if all(graph.get(dg.AssetKey(one.asset)).partitions_def.has_partition_key(one.partition) for one in plan.cells):
        return plan
    held_back = f"{plan.comparison.recipe.name}: Dagster has not loaded its new partitions yet"
    return replace(plan, held_back=held_back, cells=())


def _said(plan: BackfillPlan) -> str:
    of = f"{len(plan.cells)} missing or outdated partitions"
    return plan.reason or f"{plan.comparison.recipe.name}: a backfill of {of} is requested"


def _request(plan: BackfillPlan, graph: BaseAssetGraph, of_sensor: Mapping[str, str]) -> dg.RunRequest:
    return dg.RunRequest.for_asset_graph_subset(subset_of(plan, graph), tags={**tags_of(plan, SENSOR), **of_sensor})
