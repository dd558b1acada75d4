"""Threads, workers and micro-batches: what a model made names its numerics class, and data has the same bytes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from assets.answers.status.why import explain
from assets.materialize.jobs import job_of
from assets.state.chain import CHAIN
from assets.state.compare import compare
from assets.state.recipe_folders import SHIPPED, load_recipe
from evaluation.stages import STAGES as EVALUATION_STAGES
from resources.compute.base import Task, interpreter_argv
from resources.compute.size import Size
from tests.small_kitchen import RECIPES
from training.contract import artifact
from training.contract.identity.numerics import in_words
from training.contract.job import Job, read_job, write_job
from training.contract.run_settings import RunSettings
from training.contract.running.runner import run_job
from training.contract.stage import Asset
from training.recipe.recipe import Recipe
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


def test_a_model_of_another_class_is_told_from_another_result(copy, recipe, monkeypatch):
    """A model is made again elsewhere: the first one is gone, and its descendants say in which class it was made."""
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)  # an audited job sets it, and a test may have run one
    first_made = compare(recipe, copy).cells["base_model", recipe.name].artifact
    before, earlier = first_made.record["numerics"], first_made.path.with_name(f"{first_made.path.name}.replaced-1")
    threads = 2 if before["threads"] == 1 else 1
    first_made.path.rename(earlier)
    comparison = compare(recipe, copy)
    size = Size(threads=threads, micro_batch_tokens=2048)
    monkeypatch.delitem(sys.modules, "torchao", raising=False)  # a job is a process; this one may have run others
    run_job(job_of(comparison.cells["base_model", recipe.name], comparison, size), STAGES)
    said = (
        "the same fingerprint, another numerics class: micro_batch_tokens 0 → 2048,"
        f" threads {before['threads']} → {threads}"
    )
    cells = compare(recipe, copy).cells
    base, sft = cells["base_model", recipe.name], cells["sft_model", recipe.name]
    (why,) = explain("base_model", recipe, None, copy)["partitions"]
    assert base.state == "made" and said in why["numerics"][1]
    assert why["numerics"][0] == f"numerics class: {in_words(base.artifact.record['numerics'])}"
    assert (sft.state, sft.reasons) == ("outdated", (f"input base_model was made again: {said}",))
    shutil.rmtree(earlier)
    (entry,) = explain("sft_model", recipe, None, copy)["partitions"]
    assert entry["differences"] == [f"input base_model was made again: {said}"]
    assert compare(recipe, copy).cells["reward_model", recipe.name].reasons == ("input sft_model is to be made again",)


# Plans of recipes with more than one model, which the stage `plan` makes as it makes the small kitchen's, the index of
# synthetic rows, which the stage `index_rows` makes as it makes that of the small kitchen's rows, and the report on the
# kept steps and their average, of which the small kitchen has none. Nor has it a quantized
# model, or a suite that a task of lm-eval scores.
ELSEWHERE = (
    "ladder_plan",
    "reference_plan",
    "long_context_plan",
    "synthetic_row_index",
    "learning_curves",
    "averaged_model",
    "quantized_model",
    "checked_suites",
)
DATA = [
    name
    for name, declared in CHAIN.items()
    if not declared.stage.by_a_model and name not in (*ELSEWHERE, "scaling_fit")
]


@pytest.mark.parametrize("asset", DATA)
def test_data_has_the_same_bytes_for_every_number_of_workers_and_threads(asset, first, untouched, tmp_path, times):
    """Data stages write the same bytes whatever the number of workers and threads.

    Short: the last partition in this process with another number of workers. Long: every partition in processes of its
    own, workers × threads, and as two tasks of an array.
    """
    jobs = list(jobs_of(untouched, asset)) or [made_for_rl(asset, untouched, tmp_path / "rl")]
    for job in jobs[-times(short=1, long=len(jobs)) :]:
        expected = artifact.find(Path(job.output)).digest
        for number, run in enumerate(other_runs(job.run, CHAIN[asset])[: times(short=1, long=99)]):
            output = tmp_path / f"{job.fingerprint}-{number}"
            made = replace(job, output=str(output), run=run)
            if times(short=0, long=1):
                in_processes(made, CHAIN[asset], in_array=number == 0 and CHAIN[asset].stage.in_ranks)
            else:
                run_job(made, STAGES)
            assert artifact.find(output).digest == expected, f"{asset} [{job.partition}] with {run}"


def made_for_rl(asset: str, root: Path, output: Path) -> Job:
    """The job of an asset that only reinforcement learning has, run from what it shares with the small kitchen."""
    recipe = load_recipe("kitchen-small-rl", folders=(RECIPES, SHIPPED))
    comparison = compare(recipe, root)
    job = replace(job_of(comparison.cells[asset, recipe.name], comparison, Size()), output=str(output))
    run_job(job, STAGES)
    return job


def other_runs(run: RunSettings, declared: Asset) -> list[RunSettings]:
    """Return every other number of workers and threads, of a few.

    The first one runs in the same process. A stage without ranks runs in one process, whatever the number of workers.
    """
    numbers = (1, 2, 3) if declared.stage.in_ranks else (run.workers,)
    several = [replace(run, workers=workers, threads=threads) for workers in numbers for threads in (1, 2)]
    return [one for one in several if (one.workers, one.threads) != (run.workers, run.threads)]


def in_processes(job: Job, declared: Asset, *, in_array: bool) -> None:
    """The job as a backend runs it: torchrun for several processes, and threads for every library."""
    path = Path(f"{job.output}.json")
    write_job(job, path)
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "RAYON_NUM_THREADS", "NUMBA_NUM_THREADS")
    environment = {**os.environ, "TOKENIZERS_PARALLELISM": "true", **dict.fromkeys(names, str(job.run.threads))}
    phases = [["--phase", name] for name in declared.stage.phases] or [[]]
    array = [["--ranks", ranks, *phase] for phase in phases for ranks in ("1/2", "0/2")]
    tasks = [*array, []] if in_array else [[]]
    for more in tasks:
        task = Task(
            key="",
            argv=("-m", declared.stage.package, str(path), *more),
            size=Size(processes=job.run.processes),
            folder="",
        )
        subprocess.run(interpreter_argv(task, sys.executable), env=environment, check=True)


def test_every_stage_that_no_model_makes_is_among_them():
    tried = {CHAIN[asset].stage.name for asset in DATA}
    stages = {declared.stage.name for declared in CHAIN.values() if not declared.stage.by_a_model}
    assert stages - tried == {"scaling", "learning_curves", "average", "check_suites"}  # the first is tried below


FIT = """
import sys
from tests.evaluation.report.test_scaling import ladder
from training.contract.artifact import digest_of
from evaluation.report.scaling import page, scaling
result = scaling(ladder(noise=0.003, seed=5), {"parameters": 1e9, "tokens": 2e10}, resamplings=3, seed=1)
print(digest_of([result, page(result)]))
"""


def test_a_scaling_law_has_the_same_bytes_for_every_number_of_threads(times):
    digests = set()
    for threads in range(1, 1 + times(short=0, long=4)):
        environment = {**os.environ, "OPENBLAS_NUM_THREADS": str(threads), "OMP_NUM_THREADS": str(threads)}
        done = subprocess.run([sys.executable, "-c", FIT], env=environment, capture_output=True, text=True, check=True)
        digests.add(done.stdout)
    assert len(digests) <= 1


def test_an_audited_training_is_one_class_for_every_number_of_threads_and_processes(first, untouched, tmp_path, times):
    if not times(short=0, long=1):
        pytest.skip("trains four times: `make attack`")
    (job,) = jobs_of(untouched, "base_model")
    made = []
    for threads, processes in ((1, 1), (2, 1), (1, 2), (2, 2)):
        run = replace(job.run, threads=threads, processes=processes, micro_batch_tokens=1024, audit=True)
        output = tmp_path / f"{threads}-{processes}"
        in_processes(replace(job, output=str(output), run=run), CHAIN["base_model"], in_array=False)
        made.append(artifact.find(output))
    assert len({one.digest for one in made}) == 1
    assert [one.record["numerics"] for one in made] == [made[0].record["numerics"]] * 4
    assert "processes" not in made[0].record["numerics"]
