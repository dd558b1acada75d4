"""Threads, workers and micro-batches: what a model made names its numerics class, and data has the same bytes."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from assets.remade import class_lines
from assets.status import compare
from assets.why import explain
from evaluation.stages import STAGES as EVALUATION_STAGES
from tests.end_to_end.conftest import RECIPES
from training import artifact
from training.job import Job, read_job
from training.recipe import SHIPPED, Recipe, load_recipe
from training.runner import run_job
from training.stages import STAGES as TRAINING_STAGES

STAGES = {**TRAINING_STAGES, **EVALUATION_STAGES}


@pytest.fixture
def recipe() -> Recipe:
    return load_recipe("kitchen-small", folders=(RECIPES, SHIPPED))


@pytest.fixture
def copy(first, untouched, tmp_path) -> Path:
    """A copy of the small kitchen's root, to be changed."""
    return shutil.copytree(untouched, tmp_path / "root")


def jobs_of(root: Path, asset: str) -> Iterator[Job]:
    """The jobs that made the asset's artifacts under `root`, with their inputs there."""
    for path in sorted((root / asset).glob("*/job.json")):
        job = read_job(path)
        inputs = (replace(item, path=str(root / item.asset / item.fingerprint)) for item in job.inputs)
        yield replace(job, inputs=tuple(inputs), output=str(path.parent))


def test_a_model_of_another_class_is_told_from_another_result(copy, recipe):
    """A model is made again elsewhere: the first one is gone, and its descendants say in which class it was made."""
    (job,) = jobs_of(copy, "base_model")
    before = artifact.find(Path(job.output)).record["numerics"]
    threads = 2 if before["threads"] == 1 else 1
    shutil.move(job.output, f"{job.output}.replaced-1")
    run_job(replace(job, run=replace(job.run, threads=threads, micro_batch_tokens=2048)), STAGES)
    said = (
        "the same fingerprint, another numerics class: micro_batch_tokens 0 → 2048,"
        f" threads {before['threads']} → {threads}"
    )
    cells = compare(recipe, copy).cells
    base, sft = cells["base_model", recipe.name], cells["sft_model", recipe.name]
    assert base.state == "made" and said in class_lines("base_model", base.artifact)[1]
    assert (sft.state, sft.reasons) == ("outdated", (f"input base_model was made again: {said}",))
    shutil.rmtree(f"{job.output}.replaced-1")
    (entry,) = explain("sft_model", recipe, None, copy)["partitions"]
    assert entry["differences"] == [f"input base_model was made again: {said}"]
    assert compare(recipe, copy).cells["reward_model", recipe.name].reasons == ("input sft_model is to be made again",)
