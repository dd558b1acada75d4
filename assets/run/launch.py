"""What all Dagster runs of one `pedigree run` share, and the execution of one such run.

Importing this module imports Dagster, which takes 2 s; `assets/run/run.py` imports it only if something must be made.
"""

from __future__ import annotations

import gc
import json
import os
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import dagster as dg

from assets.graph.job import JOB, LAUNCH_TAG, execute, run_job
from assets.graph.notices import notices_of
from assets.graph.partitions import Partitions
from assets.graph.pipeline import Pipeline, report_for
from assets.materialize.assets import all_assets
from assets.materialize.events import heard_by
from assets.run.result import Ended
from assets.services.dagster_internals import NOT_FINISHED_STATUSES, PARTITION_NAME_TAG
from assets.services.root import full_disk
from assets.services.stores import dagster_home, opened_instance
from resources.notify import Notice
from resources.tracking.process import OWNER
from resources.tracking.reports import RunStatus, StageRun
from training.contract.process.exit_codes import BAD_INPUT, FAILED, REFUSED
from training.contract.process.lifetime import die_with_parent
from training.contract.records import read_record
from training.contract.secrets import masked
from training.recipe.recipe import Recipe


@dataclass(frozen=True, kw_only=True)
class Launch:
    """The recipe, root, profile and tags of all Dagster runs of one `pedigree run`. It can be sent to a process."""

    recipe: Mapping[str, Any]  # as plain data
    root: str
    profile: str
    exact: bool
    tags: Mapping[str, str]
    owner: str = OWNER  # the process whose writer sends reports to MLflow

    @property
    def id(self) -> str:
        """The name of the launch, which Dagster's runs have as a tag and MLflow's run in its key."""
        return self.tags[LAUNCH_TAG]

    @property
    def reported(self) -> StageRun:
        """The MLflow run of the launch."""
        return self.pipeline.tracking().launched(self.id)

    def finish(self, status: RunStatus) -> None:
        """Close the MLflow run of the launch."""
        self.pipeline.tracking().finish_launch(self.id, status)

    def note_end(self, sentence: str, instance: dg.DagsterInstance) -> None:
        """Write into the log of the last Dagster run of the launch how the command ended."""
        for run in instance.get_runs(dg.RunsFilter(tags={LAUNCH_TAG: self.id}, job_name=JOB), limit=1):
            instance.report_engine_event(masked(sentence), run)

    @cached_property
    def pipeline(self) -> Pipeline:
        """The Dagster resource of the runs."""
        return Pipeline(
            root=self.root,
            profile=self.profile,
            cancels_on_interrupt=True,
            resolved_recipe=json.dumps(self.recipe),
            exact=self.exact,
        )

    @cached_property
    def _job(self) -> dg.JobDefinition:
        recipe = read_record(Recipe, self.recipe)
        assets = all_assets(Partitions({recipe.name: recipe}))
        resources = {"pipeline": self.pipeline}
        definitions = dg.Definitions(
            assets=assets, jobs=[run_job()], resources=resources, executor=dg.in_process_executor
        )
        return definitions.resolve_job_def(JOB)

    def execute(self, assets: Sequence[str], partition: str, instance: dg.DagsterInstance) -> Ended:
        """Make these assets of a partition as one Dagster run; return how it ended.

        A gate that refused an artifact is no error here, because the artifact is made.
        """
        os.environ.setdefault("DAGSTER_HOME", str(dagster_home(Path(self.root))))
        result = execute(self._job, assets, partition, instance=instance, tags=self.tags)
        if result.success:
            return Ended()
        notices = notices_of(result.all_events, partition=partition, run_id=result.run_id)
        return replace(_failure_of(result, Path(self.root)), notices=notices)

    def end_killed(self, assets: Sequence[str], partition: str, cause: str, instance: dg.DagsterInstance) -> Ended:
        """Finish the Dagster run of a process that was killed while it made these assets; return how it ended.

        Dagster would list the run as running for ever, because only the process of a run reports its end.
        """
        started = dg.RunsFilter(
            statuses=NOT_FINISHED_STATUSES, tags={**self.tags, PARTITION_NAME_TAG: partition}, job_name=JOB
        )
        chosen = {dg.AssetKey(name) for name in assets}
        runs = [run for run in instance.get_runs(started) if run.asset_selection == chosen]
        for run in runs:
            instance.report_run_failed(run, masked(cause))
        run_id = runs[0].run_id if runs else ""  # its process may have ended before it made one
        place = {"partition": partition, "cause": cause, "run_id": run_id}
        notices = tuple(Notice(kind="failed", asset=asset, **place) for asset in assets)
        return Ended(error=cause, exit_code=FAILED, notices=notices)


def execute_apart(
    launch: Launch, assets: Sequence[str], partition: str, sender: Connection, environment: Mapping[str, str]
) -> None:
    """Make these assets of a partition in this process, which was started for it.

    Sends each announcement as `(kind, asset, values)`, and last how the run of Dagster ended. The process is in a
    process group of its own, so that Ctrl-C in a terminal reaches the command alone, which then interrupts this process
    once.
    `environment` is the command's; the fork server has that of the moment when it was started.
    """
    os.environ.clear()
    os.environ.update(environment)
    os.setpgid(0, 0)
    die_with_parent()
    gc.enable()  # the fork server switched it off
    signal.signal(signal.SIGINT, signal.default_int_handler)
    root = Path(launch.root)
    with heard_by(lambda kind, cell, values: sender.send((kind, cell.asset, values))):
        try:
            report_for(launch.owner, root, launch.pipeline.loaded_profile())
            with opened_instance(root) as instance:
                ended = launch.execute(assets, partition, instance)
        except Exception as error:  # the command says it, as it says an error of its own
            said = masked(full_disk(str(error), root) or f"{type(error).__name__}: {error}")
            ended = Ended(error=said, exit_code=FAILED)
    sender.send(ended)


def _failure_of(result: dg.ExecutionResult, root: Path) -> Ended:
    """Return why a Dagster run failed, from its first failed step; without an error if only gates refused."""
    for event in result.all_events:
        if event.is_step_failure:
            data = event.step_failure_data
            if data.error is not None and data.error.cls_name == "DagsterAssetCheckFailedError":
                continue  # the gate's verdict is in the artifact; the next comparison reports it with its evidence
            if data.error is not None and data.error.cls_name == "DagsterExecutionInterruptedError":
                return Ended(error="interrupted; run again to go on", exit_code=FAILED)
            metadata: Mapping[str, Any] = data.user_failure_data.metadata if data.user_failure_data else {}
            code = metadata["exit_code"].value if "exit_code" in metadata else FAILED
            cause = _root_cause(data.error)
            said = data.user_failure_data.description if data.user_failure_data else ""
            code = code if code in (BAD_INPUT, REFUSED) else FAILED
            return Ended(error=masked(said or full_disk(cause, root) or cause), exit_code=code)
    return Ended()


def _root_cause(error: Any) -> str:
    """The message of the innermost cause of a serialized exception, with its last three stack frames."""
    while error is not None and error.cause is not None:
        error = error.cause
    return f"{error.message.strip()}\n{''.join(error.stack[-3:])}" if error is not None else "failed"
