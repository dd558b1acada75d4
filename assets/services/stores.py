"""Create the stores of Dagster and MLflow under a root, one process at a time, and whole or not at all.

If two processes create the tables of a sqlite file at once, one fails: "table alembic_version already exists". If a
process is killed while it creates them, no later process can use the file. So a file is made elsewhere and renamed.
`python -m assets.services.stores ROOT` creates them before servers start that would create them at the same time.
"""

from __future__ import annotations

import fcntl
import importlib.util
import logging
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import yaml

from resources.databases import make_whole
from resources.tracking.errors import reason_of
from resources.tracking.store import default_uri, follow_root, make_client, shown, sqlite_file
from training.contract import artifact
from training.contract.files.checksums import at_once
from training.contract.job import DataError
from training.contract.secrets import masked, remember_address

if TYPE_CHECKING:
    import dagster as dg

log = logging.getLogger(__name__)

# Runs of one training at a time are let in by a root; all other runs pass by.
TRAINING_POOL = "training"
DAGSTER_YAML = """\
# Made by pedigree. Local stores; nothing leaves this machine.
telemetry:
  enabled: false
nux:
  enabled: false
run_monitoring:
  enabled: true
  free_slots_after_run_end_seconds: 300
run_retries:
  enabled: true
  max_retries: 0                          # a run or backfill asks for more with the tag dagster/max_retries
  retry_on_asset_or_op_failure: false     # a stage that failed by itself fails again; a killed run is worth another try
freshness:
  enabled: true
# Pools of runs, not of steps: a step's slot that a killed process held stays taken until a daemon frees it.
concurrency:
  runs:
    max_concurrent_runs: 4                # raise it where a scheduler shares out the machines
  pools:
    granularity: run
    default_limit: 1                      # one training at a time, the only pool; other runs pass it by
retention:
  schedule:
    purge_after_days: 90
  sensor:
    purge_after_days: 30
"""
CONFIG_FILE = "dagster.yaml"
DAGSTER_FILES = ("history/runs.db", "history/runs/index.db", "schedules/schedules.db")  # unless it names OWN_STORAGE
OWN_STORAGE = re.compile(r"^\w*storage\s*:", re.MULTILINE)
LOCK_FILE, MADE_FILE = "stores.lock", "stores.made"
ROOT_FILE, ROOT_KEY = "root.id", "pedigree/root"  # whose a database is that several roots could name
URI_VARIABLE = "PEDIGREE_TRACKING_URI"  # not passed on the command line, which all users can read: may hold a password


def dagster_home(root: Path) -> Path:
    """The folder of this root's Dagster instance; created if needed.

    Raise DataError if its configuration is no file: Dagster would wait at a pipe.
    """
    home = root / "dagster"
    if not (home / CONFIG_FILE).exists():
        artifact.write_text(home / CONFIG_FILE, DAGSTER_YAML)
    elif not (home / CONFIG_FILE).is_file():
        raise DataError(f"{home / CONFIG_FILE} is no regular file; remove it, and the next run writes it")
    return home


def has_own_storage(root: Path) -> bool:
    """Whether the configuration of a root's Dagster names where it keeps runs; else they are in files of the root."""
    config = root / "dagster" / CONFIG_FILE
    return config.is_file() and OWN_STORAGE.search(config.read_text("utf-8")) is not None


def use_storage(root: Path, storage: dict[str, Any] | None) -> None:
    """Let a new root's Dagster keep runs in the database of a profile; None: in files, or where the root has them.

    Raise DataError if the root already keeps them elsewhere, or the database's package is missing.
    """
    if storage is None:
        return
    home = dagster_home(root)
    with _one_at_a_time(home):
        text = (home / CONFIG_FILE).read_text("utf-8")
        if OWN_STORAGE.search(text):
            if yaml.safe_load(text).get("storage") != storage:
                raise DataError(
                    f"dagster_storage: the root {root} keeps Dagster's runs in another database; take it from"
                    f" {home / CONFIG_FILE}, or use another root"
                )
        elif any((home / name).exists() for name in DAGSTER_FILES):
            raise DataError(
                f"dagster_storage: the root {root} keeps Dagster's runs in files, which would stay behind; use another"
                f" root, or remove {home} so that Dagster begins anew, without the history of the runs"
            )
        else:
            if importlib.util.find_spec("dagster_postgres") is None:
                raise DataError("dagster_storage: dagster-postgres is not installed; pip install 'pedigree[postgres]'")
            artifact.write_text(home / CONFIG_FILE, DAGSTER_YAML + yaml.safe_dump({"storage": storage}))


