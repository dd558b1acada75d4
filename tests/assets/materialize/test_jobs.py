"""What a job tells a stage of the profile."""

from __future__ import annotations

from dataclasses import asdict, fields

from assets.materialize.jobs import run_settings
from resources.profile import Size
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
