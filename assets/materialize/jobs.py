"""Turn a cell (one asset in one partition) into the job that makes it, and the job into a task of a compute backend."""

from __future__ import annotations

import math
import os
import subprocess
from dataclasses import fields, replace
from pathlib import Path

from assets.materialize.causes import StageFailed
from assets.state.asked_cell import seed_of
from assets.state.cell import Cell, Comparison
from assets.state.chain import CHAIN
from assets.state.repairs import held_digests
from assets.state.tombstones import erased_by
from resources.compute.base import Task
from resources.profile import Size
from resources.tracking.reports import artifact_key
from training.contract import artifact
from training.contract.files.erased import list_digest
from training.contract.job import InputArtifact, Job
from training.contract.process.exit_codes import BAD_INPUT
from training.contract.run_settings import RunSettings
from training.contract.running.versions import VARIABLE, versions_file, write_versions
from training.contract.scopes import KEPT_STEPS

# Variables passed on from the orchestrator's environment. Proxy variables are not passed on: their addresses may hold a
# password, which must not be written to a job file.
PASSED_VARIABLES = ("PEDIGREE_DATA", "OMP_WAIT_POLICY", "PEDIGREE_FETCH_ALLOW", "PEDIGREE_FETCH_MAX_GB")
PROJECT = Path(__file__).parents[2]


def job_of(cell: Cell, comparison: Comparison, size: Size) -> Job:
    """The job that makes a cell, and others on its way. Raises StageFailed if an input or a guard is not made."""
    job = _job(cell, comparison, size)
    for key in cell.guards:  # also the base model, which the job of a kept step does not name
        _input(key, comparison)
    return replace(job, on_the_way=tuple(_job(one, comparison, size) for one in on_the_way_of(cell, comparison)))


def _job(cell: Cell, comparison: Comparison, size: Size) -> Job:
    stage = CHAIN[cell.asset].stage
    return Job(
        stage=stage.name,
        asset=cell.asset,
        partition=cell.partition,
        recipe=comparison.recipe.name,
        fingerprint=cell.fingerprint,
        stage_version=stage.version,
        settings=cell.settings,
        inputs=tuple(_input(key, comparison) for key in cell.inputs),
        # A kept step only waits for the base model: its record is the same if it is made on the way.
        guards=tuple(_input(key, comparison) for key in cell.guards if key[0] != "base_model"),
        output=str(artifact.folder_of(comparison.root, cell.asset, cell.fingerprint)),
        run=run_settings(size),
        seed=seed_of(cell.settings),
        libraries=stage.library_versions(),
        code_revision=code_revision(),
        replaces=held_digests(comparison, cell),
    )


def on_the_way_of(cell: Cell, comparison: Comparison) -> list[Cell]:
    """Return the cells that are made on the way to a cell: the missing kept steps that its training passes."""
    if cell.asset not in ("base_model", KEPT_STEPS):
        return []
    end = cell.settings.get("kept", {}).get("step", math.inf)
    cells = [one for one in comparison.cells.values() if one.asset == KEPT_STEPS and one.state != "unavailable"]
    missing = [one for one in cells if one.artifact is None and not one.was_there]  # what was there is set aside first
    return [one for one in missing if one.settings["kept"]["step"] < end]


def _input(key: tuple[str, str], comparison: Comparison) -> InputArtifact:
    """Return one input or guard of a job, from its cell.

    Raise StageFailed if its artifact has not been made, or a list of erased files beside it that no takedown wrote.
    """
    made = comparison.cells[key].artifact
    if made is None:
        raise StageFailed(f"{key[0]} [{key[1]}] is not made; materialize it first", BAD_INPUT)
    judged = list_digest(made.path)  # a job refuses another one
    if unknown := erased_by(made, judged)[1]:
        raise StageFailed(unknown[0], BAD_INPUT)
    return InputArtifact(
        asset=key[0],
        partition=key[1],
        fingerprint=made.fingerprint,
        digest=made.digest,
        record_digest=made.record_digest,
        path=str(made.path),
        numerics=made.record.get("numerics"),
        erased=judged,
    )


def run_settings(size: Size) -> RunSettings:
    """Return the fields of a profile's size that a job receives: those of `RunSettings`."""
    return RunSettings(**{field.name: getattr(size, field.name) for field in fields(RunSettings)})


def code_revision() -> str:
    """The project's git commit, or "" outside a checkout. It is recorded but is part of no fingerprint."""
    if not (PROJECT / ".git").exists():
        return ""  # an installed package; a git repository around it would be another project
    try:
        asked = subprocess.run(
            ["git", "-C", str(PROJECT), "rev-parse", "HEAD"], capture_output=True, text=True, check=False
        )
    except FileNotFoundError:
        return ""
    return asked.stdout.strip()


def task_of(job: Job, size: Size, withheld: frozenset[str] = frozenset()) -> Task:
    """The job as a task of a backend, which does not inherit the environment variables `withheld`.

    A stage that works in ranks fans out into one task per node, or its nodes form a Ray cluster. Any other stage uses
    its nodes in one task.
    """
    stage = CHAIN[job.asset].stage
    on_ray = stage.in_ranks and size.engine == "ray"
    return Task(
        key=artifact_key(job.asset, job.fingerprint),
        argv=("-m", stage.package, str(Path(job.output) / "job.json")),
        size=size,
        folder=job.output,
        withheld=withheld,
        environment=_environment() | ({VARIABLE: str(versions_file(job))} if _compares(job, size) else {}),
        num_tasks=size.nodes if stage.in_ranks and not on_ray else 1,
        phases=stage.phases,
        on_ray=on_ray and size.nodes > 1,
    )


def note_versions(job: Job, size: Size) -> None:
    """Write down the versions with which the job is submitted, if it makes data on another machine.

    The job refuses a node that has others, because data artifacts are the same bytes everywhere.
    """
    if _compares(job, size):
        write_versions(job, CHAIN[job.asset].stage)


def _compares(job: Job, size: Size) -> bool:
    return size.backend != "local" and CHAIN[job.asset].stage.in_ranks


def _environment() -> dict[str, str]:
    """The environment variables that a job needs. A job must not rely on any other variable of the orchestrator."""
    fixed = {
        "HF_HUB_OFFLINE": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONHASHSEED": "0",
        # Idle threads spin for some microseconds before they sleep, because the loops of a small model follow each
        # other that closely. Threads that spin longer take cores from other jobs (docs/log/benchmarks.md).
        "GOMP_SPINCOUNT": "1000",
    }
    passed = {name: os.environ[name] for name in PASSED_VARIABLES if name in os.environ}
    if "OMP_WAIT_POLICY" in passed:
        del fixed["GOMP_SPINCOUNT"]  # it would override OMP_WAIT_POLICY
    return {**fixed, **passed}