def opened_instance(root: Path) -> dg.DagsterInstance:
    """Open this root's Dagster instance, with the tables of its stores created, for runs of this process.

    Raise DataError if its database cannot be opened, or belongs to another root.
    """
    from assets.services.dagster_internals import uncaptured_instance

    home = dagster_home(root)
    with _one_at_a_time(home):
        if not has_own_storage(root):
            new = home / "stores.new"
            for aside in make_whole([home / name for name in DAGSTER_FILES], new, lambda: _make_files(new)):
                log.warning("A store of Dagster was half-made and empty: it is made again; the old file is %s", aside)
            return uncaptured_instance(home)
        try:
            instance = uncaptured_instance(home)
            _claim(instance, home)
        except DataError:
            raise
        except Exception as error:  # whatever the database's driver raises
            why = masked(str(error.__cause__ or error)).strip().splitlines() or [type(error).__name__]
            raise DataError(f"Dagster's database in {home / CONFIG_FILE} could not be opened: {why[0]}") from None
        return instance


def _claim(instance: dg.DagsterInstance, home: Path) -> None:
    """Mark a database as this root's. Raise DataError if it is another's, whose partitions have the same names."""
    from assets.services.dagster_internals import set_cursor_once

    file, cursors = home / ROOT_FILE, instance.daemon_cursor_storage
    assert cursors is not None
    if not file.exists():
        artifact.write_text(file, uuid4().hex)
    own = file.read_text("utf-8")
    set_cursor_once(instance, ROOT_KEY, own)
    if cursors.get_cursor_values({ROOT_KEY})[ROOT_KEY] != own:
        instance.dispose()
        raise DataError(f"the database that {home / CONFIG_FILE} names is that of another root; each needs its own")


def _make_files(folder: Path) -> None:
    """Make the files of a new Dagster instance in a folder, with all their tables."""
    import dagster as dg

    artifact.write_text(folder / CONFIG_FILE, DAGSTER_YAML)
    dg.DagsterInstance.from_config(str(folder)).dispose()


def trainings_at_once(instance: dg.DagsterInstance) -> int:
    """Return how many trainings may go on at the same time: the limit of Dagster's pool for them, at least 1."""
    limits = instance.event_log_storage.get_pool_limits()
    own = next((limit.limit for limit in limits if limit.name == TRAINING_POOL), None)
    general = instance.get_concurrency_config().pool_config.default_pool_limit
    return max(1, next((limit for limit in (own, general) if limit is not None), 1))


def make_stores(root: Path, tracking_uri: str) -> None:
    """Create Dagster's and MLflow's stores on the first start, in a process of its own, which frees its memory."""
    home, file = dagster_home(root), sqlite_file(tracking_uri)
    if (home / MADE_FILE).exists() and (file is None or Path(file).exists()):
        if file == sqlite_file(default_uri(root)):
            follow_root(root)
        return
    subprocess.run(
        [sys.executable, "-m", "assets.services.stores", str(root)],
        env={**os.environ, URI_VARIABLE: tracking_uri},
        cwd=Path(__file__).parents[2],
        check=False,  # the server that needs a store reports why it cannot be created
    )


def skip_older_events(instance: dg.DagsterInstance) -> None:
    """Let the daemon that retries runs begin with events from now on, as it does by itself after a warning for each."""
    from assets.services.dagster_internals import cursor_keys_of_retries

    cursors = instance.daemon_cursor_storage
    assert cursors is not None
    keys = cursor_keys_of_retries()
    newest = instance.event_log_storage.get_maximum_record_id() or 0
    cursors.set_cursor_values({key: str(newest) for key in keys - cursors.get_cursor_values(keys).keys()})


@contextmanager
def _one_at_a_time(home: Path) -> Iterator[None]:
    with open(home / LOCK_FILE, "a", encoding="utf-8", opener=at_once) as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield


if __name__ == "__main__":
    remember_address(os.environ[URI_VARIABLE])
    logging.getLogger("mlflow.store.db.utils").setLevel(logging.WARNING)  # it says that it creates tables
    try:
        make_client(os.environ[URI_VARIABLE], Path(sys.argv[1]))
    except Exception as error:  # whatever MLflow raises
        sys.exit(f"MLflow at {shown(os.environ[URI_VARIABLE])} could not be asked: {reason_of(error)}")
    with opened_instance(Path(sys.argv[1])) as instance:
        skip_older_events(instance)
    artifact.write_text(dagster_home(Path(sys.argv[1])) / MADE_FILE, "")
