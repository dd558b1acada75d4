"""Automatic backfills: what the sensor `new_snapshots` and a nightly schedule ask for. Both are off by default.

For each recipe that asks for automation (its section `automation`) and that a person has run under this root before, a
Dagster backfill of the missing and outdated partitions is added: by the sensor (conditions.py), or by the job `rebuild`
that the schedule starts. A recipe has at most one open automatic backfill at a time, and a budget.

Two more sensors, which are on by default, launch nothing. One reports to Dagster the settings that the recipes ask for,
the other the artifacts that variants share with their bases.
"""

import fcntl
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import dagster as dg

from assets.graph.budget import AUTOMATION_TAG, RECIPE_TAG, is_asked_for, spent
from assets.graph.job import end_killed, launch_of
from assets.graph.partitions import offered_recipes
from assets.graph.pipeline import tracking_of
from assets.graph.requested import unobserved
from assets.materialize.shared import next_look
from assets.services.dagster_internals import (
    NOT_FINISHED_STATUSES,
    PARTITION_NAME_TAG,
    SCHEDULE_NAME_TAG,
    AssetGraphSubset,
    AssetKeyPartitionKey,
    BaseAssetGraph,
    BulkActionsFilter,
    BulkActionStatus,
    PartitionBackfill,
)
from assets.state.cell import Cell, Comparison
from assets.state.compare import compare
from assets.state.liveness import watchers_of
from assets.state.references import recipes_run
from resources.profile import Profile, load_profile
from training.contract import artifact
from training.contract.files.checksums import at_once
from training.recipe.recipe import Recipe

SENSOR = "new_snapshots"
REBUILD_CRON = "0 3 * * *"
OBSERVE_SECONDS = 15
SHARED_SECONDS = 30
LACK_TAG = "pedigree/lack"  # digest of the cells that were due when the backfill was added
ASKED_TAG = "pedigree/asked"  # digest of all cells in scope at that time, made or not
OPEN = [BulkActionStatus.REQUESTED, BulkActionStatus.CANCELING, BulkActionStatus.FAILING]
MOST_BACKFILLS = 500  # how many recent backfills are searched for a recipe's last one
Key = tuple[str, str]


@dataclass(frozen=True, kw_only=True, slots=True)
class BackfillPlan:
    """What automation would do for one recipe now.

    `due` are the cells (assets in partitions) that are missing or outdated and may be made; `cells` are those of them
    that a backfill would make now.
    """

    comparison: Comparison
    due: tuple[Cell, ...] = ()
    held_back: str = ""  # why no backfill of the recipe may be added now; empty if one may
    cells: tuple[Cell, ...] = ()

    @property
    def reason(self) -> str:
        """Return why automation adds no backfill for the recipe; empty if it adds one."""
        name = self.comparison.recipe.name
        if not self.due:
            return f"{name}: everything that automation may make is made"
        if not self.held_back and not self.cells:
            return f"{name}: what is missing is being made, or waits for what is"
        return self.held_back


def run_before(root: Path) -> list[Comparison]:
    """Compare each recipe that was run before under `root` with its artifacts; the recipes are read as they are now."""
    run = recipes_run(root)
    recipes = (recipe for name, recipe in offered_recipes(root).items() if name in run)
    return [compare(recipe, root, skip_unavailable=True) for recipe in recipes]


def plans(instance: dg.DagsterInstance, root: Path, profile: Profile) -> list[BackfillPlan]:
    """Return a plan of the next automatic backfill for each recipe with automation.

    Only recipes that a person has run under this root get one.
    """
    asking = [one for one in run_before(root) if one.recipe.automation.rebuild != "none"]
    return [_plan(instance, comparison, profile) for comparison in asking]


def _plan(instance: dg.DagsterInstance, comparison: Comparison, profile: Profile) -> BackfillPlan:
    due = tuple(cells_due(comparison))
    if not due:
        return BackfillPlan(comparison=comparison)
    held_back = _held_back(_backfills(instance, comparison.recipe), comparison, due)
    held_back = held_back or spent(instance, comparison.recipe, profile)
    cells = () if held_back else tuple(cells_due(comparison, being_made(instance, comparison)))
    return BackfillPlan(comparison=comparison, due=due, held_back=held_back, cells=cells)


def _held_back(backfills: list[PartitionBackfill], comparison: Comparison, due: Sequence[Cell]) -> str:
    """Return why automation may not add another backfill of the recipe now; empty if it may.

    A backfill may not be added if an earlier one is still open, was cancelled, or ended without making anything
    that was missing.
    """
    name = comparison.recipe.name
    for one in backfills:
        if one.status in OPEN:
            return f"{name}: backfill {one.backfill_id} is open"
    last = backfills[0] if backfills else None
    if last is None or last.tags.get(ASKED_TAG) != _digest(in_scope(comparison)):
        return ""
    if last.status == BulkActionStatus.CANCELED:
        return f"{name}: backfill {last.backfill_id} was cancelled, and the recipe asks for nothing else since"
    if last.tags.get(LACK_TAG) == _digest(due):
        return f"{name}: backfill {last.backfill_id} ended, and nothing of what was missing is made; see its runs"
    return ""


