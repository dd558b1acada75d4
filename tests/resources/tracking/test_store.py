"""Several processes that meet a new MLflow file at once."""

from __future__ import annotations

import subprocess
import sys

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
