"""Several processes that meet a new MLflow file at once."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import tempfile
from contextlib import closing

from resources.tracking.process import own_temporary_files
from resources.tracking.registry import line_in_file
from resources.tracking.versions import of_file

FORK_THREE = """
import os, sys
from pathlib import Path
from mlflow import MlflowClient  # seconds, which each process would need anew
from mlflow.store.tracking import sqlalchemy_store
from resources.tracking.store import make_client

uri, folder = sys.argv[1], Path(sys.argv[2])
begin, began = os.pipe()
children = []
for name in ("one", "two", "three"):
    child = os.fork()
    if not child:
        os.close(began)
        os.read(begin, 1)  # ends for all of them at once
        make_client(uri, folder / name).create_experiment(name)
        os._exit(0)
    children.append(child)
os.close(began)
sys.exit(max(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children))
"""


def test_processes_of_several_roots_make_the_tables_of_one_file_in_turn(tmp_path):
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    done = subprocess.run([sys.executable, "-c", FORK_THREE, uri, str(tmp_path)], stderr=subprocess.PIPE, text=True)
    assert done.returncode == 0, done.stderr


# Version 2 becomes the champion in a transaction of which some pages are in the file already, and its writer is killed.
KILLED_WRITER = """
import os, signal, sqlite3, sys

database = sqlite3.connect(sys.argv[1])
database.execute("PRAGMA cache_size = 5")
database.execute("BEGIN IMMEDIATE")
database.execute("UPDATE registered_model_aliases SET version = 2")
database.execute("UPDATE model_version_tags SET value = 'x' || value")
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_writer_left_half_done_is_undone_by_the_next_reader(tmp_path):
    file = tmp_path / "mlflow.db"
    with closing(sqlite3.connect(file)) as database:
        database.execute("CREATE TABLE model_versions (name, version, current_stage)")
        database.execute("CREATE TABLE registered_model_aliases (name, version, alias)")
        database.execute("CREATE TABLE model_version_tags (name, version, key, value)")
        database.execute("CREATE TABLE registered_model_tags (name, key, value)")
        database.execute("INSERT INTO model_versions VALUES ('m', 1, 'None')")
        database.execute("INSERT INTO registered_model_aliases VALUES ('m', 1, 'champion')")
        rows = [("m", 1, f"tag {number}", "a" * 500) for number in range(400)]
        database.executemany("INSERT INTO model_version_tags VALUES (?, ?, ?, ?)", rows)
        database.commit()
    subprocess.run([sys.executable, "-c", KILLED_WRITER, str(file)], check=False)
    assert (tmp_path / "mlflow.db-journal").stat().st_size
    (version,) = of_file(file)
    assert version.aliases == ("champion",) and set(version.tags.values()) == {"a" * 500}
    assert [one.version for one in line_in_file(file, "m")] == ["1"]
    assert os.listdir(tmp_path) == ["mlflow.db"]


def test_what_mlflow_s_client_keeps_for_a_moment_goes_with_the_next_writer(tmp_path):
    elsewhere = tempfile.gettempdir()
    (tmp_path / "scratch" / "of a killed writer").mkdir(parents=True)
    with own_temporary_files(tmp_path):
        assert os.listdir(tmp_path / "scratch") == []
        made = tempfile.mkdtemp()
        assert made.startswith(str(tmp_path / "scratch"))
    assert os.listdir(tmp_path) == [] and tempfile.gettempdir() == elsewhere