def is_on(instance: dg.DagsterInstance) -> bool:
    """Whether the sensor is switched on."""
    return any(one.instigator_name == SENSOR and one.is_running for one in instance.all_instigator_state())


def is_rebuilding(instance: dg.DagsterInstance) -> bool:
    """Whether a run of the job `rebuild` has not ended."""
    return bool(instance.get_runs(dg.RunsFilter(job_name="rebuild", statuses=NOT_FINISHED_STATUSES), limit=1))


def _backfills(instance: dg.DagsterInstance, recipe: Recipe) -> list[PartitionBackfill]:
    """The backfills of `recipe` that automation added, newest first.

    They are not filtered by Dagster: with a database of an older version its tag filter finds only backfills that have
    launched a run.
    """
    found = [*instance.get_backfills(BulkActionsFilter(statuses=OPEN)), *instance.get_backfills(limit=MOST_BACKFILLS)]
    own = [one for one in found if one.tags.get(RECIPE_TAG) == recipe.name and AUTOMATION_TAG in one.tags]
    return sorted(own, key=lambda one: one.backfill_timestamp, reverse=True)


def in_scope(comparison: Comparison) -> list[Cell]:
    """Return the cells (assets in partitions) that the recipe lets automation make, already made ones included."""
    return [cell for cell in comparison.cells.values() if is_asked_for(comparison.recipe, cell.asset)]


def cells_due(comparison: Comparison, being_made: frozenset[Key] = frozenset()) -> list[Cell]:
    """The cells that one backfill of the recipe would make, inputs first.

    A cell (one asset of one partition) is left out, with everything made from it, in five cases: a gate refused one
    of its inputs or guards, its source data is not there yet, `automation.rebuild` does not cover it, another run
    is making it (`being_made`), or its artifact is damaged and only a person can repair it.
    """
    allowed = {cell.key for cell in in_scope(comparison)} - being_made
    blocked: set[Key] = set()
    chosen = []
    for cell in comparison.to_do():
        if (
            cell.key not in allowed
            or comparison.refused_by(cell) is not None
            or any(key in blocked for key in cell.waits_for)
            or cell.state == "unavailable"
            or (cell.state == "damaged" and cell.artifact is None)
        ):
            blocked.add(cell.key)
        else:
            chosen.append(cell)
    return chosen


def being_made(instance: dg.DagsterInstance, comparison: Comparison) -> frozenset[Key]:
    """The cells of the recipe that another run or backfill is making or is going to make.

    A run in a terminal is recognized by its watchers, because Dagster lists a killed one as still running.
    """
    found = {cell.key for cell in comparison.to_do() if watchers_of(_folder(comparison, cell))}
    for run in instance.get_runs(dg.RunsFilter(statuses=NOT_FINISHED_STATUSES)):
        if not launch_of(run.tags):
            found |= {(key.path[-1], run.tags.get(PARTITION_NAME_TAG, "")) for key in run.asset_selection or ()}
    for backfill in instance.get_backfills(BulkActionsFilter(statuses=OPEN)):
        if backfill.asset_backfill_data is not None:
            targets = backfill.asset_backfill_data.target_subset.iterate_asset_partitions()
            found |= {(one.asset_key.path[-1], one.partition_key or "") for one in targets}
    return frozenset(found & comparison.cells.keys())


def _folder(comparison: Comparison, cell: Cell) -> Path:
    return artifact.folder_of(comparison.root, cell.asset, cell.fingerprint or "none")


def _digest(cells: Sequence[Cell]) -> str:
    return artifact.digest_of([[cell.asset, cell.partition, cell.fingerprint] for cell in cells])


def add_backfills(
    instance: dg.DagsterInstance, graph: BaseAssetGraph, root: Path, profile: Profile, by: str
) -> Iterator[str]:
    """Add the backfills that are due; yield one line for each recipe that asks for automation.

    A file lock makes the check for an open backfill and the addition one step, because two runs may come at the same
    moment. While the sensor is on, all is left to it, since Dagster adds what it requests some time after its check.
    """
    if is_on(instance):
        yield f"the sensor {SENSOR} is on, and requests each minute what is missing"
        return
    with _one_at_a_time(root):
        for plan in plans(instance, root, profile):
            if plan.reason:
                yield plan.reason
            else:
                backfill = _backfill(instance, graph, plan, by)
                instance.add_backfill(backfill)
                yield f"added backfill {backfill.backfill_id} of {len(plan.cells)} partitions: {backfill.title}"


