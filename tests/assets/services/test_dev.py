"""How `pedigree dev` ends its services. Whole services run in tests/end_to_end/test_services.py."""

from __future__ import annotations

import signal
import sys
import threading

import pytest

from assets.services.dev import _commands, _start, _watch
from assets.services.signals import exit_code_of

# Ends its parent when that one catches SIGTERM, and not before.
LOADING = """
import os, signal
print("loading", flush=True)
caught = "0"
while not int(caught, 16) >> signal.SIGTERM - 1 & 1:
    (caught,) = [line.split()[1] for line in open(f"/proc/{os.getppid()}/status") if line.startswith("SigCgt")]
os.kill(os.getppid(), signal.SIGTERM)
signal.pause()
"""


@pytest.fixture
def uncaught():
    """Let this process catch SIGTERM only once `_watch` does, whatever handler other code has left."""
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGTERM, signal.SIG_DFL if before is None else before)


@pytest.mark.usefixtures("uncaught")
def test_a_service_that_is_ended_while_it_loads_prints_no_traceback(tmp_path, capsys):
    ending = threading.Event()
    service = _start([sys.executable, "-c", LOADING], {}, cwd=tmp_path, ending=ending)
    passing_on = next(one for one in threading.enumerate() if one.name == f"output of {service.pid}")
    with service:
        assert _watch([service], tmp_path, 0, ending) == exit_code_of(15)
        passing_on.join()
    said = capsys.readouterr()
    assert said.out == "loading\n" and said.err == "ended by SIGTERM; Dagster and MLflow are ended too\n"


@pytest.mark.parametrize(("uri", "services"), [("https://mlflow.example.org", 1), ("sqlite:////tmp/mlflow.db", 2)])
def test_an_mlflow_server_that_the_profile_names_is_used_and_none_is_started(tmp_path, uri, services):
    profile = tmp_path / "team.yaml"
    profile.write_text(f"name: team\ntracking_uri: {uri}\n")
    assert len(_commands(tmp_path, str(profile), 3000, 5000)) == services


def test_services_find_folders_that_the_environment_names_from_here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PEDIGREE_RECIPES", "own:recipes/more")
    monkeypatch.setenv("PEDIGREE_DATA", "data")
    for _, environment in _commands(tmp_path, "local", 1, 2):
        assert environment["PEDIGREE_RECIPES"] == f"{tmp_path}/own:{tmp_path}/recipes/more"
        assert environment["PEDIGREE_DATA"] == f"{tmp_path}/data"
