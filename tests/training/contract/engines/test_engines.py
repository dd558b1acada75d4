"""The choice of an engine; what engines do is in `test_runner.py` and `tests/cluster/test_ranks_on_ray.py`."""

from __future__ import annotations

import importlib
import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import get_args, get_type_hints

import pytest

from resources.profile import Size
from training.contract.engines.engine import MODULES
from training.contract.engines.on_ray import remove_left_folders
from training.contract.engines.ray_task import make_rank
from training.contract.files.writing import this_process
from training.contract.job import Job
from training.contract.run_settings import RunSettings

PROJECT = Path(__file__).parents[4]


def test_every_engine_that_a_profile_can_name_has_its_module():
    assert set(MODULES) == set(get_args(get_type_hints(RunSettings)["engine"]))
    assert all(callable(importlib.import_module(module).each_result) for module in MODULES.values())


def test_without_ray_the_extra_and_the_field_are_named():
    code = f"import sys; sys.path.insert(0, {str(PROJECT)!r}); from training.contract.engines import engine"
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
    from assets.materialize.jobs import task_of

    task = task_of(job, replace(Size(backend="slurm", nodes=nodes), engine=engine))
    assert (task.num_tasks, task.on_ray) == (num_tasks, on_ray)


def test_a_node_that_does_not_see_the_job_is_refused_before_it_imports_anything(tmp_path):
    (tmp_path / "token").write_text("other")
    for signs in (tmp_path, tmp_path / "absent"):
        answer = make_rank({"signs": str(signs), "token": "one", "folder": "/far/a", "rank": 0})
        assert re.fullmatch("node .+ does not see /far/a; the root must be on a .+", answer["refused"])


def test_the_folder_that_ray_of_a_killed_job_left_goes_and_no_other(tmp_path):
    code = f"import sys; sys.path.insert(0, {str(PROJECT)!r}); from training.contract.files.writing import this_process"
    argv = [sys.executable, "-I", "-S", "-c", f"{code}; print(this_process(), end='')"]
    ended = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    elsewhere = f"{'0' * 8}{ended[8:]}"
    for name in (ended, this_process(), elsewhere, "x1y2z3", "notes-1-"):
        (tmp_path / f"ray-{name}" / "session").mkdir(parents=True)
    remove_left_folders(tmp_path)
    left = {path.name.removeprefix("ray-") for path in tmp_path.iterdir()}
    assert left == {this_process(), elsewhere, "x1y2z3", "notes-1-"}


# In a process of its own, because a worker ends with its parent from its first rank on.
WORKER = """
import json, sys
from training.contract.engines import ray_node
from training.contract.engines.engine import Maker

def maker_of(order):
    return Maker(made_by="", order=order, begin=lambda: None, versions=lambda: {"numpy": "2.4"}, rank=made)

def made(rank):
    return {"rank": rank, "node": open(sys.argv[1] + "/" + str(rank)).read().split()[0]}

sys.modules["worker"] = sys.modules["__main__"]
order = {"signs": sys.argv[1], "token": "t", "made_by": "worker:maker_of", "job": {}, "unset": [], "rank": 3}
said = [ray_node.answer(order | {"versions": {"numpy": version}}, "a") for version in ("2.5", "2.4")]
said.append(ray_node.answer(order | {"token": "u", "made_by": "worker:gone", "versions": {}}, "a"))
print(json.dumps(said))
"""


def test_a_worker_with_other_versions_is_refused_with_both_and_names_its_node_while_it_works(tmp_path):
    done = subprocess.run([sys.executable, "-c", WORKER, str(tmp_path)], capture_output=True, text=True, check=True)
    other, same, older = json.loads(done.stdout)
    assert other["refused"] == (
        "node a has other versions than this job: numpy 2.4 there, 2.5 here; install the same ones there"
    )
    assert same == {"result": {"rank": 3, "node": "a"}} and not list(tmp_path.iterdir())
    assert older["refused"].startswith("node a lacks this version of pedigree: ")