@contextmanager
def _one_at_a_time(root: Path) -> Iterator[None]:
    root.mkdir(parents=True, exist_ok=True)
    with open(root / "automation.lock", "w", opener=at_once) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _backfill(instance: dg.DagsterInstance, graph: BaseAssetGraph, plan: BackfillPlan, by: str) -> PartitionBackfill:
    """A backfill of the planned cells, for Dagster's daemon to run in order.

    Dagster has no public way for a schedule to request a backfill (dagster#13852), so this does what the web server's
    own mutation does.
    """
    recipe = plan.comparison.recipe
    now = time.time()
    return PartitionBackfill.from_asset_graph_subset(
        backfill_id=f"rebuild-{recipe.name}"[:46] + f"-{int(now * 1e6):x}",
        backfill_timestamp=now,
        tags=tags_of(plan, by),
        dynamic_partitions_store=instance,
        asset_graph_subset=subset_of(plan, graph),
        title=f"{recipe.name}: what is missing ({_scope(recipe)}, by {by})",
        description=f"{len(plan.cells)} missing or outdated partitions of recipe {recipe.name}; asked for by {by}",
        run_config=None,
    )


def subset_of(plan: BackfillPlan, graph: BaseAssetGraph) -> AssetGraphSubset:
    """Return the partitions that a plan would make, as Dagster's backfills take them."""
    pairs = {AssetKeyPartitionKey(dg.AssetKey(cell.asset), cell.partition) for cell in plan.cells}
    return AssetGraphSubset.from_asset_partition_set(pairs, graph)


def tags_of(plan: BackfillPlan, by: str) -> dict[str, str]:
    """Return the tags of a plan's backfill and of its runs, by which automation knows them again."""
    recipe = plan.comparison.recipe
    return {
        RECIPE_TAG: recipe.name,
        AUTOMATION_TAG: by,
        ASKED_TAG: _digest(in_scope(plan.comparison)),
        LACK_TAG: _digest(plan.due),
        "pedigree/promotes": "yes" if recipe.automation.promote else "no",
        "dagster/max_retries": "1",
        "dagster/priority": "-1",  # what a person launches comes first
    }


def _scope(recipe: Recipe) -> str:
    if recipe.automation.rebuild == "corpus":
        return "corpus only"
    return "with promotion" if recipe.automation.promote else "without promotion"


def automation(
    root: Path, profile: str
) -> tuple[list[dg.SensorDefinition], list[dg.ScheduleDefinition], list[dg.JobDefinition]]:
    """Return the sensors that launch nothing, the schedule, and the job that adds automatic backfills."""

    @dg.op(description="Add a backfill of the missing and outdated partitions of each recipe that asks for automation.")
    def add_missing_backfills(context: dg.OpExecutionContext) -> None:
        by = context.run.tags.get(SCHEDULE_NAME_TAG) or "a person"
        graph = context.repository_def.asset_graph
        for line in add_backfills(context.instance, graph, root, load_profile(profile), by):
            context.log.info(line)

    @dg.job(
        description="Add one backfill of missing and outdated partitions for each recipe that asks for automation.",
        tags={"pedigree/purpose": "rebuild"},
    )
    def rebuild() -> None:
        add_missing_backfills()

    @dg.sensor(
        minimum_interval_seconds=OBSERVE_SECONDS,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Reports what the recipes that were run ask for, so that edits show as unsynced. Starts no run.",
    )
    def asked_settings(context: dg.SensorEvaluationContext) -> dg.SensorResult | dg.SkipReason:
        cells = [cell for comparison in run_before(root) for cell in comparison.cells.values()]
        found = list(unobserved(context.instance, cells))
        if not found:
            return dg.SkipReason("no recipe of this root was edited")
        return dg.SensorResult(asset_events=found, skip_reason=f"{len(found)} partitions are asked for anew")

    @dg.sensor(
        minimum_interval_seconds=SHARED_SECONDS,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description=(
            "Observes in a variant's partitions the artifacts that it shares with its base, and ends runs whose"
            " process was killed. Starts no run."
        ),
    )
    def shared_artifacts(context: dg.SensorEvaluationContext) -> dg.SkipReason:
        end_killed(context.instance, tracking_of(root, load_profile(profile)), root)
        told, cursor = next_look(context.instance, root, context.cursor or "")
        context.update_cursor(cursor)
        return dg.SkipReason(told)

    schedule = dg.ScheduleDefinition(
        name="nightly_rebuild",
        job=rebuild,
        cron_schedule=REBUILD_CRON,
        default_status=dg.DefaultScheduleStatus.STOPPED,
        description="Rebuilds missing and outdated partitions of the recipes that ask for automation, every night.",
    )
    return [asked_settings, shared_artifacts], [schedule], [rebuild]
