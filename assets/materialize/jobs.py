"""Turn a cell (one asset in one partition) into the job that makes it, and the job into a task of a compute backend."""

from __future__ import annotations

import json
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
from assets.state.tombstones import FOLDER, erased_by
from resources.compute.base import NodeFolder, NotSubmitted, Task
from resources.profile import Size
from resources.tracking.reports import artifact_key
from training.contract import artifact
from training.contract.files.erased import list_digest
from training.contract.files.stored_root import store_small, stored_root
from training.contract.files.written_lines import send_what_is_here
from training.contract.job import DataError, InputArtifact, Job
from training.contract.process.exit_codes import BAD_INPUT
from training.contract.run_settings import RunSettings
from training.contract.running.versions import VARIABLE, VERSIONS_FILE, versions_file, write_versions
from training.contract.scopes import WHOLE

# Variables passed on from the orchestrator's environment. Proxy variables are not passed on: their addresses may hold a
# password, which must not be written to a job file.
PASSED_VARIABLES = ("PEDIGREE_DATA", "OMP_WAIT_POLICY", "PEDIGREE_FETCH_ALLOW", "PEDIGREE_FETCH_MAX_GB")
PROJECT = Path(__file__).parents[2]
BASE_MODEL = "base_model"


def job_of(cell: Cell, comparison: Comparison, size: Size) -> Job:
    """The job that makes a cell, and others on its way. Raises StageFailed if an input or a guard is not made."""
    job = _job(cell, comparison, size)
    for key in cell.guards:  # also the last model, which the job of a kept step does not name
        _input(key, comparison)
    begin = comparison.state_before(cell) if cell.asset in (*WHOLE, BASE_MODEL) else None
    return replace(
        job,
        on_the_way=tuple(_job(one, comparison, size) for one in on_the_way_of(cell, comparison)),
        goes_on_from=None if begin is None else _given(begin),
    )


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
        # A kept step only waits for its training's last model: its record is the same if it is made on the way.
        guards=tuple(_input(key, comparison) for key in cell.guards if key[0] != WHOLE.get(cell.asset)),
        output=str(artifact.folder_of(comparison.root, cell.asset, cell.fingerprint)),
        run=run_settings(size),
        seed=seed_of(cell.settings),
        libraries=stage.library_versions(),
        code_revision=code_revision(),
        replaces=held_digests(comparison, cell),
    )


def on_the_way_of(cell: Cell, comparison: Comparison) -> list[Cell]:
    """Return the cells that are made on the way to a cell: the missing kept steps that its training passes."""
    kept = next((name for name, whole in WHOLE.items() if cell.asset in (name, whole)), None)
    if kept is None:
        return []
    begin, end = (comparison.step_before(cell), cell.kept_at) if cell.asset == kept else (0, math.inf)
    cells = [one for one in comparison.cells.values() if one.asset == kept and one.state != "unavailable"]
    missing = [one for one in cells if one.artifact is None and not one.was_there]  # what was there is set aside first
    return [one for one in missing if begin < one.kept_at < end]


def _input(key: tuple[str, str], comparison: Comparison) -> InputArtifact:
    """Return one input or guard of a job; see `_given`."""
    return _given(comparison.cells[key])


def _given(cell: Cell) -> InputArtifact:
    """Return the artifact of a cell as a job reads it.

    Raise StageFailed if its artifact has not been made, or a list of erased files beside it that no takedown wrote.
    """
    made = cell.artifact
    if made is None:
        raise StageFailed(f"{cell.asset} [{cell.partition}] is not made; materialize it first", BAD_INPUT)
    judged = list_digest(made.path)  # a job refuses another one
    if unknown := erased_by(made, judged)[1]:
        raise StageFailed(unknown[0], BAD_INPUT)
    return InputArtifact(
        asset=cell.asset,
        partition=cell.partition,
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
    there = node_folder_of(job, size)
    place = Path(job.output if there is None else there.path)
    versions = {VARIABLE: str(versions_file(replace(job, output=str(place))))}
    return Task(
        key=artifact_key(job.asset, job.fingerprint),
        argv=("-m", stage.package, str(place / "job.json")),
        size=size,
        folder=job.output,
        withheld=withheld,
        environment=_environment() | (versions if _compares(job, size) else {}),
        num_tasks=size.nodes if stage.in_ranks and not on_ray else 1,
        phases=stage.phases,
        on_ray=on_ray and size.nodes > 1,
        node_folder=there,
    )


def node_folder_of(job: Job, size: Size) -> NodeFolder | None:
    """Return where nodes that do not see the root's folder run the job; None if they see it.

    Raise StageFailed if the job needs a folder that its nodes share.
    """
    if size.node_cache is None:
        return None
    stage, root = CHAIN[job.asset].stage, stored_root(Path(job.output))
    told = f"{job.asset} [{job.partition}]: node_cache={size.node_cache!r} in the profile"
    if root is None:
        where = Path(job.output).parents[1]
        raise StageFailed(f"{told} is for roots in an object store, and {where} is a folder; remove it", BAD_INPUT)
    if size.nodes > 1 and (not stage.in_ranks or size.engine == "ray"):
        what = "the nodes of a Ray cluster" if stage.in_ranks else "a training or scoring over several nodes"
        raise StageFailed(f"{told}: {what} must share the root's folder; change it, or set nodes: 1", BAD_INPUT)
    settings = json.dumps(job.settings, ensure_ascii=False).replace(
        f"{root.folder}/{FOLDER}/", ""
    )  # a node brings these
    if str(root.folder) in settings:
        raise StageFailed(
            f"{told}: its recipe names data by made://, which are opened in the root's folder; change it", BAD_INPUT
        )
    place = Path(size.node_cache, root.folder.name)
    if place == root.folder:
        raise StageFailed(f"{told} is where this machine has its own folder of the root; change it", BAD_INPUT)
    folder = artifact.folder_of(place, job.asset, job.fingerprint)
    return NodeFolder(path=str(folder), address=root.objects.address, endpoint=root.objects.endpoint)


def hand_over(task: Task) -> None:
    """Write into the root's store what a node that does not see the root's folder needs to begin.

    What earlier attempts on this machine wrote beside the artifact goes there too, before nodes add to it. Raise
    NotSubmitted if the store does not take it.
    """
    folder = Path(task.folder)
    try:
        for name in ("job.json", f"{artifact.SCRATCH_FOLDER}/{VERSIONS_FILE}"):
            if (path := folder / name).exists():
                store_small(path, path.read_bytes())
        send_what_is_here(folder)
    except (OSError, DataError) as error:
        raise NotSubmitted(f"its job cannot be handed over to a node: {error}") from None


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
