"""The Dagster job `pedigree_run`, to which the runs of `pedigree run` belong.

Such a run is executed in the process of the command, but is recorded as a run of the code location that `pedigree dev`
serves. So it can be executed again from the UI.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import dagster as dg

from assets.services.dagster_internals import (
    NOT_FINISHED_STATUSES,
    PARENT_RUN_ID_TAG,
    SINGLETON_REPOSITORY_NAME,
    AssetGraph,
    InMemoryJob,
    RegisteredCodeLocationOrigin,
    RemoteJobOrigin,
    RemoteRepositoryOrigin,
    UnresolvedAssetJobDefinition,
    build_asset_job,
    execute_run,
    get_asset_graph_for_job,
)
from assets.state.liveness import killed_launches, sign_of_launch
from resources.tracking.reports import Tracking

JOB = "pedigree_run"
LOCATION = "assets.definitions"  # the name of the code location: of `pedigree dev`, workspace.yaml and `dg`
LAUNCH_TAG = "pedigree/launch"
RUN_CONFIG = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}

log = logging.getLogger(__name__)


class _OfAllPartitions(UnresolvedAssetJobDefinition):
    """A Dagster job over assets with different partitions, which Dagster itself allows only for its own unnamed job.

    A run of it has one partition and the selected assets that have this partition.
    """

    def resolve(
        self,
        asset_graph: AssetGraph,
        default_executor_def: dg.ExecutorDefinition | None = None,
        resource_defs: Mapping[str, dg.ResourceDefinition] | None = None,
    ) -> dg.JobDefinition:
        return build_asset_job(
            self.name,
            asset_graph=get_asset_graph_for_job(asset_graph, self.selection, allow_different_partitions_defs=True),
            description=self.description,
            executor_def=default_executor_def,
            resource_defs=resource_defs,
            allow_different_partitions_defs=True,
        )


def run_job() -> UnresolvedAssetJobDefinition:
    """Return the Dagster job over all assets, to which runs of `pedigree run` belong."""
    return _OfAllPartitions(
        name=JOB,
        selection=dg.AssetSelection.all(),
        description="Runs that `pedigree run` launched in a terminal; the tag `pedigree/recipe` names the recipe.",
    )


def execute(
    job: dg.JobDefinition,
    assets: Iterable[str],
    partition: str,
    *,
    instance: dg.DagsterInstance,
    tags: Mapping[str, str],
) -> dg.ExecutionResult:
    """Execute the job for some assets of one partition in this process, and return the result, failed or not.

    `JobDefinition.execute_in_process` does the same but records no code location, and a run without one cannot be
    executed again from the UI.
    """
    keys = frozenset(dg.AssetKey(name) for name in assets)
    run = instance.create_run_for_job(
        job_def=job,
        run_config=RUN_CONFIG,
        tags={**tags, **job.get_tags_for_partition_key(partition, selected_asset_keys=keys)},
        asset_selection=keys,
        remote_job_origin=_origin(),
    )
    return execute_run(InMemoryJob(job), run, instance)


def _origin() -> RemoteJobOrigin:
    location = RegisteredCodeLocationOrigin(location_name=LOCATION)
    return RemoteRepositoryOrigin(location, SINGLETON_REPOSITORY_NAME).get_job_origin(JOB)


def launch_of(tags: Mapping[str, Any]) -> str:
    """The launch of `pedigree run` that a run with these tags is part of; empty for a run of the UI or the daemon.

    A run that was executed again has the tags of the first run, but the command that launched the first run has
    ended.
    """
    return "" if PARENT_RUN_ID_TAG in tags else tags.get(LAUNCH_TAG, "")


def end_killed(instance: dg.DagsterInstance, tracking: Tracking, root: Path) -> None:
    """End the runs whose processes were killed: as failed in Dagster, as killed in MLflow.

    Both would list them as running for ever, because only the process of a run reports its end.
    """
    killed = {one.launch: one for one in killed_launches(root)}
    running = dg.RunsFilter(statuses=NOT_FINISHED_STATUSES)
    for run in instance.get_runs(running) if killed else ():
        if one := killed.get(launch_of(run.tags) or run.run_id):
            instance.report_run_failed(run, f"{one} was killed; run it again to go on")
    for one in killed.values():
        tracking.end_runs_of(one.owner)
        log.warning("%s was killed; its runs in Dagster and MLflow are ended", one)
        sign_of_launch(root, one.launch).unlink(missing_ok=True)  # last, so that a look that is killed is repeated
