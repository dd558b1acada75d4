"""Run one job: verify its inputs, do the missing work, and commit the artifact last."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

from training.contract import artifact
from training.contract.files.stored_root import bring_marks, forget_marks, store_files
from training.contract.identity import made_by
from training.contract.job import Job, Outcome, Work, write_job
from training.contract.parts.code import check_parts
from training.contract.process.lifetime import SignsOfLife, leaving_process_group
from training.contract.progress import Progress
from training.contract.records import RecipeError
from training.contract.running import reuse
from training.contract.running.commit import commit, cpu_seconds, node_hours_of, with_balance, with_numerics
from training.contract.running.lease import Lease, LeaseHeld
from training.contract.running.leftovers import remove_state
from training.contract.running.marks import files_of, marks_in, spent_on_ranks
from training.contract.running.ranks import contained_parts, module_of, run_array_task, run_phases, work_in
from training.contract.running.versions import check_versions
from training.contract.stage import Stage, modules_of
from training.contract.stored_state import bring_state

log = logging.getLogger(__name__)


def run_job(
    job: Job,
    stages: Mapping[str, Stage],
    *,
    ranks: str = "",
    claims: str = "",
    phase: str = "",
    missing_share: float = 1.0,
) -> int:
    """Run `job` until its artifact is committed, and return 0. An artifact that is committed already is left as it is.

    `ranks` runs only these ranks, of the phase `phase` if the stage has several, and commits nothing. With `claims`,
    `ranks` says where to begin: all ranks are run that no other process with the same `claims` has claimed. Raise
    RanksMissing if the share of unfinished ranks of a phase is above `missing_share`, or if ranks of a phase before
    `phase` are missing.
    """
    if job.stage not in stages:
        raise RecipeError(f"job.stage: {job.stage!r} is not one of {', '.join(stages)}")
    stage = stages[job.stage]
    folder = Path(job.output)
    if artifact.find(folder) is not None:
        log.info("%s is there already", folder)
        return 0
    check_parts(job.settings)
    if stage.in_ranks:
        check_versions(job, stage)
    # Ranks and processes check what they open; a stage in one piece reads its inputs whole, so that is done here.
    is_shared = stage.in_ranks or stage.distributed
    for item in job.inputs:
        (artifact.check_record if is_shared else artifact.check_input)(item)
    for item in job.guards:  # a few small files
        artifact.check_input(item)
    if ranks:
        run_array_task(job, stage, folder, ranks, claims, phase)
        return 0
    if int(os.environ.get("RANK", "0")) != 0:
        # A follower of a distributed job works but neither holds the lease nor commits.
        if stage.distributed:
            work = work_in(folder, enabled=False)
            with contained_parts(job, work):
                _run_whole(job, stage, work)
        return 0
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    if processes > 1 and not stage.distributed:
        log.warning("stage %s runs in one process; the other %d have nothing to do", stage.name, processes - 1)
    with Lease(folder, say_waiting=partial(_say_waiting, folder)) as lease:
        if artifact.find(folder) is None:  # another process may have finished between the look above and the lease
            _run_and_commit(job, stage, stages, folder, lease, missing_share)
    return 0


def _say_waiting(folder: Path, owner: str) -> None:
    progress = Progress(folder)
    progress.waits(f"a sign of life of {owner}, which holds the lease of {folder.name}")
    progress.close()


def _commit_on_the_way(stages: Mapping[str, Stage], work: Work, job: Job, make: Callable[[Work], Outcome]) -> None:
    """Make and commit the artifact of `job`, which another job makes on its way, unless somebody else makes it.

    `work` is that of the other job, which noted code and numerics.
    """
    stage, folder = stages[job.stage], Path(job.output)
    try:
        with Lease(folder) as lease:
            if artifact.find(folder) is None:
                _commit_part(job, stage, folder, lease, work, make)
    except LeaseHeld as error:
        work.progress.message(f"{job.asset} [{job.partition}] is left to another run: {error}")
    remove_state(folder)


def _commit_part(
    job: Job, stage: Stage, folder: Path, lease: Lease, work: Work, make: Callable[[Work], Outcome]
) -> None:
    write_job(job, folder / "job.json")
    started, before, own = time.monotonic(), cpu_seconds(), work_in(folder)
    try:
        outcome = with_numerics(job, stage, with_balance(job, stage, make(own)), work)
    finally:
        own.progress.close()
    files, beside = artifact.manifest(folder, outcome.files, {}), artifact.keep(folder, outcome.beside, {})
    seconds = time.monotonic() - started
    code = made_by.recorded(work, *modules_of(stage, job.settings), ranks=[])
    store_files(folder, [*files, *beside])
    node_hours = node_hours_of(job, stage, seconds, 0.0)
    spent = {"seconds": seconds, "node_hours": node_hours, "cpu_before": before}
    commit(job, outcome, folder, lease, files=files, code=code, ranks={"beside": beside} if beside else {}, **spent)


def _run_and_commit(
    job: Job, stage: Stage, stages: Mapping[str, Stage], folder: Path, lease: Lease, missing_share: float
) -> None:
    write_job(job, folder / "job.json")
    work = work_in(folder)
    work = replace(work, commit=partial(_commit_on_the_way, stages, work))
    lease.goes_on = SignsOfLife(lambda: work.progress.num_lines, job.run.hang_seconds)
    work.progress.opened()
    (bring_marks if stage.in_ranks else bring_state)(folder)
    earlier = sum(spent.get("wall_seconds", 0.0) for spent in spent_on_ranks(folder))
    started = time.monotonic()
    try:
        made_by.begin(work, *modules_of(stage, job.settings))
        with contained_parts(job, work):
            outcome = _run_stage(job, stage, work, missing_share)
        seconds = time.monotonic() - started
        node_hours = node_hours_of(job, stage, seconds, earlier)
        outcome = with_numerics(job, stage, with_balance(job, stage, outcome), work)
        marks = list(marks_in(folder))
        code = made_by.recorded(work, *modules_of(stage, job.settings), ranks=[mark.get("code", "") for mark in marks])
        written = files_of(marks)
        files = artifact.manifest(folder, outcome.files, written)
        beside = artifact.keep(folder, outcome.beside, written)
        ranks = reuse.in_record(marks, reuse.keep(folder, marks)) | ({"beside": beside} if beside else {})
        store_files(folder, [*files, *beside])
        commit(job, outcome, folder, lease, files=files, code=code, ranks=ranks, seconds=seconds, node_hours=node_hours)
    except BaseException as error:
        work.progress.closed(error)
        raise
    work.progress.closed()
    if stage.in_ranks:
        forget_marks(folder)
    remove_state(folder)


def _run_stage(job: Job, stage: Stage, work: Work, missing_share: float) -> Outcome:
    module = module_of(stage)
    if hasattr(module, "PHASES"):
        return module.finish(job, work, run_phases(job, stage, module, work, missing_share))
    if hasattr(module, "num_ranks"):
        return module.finish(job, work, run_phases(job, stage, module, work, missing_share)[""])
    return _run_whole(job, stage, work)


def _run_whole(job: Job, stage: Stage, work: Work) -> Outcome:
    """Run a stage that has no ranks, in one of its processes."""
    with leaving_process_group():
        return module_of(stage).run(job, work)
