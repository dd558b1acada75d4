"""The one place that imports private modules of Dagster, which any release may move, rename or change.

Each name below has no public counterpart in the release `READ_FROM`, from which its use here was read. `WHAT_BREAKS`
says what stops working without it. A test holds that release against the installed one, and that no other module of
ours imports a private module of Dagster: so whoever raises Dagster's version reads this page once.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dagster import DagsterInstance
from dagster._core.definitions.assets.graph.asset_graph import AssetGraph
from dagster._core.definitions.assets.graph.asset_graph_subset import AssetGraphSubset
from dagster._core.definitions.assets.graph.base_asset_graph import BaseAssetGraph
from dagster._core.definitions.assets.job.asset_job import build_asset_job, get_asset_graph_for_job
from dagster._core.definitions.data_version import (
    CODE_VERSION_TAG,
    DATA_VERSION_IS_USER_PROVIDED_TAG,
    DATA_VERSION_TAG,
    NULL_EVENT_POINTER,
    get_input_data_version_tag,
    get_input_event_pointer_tag,
)
from dagster._core.definitions.events import AssetKeyPartitionKey
from dagster._core.definitions.job_base import InMemoryJob
from dagster._core.definitions.repository_definition import SINGLETON_REPOSITORY_NAME
from dagster._core.definitions.sensor_definition import SensorExecutionData
from dagster._core.definitions.unresolved_asset_job_definition import UnresolvedAssetJobDefinition
from dagster._core.execution.api import execute_run
from dagster._core.execution.backfill import BulkActionsFilter, BulkActionStatus, PartitionBackfill
from dagster._core.remote_origin import RegisteredCodeLocationOrigin, RemoteJobOrigin, RemoteRepositoryOrigin
from dagster._core.storage.dagster_run import NOT_FINISHED_STATUSES
from dagster._core.storage.tags import PARENT_RUN_ID_TAG, PARTITION_NAME_TAG, SCHEDULE_NAME_TAG

if TYPE_CHECKING:
    from sqlalchemy import Engine

READ_FROM = "1.13.27"

WHAT_BREAKS = {
    "AssetGraph build_asset_job get_asset_graph_for_job UnresolvedAssetJobDefinition": (
        "the job `pedigree_run`, whose assets have different partitions, cannot be built"
    ),
    "InMemoryJob execute_run": "a run of `pedigree run` cannot be executed in the command's own process",
    "RegisteredCodeLocationOrigin RemoteJobOrigin RemoteRepositoryOrigin SINGLETON_REPOSITORY_NAME": (
        "a run of `pedigree run` cannot be executed again from Dagster's pages"
    ),
    "NOT_FINISHED_STATUSES PARENT_RUN_ID_TAG PARTITION_NAME_TAG": (
        "runs whose command was killed stay open, and automation may make what another run is making"
    ),
    "AssetGraphSubset BaseAssetGraph AssetKeyPartitionKey BulkActionsFilter BulkActionStatus PartitionBackfill": (
        "automatic backfills cannot be added, or one is added beside another that is open"
    ),
    "SensorExecutionData": "the sensor of automation requests nothing, and no asset's page shows its condition",
    "SCHEDULE_NAME_TAG": "an automatic backfill does not say what started it",
    (
        "CODE_VERSION_TAG DATA_VERSION_IS_USER_PROVIDED_TAG DATA_VERSION_TAG NULL_EVENT_POINTER"
        " get_input_data_version_tag get_input_event_pointer_tag"
    ): "Dagster's pages show partitions as unsynced that are up to date, or the other way round",
    "development_server": "`pedigree dev` starts Dagster's web server without the check that a caller is local",
    "uncaptured_instance": "`pedigree run` starts processes that print tracebacks when Ctrl-C reaches them",
    "spare_databases": "`pedigree run` spends 1.6 times the processor time on runs and events in files of Dagster",
    "cursor_keys_of_retries": "the daemon's first start warns once for each kind of event",
    "set_cursor_once": "a root whose Dagster keeps its runs in a database of its own cannot be opened",
}
"""Names of this module, separated by blanks, and what does not work if Dagster changes one of them."""


def development_server() -> tuple[Any, Callable[[], Any]]:
    """Return the module of `dagster dev`, in which the web server's process is started, and Dagster's command line."""
    from dagster._cli import dev, main

    return dev, main


def uncaptured_instance(home: Path) -> DagsterInstance:
    """Open the instance of a folder for runs of this process, without copies of what they print.

    The two processes by which Dagster follows each copy would get Ctrl-C too, and print tracebacks.
    """
    from dagster._core.instance.ref import InstanceRef
    from dagster._core.storage.noop_compute_log_manager import NoOpComputeLogManager

    spare_databases()
    none = {"module": NoOpComputeLogManager.__module__, "class": NoOpComputeLogManager.__name__}
    return DagsterInstance.from_ref(InstanceRef.from_dir(str(home), overrides={"compute_logs": none}))


@cache
def spare_databases() -> None:
    """Let this process keep what Dagster makes anew for every event and every run: engines, and the list of migrations.

    An engine connects for each use all the same, so nothing stays open, and each event is committed by itself.
    """
    from dagster._core.storage import sql
    from dagster._core.storage.event_log.sqlite import sqlite_event_log
    from dagster._core.storage.runs.sqlite import sqlite_run_storage

    migrations: Any = sql.ScriptDirectory  # alembic's
    migrations.from_config = lru_cache(maxsize=8)(migrations.from_config)
    for module in (sqlite_event_log, sqlite_run_storage):
        module.create_engine = _kept(module.create_engine)


def _kept(create_engine: Callable[..., Engine]) -> Callable[..., Engine]:
    """Return `create_engine`, which returns the same engine for the same one of the last 64 databases.

    Each run has a database of its own, and a process may see thousands of them.
    """
    engines: dict[str, Engine] = {}

    def engine_of(address: str, **options: Any) -> Engine:
        if address not in engines:
            if len(engines) == 64:
                del engines[next(iter(engines))]
            engines[address] = create_engine(address, **options)
        return engines[address]

    return engine_of


def cursor_keys_of_retries() -> set[str]:
    """Return the keys under which the daemon that retries runs stores how far it has read each kind of event."""
    from dagster._daemon.auto_run_reexecution.event_log_consumer import DAGSTER_EVENT_TYPES, _create_cursor_key

    return {_create_cursor_key(kind) for kind in DAGSTER_EVENT_TYPES}


def set_cursor_once(instance: DagsterInstance, key: str, value: str) -> None:
    """Store a value where daemons keep how far they have read, unless the key has one, which stays."""
    from dagster._core.storage.runs import SqlRunStorage
    from dagster._core.storage.runs.schema import KeyValueStoreTable
    from sqlalchemy.exc import IntegrityError

    assert isinstance(instance.run_storage, SqlRunStorage)
    with suppress(IntegrityError), instance.run_storage.connect() as database:
        database.execute(KeyValueStoreTable.insert().values(key=key, value=value))
