"""Several processes that meet a new MLflow file at once."""

from __future__ import annotations

import subprocess
import sys


def test_processes_of_several_roots_make_the_tables_of_one_file_in_turn(tmp_path):
    code = (
        "import sys; from pathlib import Path; from resources.tracking import make_client;"
        "c = make_client(sys.argv[1], Path(sys.argv[2])); c.create_experiment(sys.argv[3])"
    )
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    started = [
        subprocess.Popen(
            [sys.executable, "-c", code, uri, str(tmp_path / name), name], stderr=subprocess.PIPE, text=True
        )
        for name in ("one", "two", "three")
    ]
    errors = [process.communicate()[1] for process in started]
    assert [process.returncode for process in started] == [0, 0, 0], errors
