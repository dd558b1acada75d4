"""The job `pedigree_run`, under which the runs of `pedigree run` stand in Dagster."""

from __future__ import annotations

from collections.abc import Mapping

import dagster as dg
from dagster._core.definitions.assets.graph.asset_graph import AssetGraph
from dagster._core.definitions.assets.job.asset_job import build_asset_job, get_asset_graph_for_job
from dagster._core.definitions.unresolved_asset_job_definition import UnresolvedAssetJobDefinition

JOB = "pedigree_run"


class _OfAllPartitions(UnresolvedAssetJobDefinition):
    """A job over assets whose partitions differ, which Dagster offers for its own unnamed job only.

    A run of it has one partition and a selection of assets that have it, as runs of the unnamed job.
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
    """The job over all assets."""
    return _OfAllPartitions(
        name=JOB,
        selection=dg.AssetSelection.all(),
        description="Runs that `pedigree run` launched in a terminal; the tag `pedigree/recipe` names the recipe.",
    )
