"""The choice of an engine; what engines do is in `test_runner.py` and `tests/cluster/test_ranks_on_ray.py`."""

from __future__ import annotations

import importlib
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import get_args, get_type_hints

import pytest

from assets.running.jobs import task_of
from resources.profile import Size
from training.engines.engine import MODULES
from training.job import Job
from training.run_settings import RunSettings

PROJECT = Path(__file__).parents[2]


def test_every_engine_that_a_profile_can_name_has_its_module():
    assert set(MODULES) == set(get_args(get_type_hints(RunSettings)["engine"]))
    assert all(callable(importlib.import_module(module).each_result) for module in MODULES.values())


def test_without_ray_the_extra_and_the_field_are_named():
    code = f"import sys; sys.path.insert(0, {str(PROJECT)!r}); from training.engines import engine"
    argv = [sys.executable, "-I", "-S", "-c", f"{code}; engine.check_installed('ray')"]  # without installed packages
    said = subprocess.run(argv, capture_output=True, text=True, check=False).stderr
    assert "RecipeError: engine: ray needs the extra `ray`, which " in said
    assert "`pip install 'pedigree[ray]'` installs it, and `engine: local` in the profile does without" in said


@pytest.mark.parametrize(
    ("asset", "engine", "nodes", "num_tasks", "on_ray"),
    [
        ("filtered_documents", "local", 3, 3, False),
        ("filtered_documents", "ray", 3, 1, True),
        ("filtered_documents", "ray", 1, 1, False),
        ("base_model", "ray", 3, 1, False),
    ],
)
def test_only_the_nodes_of_a_stage_in_ranks_form_a_cluster(asset, engine, nodes, num_tasks, on_ray):
    stage = {"filtered_documents": "filter", "base_model": "pretrain"}[asset]
    plain = dict.fromkeys(("partition", "recipe", "fingerprint", "stage_version"), "x")
    job = Job(stage=stage, asset=asset, settings={}, output="/o", **plain)
    task = task_of(job, replace(Size(backend="slurm", nodes=nodes), engine=engine))
    assert (task.num_tasks, task.on_ray) == (num_tasks, on_ray)
