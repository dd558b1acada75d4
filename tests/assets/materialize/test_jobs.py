"""What a job tells a stage of the profile."""

from __future__ import annotations

import re
from dataclasses import asdict, fields
from pathlib import Path

import pytest

from assets.materialize.causes import StageFailed
from assets.materialize.jobs import run_settings, task_of
from resources.profile import Profile, Size
from tests.jobs import job_by_hand
from training.contract.files.objects import Objects
from training.contract.files.stored_root import make_stored_root
from training.contract.records import RecipeError
from training.contract.run_settings import RunSettings

# One value for each field of a job that is not the default.
OTHERS = {
    "workers": 3, "threads": 4, "processes": 5, "nodes": 6, "gpus_per_node": 7, "micro_batch_tokens": 8,
    "checkpoint_seconds": 9.0, "shard": 10, "tensor": 11, "context": 12, "expert": 13, "pipeline": 14,
    "pipeline_chunks": 15, "audit": True, "hang_seconds": 16.0, "compile": "blocks", "recompute": "full",
    "memory_gb": 17.0, "text_samples": False, "sample_steps": 18, "evaluation_steps": 19, "price_per_hour": 20.0,
    "engine": "ray", "rank_cpus": 21.0, "rank_memory_gb": 22.0, "rank_retries": 23, "spare_nodes": 24, "zero_stage": 2,
    "gather_dtype": "bf16", "read_steps": 25, "attention": "varlen", "answer_weights": "gathered", "watch_share": 0.26,
}  # fmt: skip
AN_ADDRESS = {"engine": "ray", "ray_address": "head:6379"}  # of a cluster, which has its own nodes


def test_every_field_of_a_job_s_settings_comes_from_the_field_of_the_profile_with_its_name():
    assert {*OTHERS, *AN_ADDRESS} == {field.name for field in fields(RunSettings)}
    assert asdict(run_settings(Size(backend="slurm", **OTHERS))) == {**OTHERS, "ray_address": None}
    assert asdict(run_settings(Size(**AN_ADDRESS))).items() >= AN_ADDRESS.items()


def test_a_size_that_says_nothing_is_a_job_that_says_nothing():
    without = RunSettings()
    assert run_settings(Size(workers=without.workers)) == without


LOCALLY = {"model_card": {"backend": "local"}, "promoted_model": {"backend": "local", "node_cache": None}}


def job_in(root: Path, asset: str = "filtered_documents", settings: dict | None = None):
    stage = {"filtered_documents": "filter", "base_model": "pretrain"}[asset]
    return job_by_hand(stage, root / asset / "f", settings, asset=asset)


def test_a_job_of_a_root_in_a_store_runs_in_a_folder_of_the_node(tmp_path):
    make_stored_root(tmp_path / "b-root-1", Objects("s3://b/root", "http://s3.example"))
    job = job_in(tmp_path / "b-root-1")
    task = task_of(job, Size(backend="slurm", nodes=3, node_cache="/scratch"))
    assert task.folder == job.output and task.work_folder == "/scratch/b-root-1/filtered_documents/f"
    assert task.argv == ("-m", "training", f"{task.work_folder}/job.json")
    assert task.environment["PEDIGREE_VERSIONS"] == f"{task.work_folder}/scratch/versions.json"
    assert task_of(job, Size(backend="slurm", nodes=3)).work_folder == job.output


@pytest.mark.parametrize(
    ("asset", "settings", "size", "said"),
    [
        ("base_model", {}, {"nodes": 2}, "a training or scoring over several nodes must share"),
        ("filtered_documents", {}, {"nodes": 2, "engine": "ray"}, "the nodes of a Ray cluster must share"),
        ("filtered_documents", {"data": ["{root}/base_model/a"]}, {}, "names data by made://"),
        ("filtered_documents", {}, {"node_cache": "{place}"}, "is where this machine has its own folder"),
    ],
)
def test_what_needs_the_folder_is_refused_with_the_field(tmp_path, asset, settings, size, said):
    root = tmp_path / "b-root-1"
    make_stored_root(root, Objects("s3://b/root"))
    settings = {name: [one.format(root=root) for one in some] for name, some in settings.items()}
    given = {"node_cache": "/scratch", **size}
    given["node_cache"] = given["node_cache"].format(place=tmp_path)
    with pytest.raises(StageFailed, match=f"node_cache='.*{re.escape(said)}") as failed:
        task_of(job_in(root, asset, settings), Size(backend="slurm", **given))
    assert failed.value.exit_code == 2


def test_a_folder_of_the_nodes_without_effect_is_refused(tmp_path):
    with pytest.raises(StageFailed, match="is for roots in an object store"):
        task_of(job_in(tmp_path), Size(backend="slurm", node_cache="/scratch"))
    profile = Profile(name="p", default={"backend": "slurm", "node_cache": "/scratch"}, stages=LOCALLY)
    assert profile.size_for("base_model").node_cache == "/scratch"
    with pytest.raises(RecipeError, match=r"^stages.model_card: node_cache='/scratch' is without effect: .*; set it"):
        profile.size_for("model_card")
    assert profile.size_for("promoted_model").node_cache is None
    with pytest.raises(RecipeError, match="node_cache='scratch'; the absolute path"):
        Size(backend="slurm", node_cache="scratch")
