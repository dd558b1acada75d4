"""The stores of a root: made by one process at a time, however many start at once."""

from __future__ import annotations

import logging
import multiprocessing
import os
from pathlib import Path

import dagster as dg  # here once, not in every process
import yaml
from dagster._core.storage.event_log.sqlite import sqlite_event_log
from dagster._core.storage.event_log.sqlite.sqlite_event_log import SqliteEventLogStorage
from dagster._core.storage.runs.sqlite.sqlite_run_storage import SqliteRunStorage
from dagster._core.storage.sql import ScriptDirectory, get_alembic_config
from dagster._daemon.auto_run_reexecution.event_log_consumer import DAGSTER_EVENT_TYPES, _fetch_persisted_cursors

from assets.services.stores import (
    CONFIG_FILE,
    TRAINING_POOL,
    dagster_home,
    opened_instance,
    skip_older_events,
    trainings_at_once,
)
from training.contract.job import DataError


def open_at_once(root, start, said):
    start.wait()
    try:
        with opened_instance(root) as instance:
            said.put(instance.get_runs_count())
    except Exception as error:
        said.put(str(error))


def test_several_first_starts_at_once_make_one_set_of_tables(tmp_path):
    context = multiprocessing.get_context("fork")
    start, said = context.Event(), context.Queue()
    processes = [context.Process(target=open_at_once, args=(tmp_path, start, said)) for _ in range(4)]
    for process in processes:
        process.start()
    start.set()
    assert [said.get(timeout=60) for _ in processes] == [0] * 4
    for process in processes:
        process.join()


def test_as_many_trainings_go_on_as_the_pool_of_dagster_allows(tmp_path):
    with opened_instance(tmp_path) as instance:
        assert trainings_at_once(instance) == 1
        instance.event_log_storage.set_concurrency_slots(TRAINING_POOL, 3)
        assert trainings_at_once(instance) == 3


def test_a_database_keeps_its_engine_and_the_list_of_migrations(tmp_path):
    with opened_instance(tmp_path) as instance:
        events, runs = instance.event_log_storage, instance.run_storage
        assert isinstance(events, SqliteEventLogStorage) and isinstance(runs, SqliteRunStorage)
        engines = set()
        for connect in (events.index_connection, runs.connect) * 2:
            with connect() as connection:
                engines.add(connection.engine)
                address = connection.exec_driver_sql("PRAGMA database_list").fetchone()[2]
                assert Path(address).is_relative_to(tmp_path)
    assert len(engines) == 2
    config = get_alembic_config(sqlite_event_log.__file__)
    assert ScriptDirectory.from_config(config) is ScriptDirectory.from_config(config)


def test_the_daemon_that_retries_runs_begins_with_new_events_and_warns_of_nothing(tmp_path, caplog):
    with opened_instance(tmp_path) as instance:
        skip_older_events(instance)
        cursors = _fetch_persisted_cursors(instance, DAGSTER_EVENT_TYPES, logging.getLogger())
    assert (list(cursors.values()), caplog.messages) == ([0, 0], [])


def test_a_run_has_no_processes_of_dagster_beside_it_that_ctrl_c_would_reach(tmp_path):
    @dg.asset
    def children() -> str:
        return processes_below_this()

    with opened_instance(tmp_path) as instance:
        before = processes_below_this()
        assert dg.materialize([children], instance=instance).output_for_node("children") == before


def processes_below_this() -> str:
    return Path(f"/proc/self/task/{os.getpid()}/children").read_text()


def test_of_two_new_roots_that_name_one_database_at_once_one_gets_it(tmp_path, monkeypatch):
    """The second asks for the database right after the first has asked whose it is."""
    for name in "ab":
        storage = {"storage": {"sqlite": {"base_dir": str(tmp_path / "database")}}}
        (dagster_home(tmp_path / name) / CONFIG_FILE).write_text(yaml.safe_dump(storage))
    ask, opened = SqliteRunStorage.get_cursor_values, []

    def open_root(name: str) -> None:
        try:
            opened_instance(tmp_path / name).dispose()
            opened.append(name)
        except DataError as error:
            assert "is that of another root" in str(error)

    def asked(storage, keys):
        said = ask(storage, keys)
        monkeypatch.setattr(SqliteRunStorage, "get_cursor_values", ask)
        open_root("b")
        return said

    monkeypatch.setattr(SqliteRunStorage, "get_cursor_values", asked)
    open_root("a")
    assert opened == ["a"]
