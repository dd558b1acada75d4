"""How much of a recipe's automation budget is spent, in node-hours, counted from the runs that automation launched.

A run counts the node-hours that the backends counted for the attempts that it began: of made artifacts from their
records, of a failed stage from its observation. A run that goes on, or that was killed before it could say so, counts
its whole duration, time in a queue included, times the nodes of its largest stage.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import dagster as dg

from assets.state.chain import CHAIN
from resources.profile import Profile
from training.recipe.recipe import Recipe

RECIPE_TAG = "pedigree/recipe"
AUTOMATION_TAG = "pedigree/automation"  # the sensor or schedule that added a backfill; its runs have the tag too
PRICE_TAG = "pedigree/price"  # of all that a run has made, in the currency of the profile's `price_per_hour`
OF_RUN = "node_hours_of_run"  # in Dagster's metadata: the node-hours of the attempts that one run began
DAY = timedelta(hours=24)


def is_asked_for(recipe: Recipe, asset: str) -> bool:
    """Whether the recipe's section `automation` allows `asset` to be made without a person's command."""
    asked = recipe.automation
    if asset == "promoted_model" and not asked.promote:
        return False
    return asked.rebuild == "all" or (asked.rebuild == "corpus" and CHAIN[asset].group == "corpus")


def spent(instance: dg.DagsterInstance, recipe: Recipe, profile: Profile) -> str:
    """Return a sentence if automation has used up its daily budget for `recipe`; empty if it has not."""
    taken, budget = node_hours(instance, recipe, profile), recipe.automation.node_hours_per_day
    if taken < budget:
        return ""
    return (
        f"the budget of {recipe.name} is spent: automation has taken {taken:.3g} node-hours in the last 24 hours, and "
        f"automation.node_hours_per_day is {budget:g}; nothing is launched until it has taken less"
    )


def stands_in_the_way(
    run: dg.DagsterRun, instance: dg.DagsterInstance, recipe: Recipe, asset: str, profile: Profile
) -> str:
    """Return why a run launched by automation may not make `asset`, as a sentence; empty if it may.

    It is also empty for runs that a person launched. This is checked before each job, because a backfill spends the
    budget while it runs, and because recipes may be edited.
    """
    if AUTOMATION_TAG not in run.tags:
        return ""
    if not is_asked_for(recipe, asset):
        return f"recipe {recipe.name} does not let automation make {asset}"
    return spent(instance, recipe, profile)


def tag_run(context: dg.AssetExecutionContext, made: Mapping[str, Any] | None = None) -> None:
    """Tag the run with its recipe and its snapshot or rung, and with the price of what it has made.

    `made` is the metadata of the materialization that is about to be reported, if there is one.
    """
    instance, run_id = context.instance, context.run.run_id
    recipe, _, part = context.partition_key.partition("@")
    entries = instance.all_logs(run_id, dg.DagsterEventType.ASSET_MATERIALIZATION) if made else ()
    rows = [*map(_metadata, entries), made or {}]
    prices = [one["price"] for one in rows if "price" in one and not one["reused"]]
    tags = {RECIPE_TAG: recipe}
    tags |= {f"pedigree/{CHAIN[context.asset_key.path[-1]].scope}": part} if part else {}
    tags |= {PRICE_TAG: f"{sum(prices):.6g}"} if prices else {}
    instance.add_run_tags(run_id, tags)


def node_hours(instance: dg.DagsterInstance, recipe: Recipe, profile: Profile) -> float:
    """Return the node-hours of the automatic runs of `recipe` that were active in the last 24 hours."""
    records = instance.get_run_records(
        dg.RunsFilter(tags={RECIPE_TAG: recipe.name}, updated_after=datetime.now(UTC) - DAY)
    )
    return sum(_of_run(instance, record, profile) for record in records if AUTOMATION_TAG in record.dagster_run.tags)


def _of_run(instance: dg.DagsterInstance, record: dg.RunRecord, profile: Profile) -> float:
    run = record.dagster_run
    made = sum(_of_event(entry) for entry in instance.all_logs(run.run_id, dg.DagsterEventType.ASSET_MATERIALIZATION))
    if run.status == dg.DagsterRunStatus.SUCCESS or record.start_time is None:
        return made
    failed = [_metadata(entry) for entry in instance.all_logs(run.run_id, dg.DagsterEventType.ASSET_OBSERVATION)]
    billed = [one[OF_RUN] for one in failed if OF_RUN in one]
    if billed and run.is_finished:
        return made + sum(billed)
    hours = ((record.end_time or time.time()) - record.start_time) / 3600
    nodes = max((profile.size_for(key.path[-1]).nodes for key in run.asset_selection or ()), default=1)
    return max(made + sum(billed), hours * nodes)


def _of_event(entry: dg.EventLogEntry) -> float:
    """Return the node-hours that a run took for one materialization, from its metadata; 0 for a reused artifact."""
    found = _metadata(entry)
    return 0.0 if found.get("reused", True) else float(found.get(OF_RUN, found.get("node_hours", 0.0)))


def _metadata(entry: dg.EventLogEntry) -> dict[str, Any]:
    told = entry.asset_materialization or entry.asset_observation
    return {name: value.value for name, value in (told.metadata if told else {}).items()}
