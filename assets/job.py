"""The Dagster job `pedigree_run`, to which the runs of `pedigree run` belong.

Such a run is executed in the process of the command, but is recorded as a run of the code location that `pedigree dev`
serves. So it can be executed again from the UI.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import dagster as dg
from dagster._core.definitions.assets.graph.asset_graph import AssetGraph
from dagster._core.definitions.assets.job.asset_job import build_asset_job, get_asset_graph_for_job
from dagster._core.definitions.job_base import InMemoryJob
from dagster._core.definitions.repository_definition import SINGLETON_REPOSITORY_NAME
from dagster._core.definitions.unresolved_asset_job_definition import UnresolvedAssetJobDefinition
from dagster._core.execution.api import execute_run
from dagster._core.remote_origin import RegisteredCodeLocationOrigin, RemoteJobOrigin, RemoteRepositoryOrigin
from dagster._core.storage.tags import PARENT_RUN_ID_TAG

JOB = "pedigree_run"
LOCATION = "assets.definitions"  # the name of the code location: of `pedigree dev`, workspace.yaml and `dg`
LAUNCH_TAG = "pedigree/launch"
RUN_CONFIG = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}


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
