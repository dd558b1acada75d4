"""Run one job: verify its inputs, do the missing work, and commit the artifact last.

`python -m training job.json` and `python -m evaluation job.json` call this module, each with its table of stages.

Exit codes: 0 the artifact is committed, now or before; 2 bad input; 3 a gate or check refused an input; 4 more ranks
are missing than a finishing job may run; 75 stopped on request, the same command resumes; 76 another live process is
making the same artifact; 1 any other error.
"""

from __future__ import annotations

import argparse
import importlib
import json
import logging
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

from training.contract import artifact
from training.contract.engines import local
from training.contract.engines.engine import Here, Maker, engine_of
from training.contract.files.checked import damage_of, noting_opened
from training.contract.files.checksums import canonical_json, digest_of
from training.contract.files.full_disk import is_full_disk
from training.contract.files.writing import Unsealed, read_sealed, write_sealed
from training.contract.identity import made_by, numerics
from training.contract.job import (
    Counts,
    DataError,
    Job,
    Outcome,
    RefusedInput,
    StopRequested,
    Work,
    read_job,
    write_job,
)
from training.contract.parts.code import PARTS, check_parts
from training.contract.parts.contained import Bounds, contained
from training.contract.process.exit_codes import BAD_INPUT, BUSY, FAILED, MISSING_RANKS, REFUSED, REQUEUE
from training.contract.process.lean import leave_pandas_out, uncollected
from training.contract.process.lifetime import (
    SignsOfLife,
    cpu_seconds_with_children,
    die_with_parent,
    leaving_process_group,
)
from training.contract.progress import Progress
from training.contract.records import RecipeError, read_record, write_record
from training.contract.running import reuse
from training.contract.running.accounts import balance_gate
from training.contract.running.attempt import Attempt, attempt_name, attempt_task
from training.contract.running.claims import Claims
from training.contract.running.lease import Lease, LeaseHeld
from training.contract.running.leftovers import RANKS_FOLDER, remove_leftovers, remove_state
from training.contract.running.phase import Phase, phase_of, phases_of
from training.contract.running.versions import check_versions, versions_of
from training.contract.secrets import masked_errors, masked_output
from training.contract.stage import Stage, modules_of

log = logging.getLogger(__name__)

TOTAL_FILE = "total.json"  # beside the marks of a fan-out's ranks: how many ranks there are
NAMED_RANKS = 10  # missing ranks that an error message lists


class RanksMissing(RuntimeError):
    """More ranks are missing than the finishing job of a fan-out may run itself."""


@contextmanager
def stop_requests() -> Iterator[list[int]]:
    """Yield a list to which each SIGTERM or SIGUSR1 (Slurm's early warning) is added; restore the old handlers after.

    A trainer checks the list after each step, saves its state and raises StopRequested. Only the main thread of a
    process receives signals; in other threads the list stays empty.
    """
    asked: list[int] = []

    def note(number: int, _: FrameType | None) -> None:
        asked.append(number)

    is_main = threading.current_thread() is threading.main_thread()
    listened = (signal.SIGTERM, signal.SIGUSR1) if is_main else ()
    previous: dict[int, Any] = {number: signal.signal(number, note) for number in listened}
    try:
        yield asked
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def main(arguments: Sequence[str], stages: Mapping[str, Stage]) -> int:
    """Run the job file named on the command line; return the exit code. Secrets are masked in everything it prints."""
    with masked_errors(), masked_output():
        return _main(arguments, stages)


def _main(arguments: Sequence[str], stages: Mapping[str, Stage]) -> int:
    if "TORCHELASTIC_RUN_ID" in os.environ:
        die_with_parent()  # else the processes of a killed torchrun would wait for a store that is gone
    parser = argparse.ArgumentParser(description="Run one stage of a pipeline, as its job file says.")
    parser.add_argument("job", help="path of a job.json")
    parser.add_argument(
        "--ranks", default="", help="comma-separated ranks to run, committing nothing; or i/n for every n-th from i"
    )
    parser.add_argument(
        "--claims",
        default="",
        metavar="NAME",
        help="with --ranks i/n: begin with these ranks and go on with all others, leaving out what another process with"
        " the same NAME has claimed (training/contract/running/claims.py)",
    )
    parser.add_argument(
        "--phase",
        default="",
        help="the phase of these ranks, if the stage has several (training/contract/running/phase.py)",
    )
    parser.add_argument(
        "--finish", type=float, default=1.0, metavar="SHARE", help="refuse when more of the ranks than this are missing"
    )
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    try:
        job = read_job(options.job)
    except (RecipeError, DataError) as error:
        return _fail(BAD_INPUT, error, Attempt(Path(options.job).parent))
    attempt = Attempt(Path(job.output))
    try:
        if job.stage in stages and _knows_no_frames(stages[job.stage]):
            leave_pandas_out()
        given = {"ranks": options.ranks, "claims": options.claims, "phase": options.phase}
        code = run_job(job, stages, **given, missing_share=options.finish)
        attempt.ended(code)
        return code
    except (RecipeError, DataError) as error:
        return _fail(BAD_INPUT, error, attempt)
    except RefusedInput as error:
        return _fail(REFUSED, error, attempt)
    except LeaseHeld as error:
        return _fail(BUSY, error, attempt)
    except RanksMissing as error:
        return _fail(MISSING_RANKS, error, attempt)
    except StopRequested as error:
        log.info("stopped: %s", error)
        attempt.ended(REQUEUE, str(error))
        return REQUEUE
    except BaseException as error:
        if is_full_disk(error):
            place = getattr(error, "filename", None) or Path(options.job).parent  # a library's own error names no file
            said = f"disk full while writing {place}; nothing was committed. Free space and run again."
            return _fail(FAILED, said, attempt)
        attempt.ended(1, f"{type(error).__name__}: {error}")
        raise


def _knows_no_frames(stage: Stage) -> bool:
    return stage.module.startswith("training.data.")


def _fail(code: int, error: object, attempt: Attempt) -> int:
    attempt.ended(code, str(error))
    print(f"error: {error}", file=sys.stderr, flush=True)
    return code


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
    for item in job.guards:  # verdicts: a few small files
        artifact.check_input(item)
    if ranks:
        _run_array_task(job, stage, folder, ranks, claims, phase)
        return 0
    if int(os.environ.get("RANK", "0")) != 0:
        # A follower of a distributed job works but neither holds the lease nor commits.
        if stage.distributed:
            work = _work(folder, enabled=False)
            with _contained(job, work):
                _run_whole(job, stage, work)
        return 0
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    if processes > 1 and not stage.distributed:
        log.warning("stage %s runs in one process; the other %d have nothing to do", stage.name, processes - 1)
    with Lease(folder, say_waiting=partial(_say_waiting, folder)) as lease:
        if artifact.find(folder) is None:  # another process may have finished between the look above and the lease
            _run_and_commit(job, stage, folder, lease, missing_share)
    return 0


def _say_waiting(folder: Path, owner: str) -> None:
    progress = Progress(folder)
    progress.waits(f"a sign of life of {owner}, which holds the lease of {folder.name}")
    progress.close()


def _run_and_commit(job: Job, stage: Stage, folder: Path, lease: Lease, missing_share: float) -> None:
    write_job(job, folder / "job.json")
    work = _work(folder)
    lease.goes_on = SignsOfLife(lambda: work.progress.num_lines, job.run.hang_seconds)
    work.progress.opened()
    earlier = sum(spent.get("wall_seconds", 0.0) for spent in _spent(folder))
    started = time.monotonic()
    try:
        made_by.begin(work, *modules_of(stage, job.settings))
        with _contained(job, work):
            outcome = _run_stage(job, stage, work, missing_share)
        seconds = time.monotonic() - started
        node_hours = _node_hours(job, stage, seconds, earlier)
        outcome = _with_numerics(job, stage, _with_balance(job, stage, outcome), work)
        marks = list(_marks(folder))
        code = made_by.recorded(work, *modules_of(stage, job.settings), ranks=[mark.get("code", "") for mark in marks])
        written = _files_of(marks)
        files = artifact.manifest(folder, outcome.files, written)
        beside = artifact.keep(folder, outcome.beside, written)
        ranks = reuse.in_record(marks, reuse.keep(folder, marks)) | ({"beside": beside} if beside else {})
        commit(job, outcome, folder, lease, files=files, code=code, ranks=ranks, seconds=seconds, node_hours=node_hours)
    except BaseException as error:
        work.progress.closed(error)
        raise
    work.progress.closed()
    remove_state(folder)


def _contained(job: Job, work: Work) -> AbstractContextManager[None]:
    """Return a context manager that holds the parts from outside to the bounds of the job, if it has such parts."""
    limits = Bounds.of(job) if job.settings.get(PARTS) else None
    return contained(limits, lambda: work.progress.num_lines, lambda said: _fail(2, said, Attempt(work.path)))


def _run_stage(job: Job, stage: Stage, work: Work, missing_share: float) -> Outcome:
    module = _module(stage)
    if hasattr(module, "PHASES"):
        return module.finish(job, work, _run_phases(job, stage, module, work, missing_share))
    if hasattr(module, "num_ranks"):
        return module.finish(job, work, _run_phases(job, stage, module, work, missing_share)[""])
    return _run_whole(job, stage, work)


def _run_whole(job: Job, stage: Stage, work: Work) -> Outcome:
    """Run a stage that has no ranks, in one of its processes."""
    with leaving_process_group():
        return _module(stage).run(job, work)


def commit(
    job: Job,
    outcome: Outcome,
    folder: Path,
    lease: Lease,
    *,
    files: list[dict[str, Any]],
    code: dict[str, Any],
    ranks: dict[str, Any],
    seconds: float,
    node_hours: float,
) -> None:
    """Write `artifact.json` with the manifest `files` and the fields `ranks`; then the artifact counts as made.

    `ranks` are the fields about ranks, and about files that are kept for later jobs. Raise LeaseHeld if the lease was
    lost.
    """
    record = {
        "asset": job.asset,
        "stage": job.stage,
        "stage_version": job.stage_version,
        "recipe": job.recipe,
        "partition": job.partition,
        "fingerprint": job.fingerprint,
        "digest": artifact.digest_of_files(files),
        # Which list of erased files was judged is no part of what an input is.
        "inputs": [{name: one for name, one in item.items() if name != "erased"} for item in write_record(job.inputs)],
        "settings": job.settings,
        "seed": job.seed,
        "libraries": job.libraries,
        "code": code,
        "code_revision": job.code_revision,
        "counts": outcome.counts.as_json() if outcome.counts else None,
        # JSON has no NaN; a training that came to nothing shall be refused by its gates.
        "metrics": {
            name: float(value) if math.isfinite(value) else None for name, value in sorted(outcome.metrics.items())
        },
        "gates": write_record(outcome.gates),
        "notes": outcome.notes,
        "numerics": outcome.numerics,
        "files": files,
        **ranks,
        **({"guards": write_record(job.guards)} if job.guards else {}),
        **({"replaces": list(job.replaces)} if job.replaces else {}),
        "seconds": round(seconds, 3),
        "cost": _cost(folder, seconds) | _charge(job, node_hours),
    }
    with lease.kept():
        remove_leftovers(folder, (*outcome.files, *outcome.beside.values()))
        artifact.commit_record(folder, record)


def _with_balance(job: Job, stage: Stage, outcome: Outcome) -> Outcome:
    """Return the outcome with the gate `counts_balance` added, if the stage counts records."""
    if outcome.counts is None:
        return outcome
    return replace(outcome, gates=(*outcome.gates, balance_gate(job, stage, outcome.counts)))


def _with_numerics(job: Job, stage: Stage, outcome: Outcome, work: Work) -> Outcome:
    """Return the outcome with its numerics class, if a model made it.

    If the stage is not distributed, the class says one process.
    """
    if not stage.by_a_model:
        return outcome
    alone: dict[str, int] = {} if stage.distributed else {"processes": 1}
    return replace(outcome, numerics=numerics.recorded(job, work) | alone)


def _work(folder: Path, *, enabled: bool = True) -> Work:
    folder.mkdir(parents=True, exist_ok=True)
    scratch = folder / artifact.SCRATCH_FOLDER
    scratch.mkdir(exist_ok=True)
    return Work(path=folder, scratch=scratch, progress=Progress(folder, enabled=enabled))


def _module(stage: Stage) -> ModuleType:
    with uncollected(stage.module):
        return importlib.import_module(stage.module)


# Ranks: the unit of resuming in data stages. A rank's mark holds its result and its files' checksums.


def _run_phases(
    job: Job, stage: Stage, module: ModuleType, work: Work, missing_share: float
) -> dict[str, list[dict[str, Any]]]:
    """Run the missing ranks of one phase after the other; return the results of all ranks, by phase."""
    totals = {phase.name: phase.num_ranks(job) for phase in phases_of(module)}
    told = _Told(work.progress, sum(totals.values()))
    return {name: _run_missing_ranks(job, stage, name, total, missing_share, told) for name, total in totals.items()}


@dataclass
class _Told:
    """The progress of a stage in ranks: how many ranks of all phases are finished, and how many documents they read."""

    progress: Progress
    ranks: int
    finished: int = 0
    documents: int | None = None

    def add(self, result: Mapping[str, Any], *, is_new: bool) -> None:
        """Count a finished rank, and report it if it finished just now."""
        self.finished += 1
        if "counts" in result:
            self.documents = (self.documents or 0) + result["counts"]["in"]
        if is_new:
            counted = {} if self.documents is None else {"documents": self.documents}
            self.progress.log(step=self.finished, ranks=self.ranks, **counted)


def _run_missing_ranks(
    job: Job, stage: Stage, phase: str, total: int, missing_share: float, told: _Told
) -> list[dict[str, Any]]:
    """Run the missing ranks of one phase, and return the results of all of its ranks."""
    ranks = ((rank, finished_rank(Path(job.output), rank, phase)) for rank in range(total))
    done = {rank: result for rank, result in ranks if result is not None}
    missing = [rank for rank in range(total) if rank not in done]
    if len(missing) > missing_share * total:
        raise RanksMissing(_missing_in_words(missing, total, phase))
    if done and missing:
        log.info("%d of %d ranks%s were finished before; %d to do", len(done), total, _of(phase), len(missing))
    for result in done.values():
        told.add(result, is_new=False)
    for rank, result in _each_rank(job, stage, missing, phase, told.progress):
        done[rank] = result
        told.add(result, is_new=True)
    return [done[rank] for rank in range(total)]


def _of(phase: str) -> str:
    return f" of the phase {phase}" if phase else ""


def _missing_in_words(missing: list[int], total: int, phase: str) -> str:
    named = ", ".join(map(str, missing[:NAMED_RANKS]))
    more = f" and {len(missing) - NAMED_RANKS} more" if len(missing) > NAMED_RANKS else ""
    return f"{len(missing)} of {total} ranks{_of(phase)} were not made: {named}{more}"


def _each_rank(
    job: Job, stage: Stage, missing: list[int], phase: str, progress: Progress
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield each missing rank of a stage and its result: first the copied ones, then those made now.

    A rank is one share of the stage's inputs, such as one file of documents.
    """
    done = set[int]()
    for rank, result in _each_reused(job, stage, missing):
        if result is not None:
            done.add(rank)
            yield rank, result
    missing = [rank for rank in missing if rank not in done]
    if missing:
        yield from engine_of(job.run)(_maker(job, stage, phase), missing, _here(job, stage, progress))


def maker_of(order: Mapping[str, Any]) -> Maker:
    """Return the functions with which another machine runs ranks, from the order that this machine gave."""
    job, stage = read_record(Job, order["job"], where="job"), read_record(Stage, order["stage"], where="stage")
    return _maker(job, stage, order["phase"])


def _maker(job: Job, stage: Stage, phase: str) -> Maker:
    return Maker(
        made_by=f"{maker_of.__module__}:{maker_of.__name__}",
        order={"job": write_record(job), "stage": write_record(stage), "phase": phase},
        rank=partial(_made_rank, job, stage, phase),
        begin=partial(_begin_worker, stage),
        versions=partial(versions_of, job, stage),
    )


def _made_rank(job: Job, stage: Stage, phase: str, rank: int) -> dict[str, Any]:
    """Run a rank and return its result, or return the result if a process that is lost had finished the rank."""
    result = finished_rank(Path(job.output), rank, phase)
    return run_rank(job, stage, rank, phase=phase) if result is None else result


def _here(job: Job, stage: Stage, progress: Progress) -> Here:
    folder = Path(job.output)
    scratch = folder / artifact.SCRATCH_FOLDER
    return Here(run=job.run, modules=(stage.module,), folder=folder, scratch=scratch, progress=progress)


def _each_reused(
    job: Job, stage: Stage, missing: Sequence[int], claimed: Callable[[Sequence[int]], Iterable[int]] = iter
) -> Iterator[tuple[int, dict[str, Any] | None]]:
    """Copy the ranks that earlier artifacts seem to have; yield each with its result, or None if it was not copied.

    `claimed` returns those of some ranks that this process may take, one after the other.
    """
    module = _module(stage)
    places = list(reuse.earlier(job, stage, module)) if missing and reuse.is_reusable(stage, module) else []
    if not places:
        return
    folder = Path(job.output)
    made_by.note(_work(folder, enabled=False), *modules_of(stage, job.settings))
    asked = _asked(job, stage, module)
    ranks = iter(claimed([rank for rank in missing if any(asked[rank].key in place.lines for place in places)]))
    workers = max(1, job.run.num_workers)
    with ThreadPoolExecutor(workers) as pool:
        while wanted := [asked[rank] for rank in islice(ranks, workers)]:
            taken = pool.map(partial(_reused, job, places, module), wanted)
            yield from ((one.rank, result) for one, result in zip(wanted, taken, strict=True))


def _reused(
    job: Job, places: list[reuse.Earlier], module: ModuleType, asked: reuse.NeededRank
) -> dict[str, Any] | None:
    """Copy a rank from an earlier artifact and return its result, or None if no artifact has it.

    The copied rank gets a completion mark.
    """
    clock = _Clock(time.thread_time)
    mark = reuse.reused(job, asked, places, module)
    if mark is None:
        return None
    _write_mark(job, "", asked.rank, mark, clock)
    return mark["result"]


_asked_last: tuple[Job, list[reuse.NeededRank]] | None = None  # a process runs many ranks of one job


def _asked(job: Job, stage: Stage, module: ModuleType) -> list[reuse.NeededRank]:
    global _asked_last
    if _asked_last is None or _asked_last[0] is not job:
        code = digest_of(made_by.own_code(*modules_of(stage, job.settings)))
        _asked_last = job, reuse.asked_of(job, stage, module, code)
    return _asked_last[1]


class _Clock:
    """Measures wall seconds and processor seconds since it was created; children of this process are included."""

    def __init__(self, cpu: Callable[[], float] = cpu_seconds_with_children) -> None:
        self._cpu = cpu
        self._before, self._started = cpu(), time.monotonic()

    def spent(self) -> dict[str, float]:
        return {"wall_seconds": time.monotonic() - self._started, "cpu_seconds": self._cpu() - self._before}


def _write_mark(job: Job, phase: str, rank: int, mark: Mapping[str, Any], clock: _Clock) -> None:
    folder = Path(job.output)
    spent = {"pid": os.getpid(), "peak_memory_bytes": _peak_memory_bytes(), **clock.spent()}
    changed = {entry["path"]: (folder / entry["path"]).stat().st_mtime_ns for entry in mark["files"]}
    whole = {**mark, "fingerprint": job.fingerprint, "changed": changed, "spent": spent}
    write_sealed(_mark(folder, rank, phase), whole)


def _begin_worker(stage: Stage) -> None:
    if _knows_no_frames(stage):
        leave_pandas_out()


def run_rank(job: Job, stage: Stage, rank: int, *, phase: str = "") -> dict[str, Any]:
    """Run one rank of a phase and return its result.

    The rank's completion mark is written last, so a killed rank is run again from its start.
    """
    folder = Path(job.output)
    work = _work(folder, enabled=False)
    clock = _Clock()
    code = made_by.note(work, *modules_of(stage, job.settings))
    module = _module(stage)
    with noting_opened() as opened, _contained(job, work):
        # As it is read from a mark, so that `finish` gets the same of a rank whether it was made now or before.
        result = json.loads(canonical_json(phase_of(module, phase).run_rank(job, work, rank)))
    mark = {
        "rank": rank,
        "files": artifact.manifest(folder, result.get("files", [])),
        "result": result,
        "code": code,
        **_for_reuse(job, stage, module, rank, opened),
    }
    _write_mark(job, phase, rank, mark, clock)
    return result


_strayed = set[str]()  # stages of which a rank of this process read what is not in its share, and may have kept it


def _for_reuse(job: Job, stage: Stage, module: ModuleType, rank: int, opened: set[tuple[str, str]]) -> dict[str, Any]:
    """Return the fields of a rank's completion mark by which later jobs can take the rank over; empty if they cannot.

    The fields are the rank's key, the files that it reads, and the environment.
    """
    if not reuse.is_reusable(stage, module):
        return {}
    asked = _asked(job, stage, module)[rank]
    if strays := asked.strays(opened):
        _strayed.add(stage.name)
        log.warning("rank %d opened %s, which is not in its share; it cannot be reused later", rank, strays[0])
    return (
        {} if stage.name in _strayed else {"key": asked.key, "reads": asked.reads, "environment": reuse.environment()}
    )


def finished_rank(folder: Path, rank: int, phase: str = "") -> dict[str, Any] | None:
    """Return the result of a rank that an earlier attempt finished, or None.

    None means that the rank's completion mark or a file is missing or damaged. A file is not read if its size and
    time of change are those in the mark. So the end of a stage reads none of its outputs: the marks hold their
    checksums, and every later reader verifies the files that it opens.
    """
    try:
        mark = read_sealed(_mark(folder, rank, phase))
    except (FileNotFoundError, Unsealed):
        return None
    changed = mark.get("changed", {})
    is_damaged = any(_is_damaged(folder / entry["path"], entry, changed.get(entry["path"])) for entry in mark["files"])
    return None if is_damaged else mark["result"]


def _is_damaged(path: Path, entry: Mapping[str, Any], changed_ns: int | None) -> bool:
    return bool(damage_of(path, entry, reads=not path.exists() or path.stat().st_mtime_ns != changed_ns))


def _files_of(marks: Iterable[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """Return the manifest entries of the files that ranks wrote, by path."""
    return {entry["path"]: entry for mark in marks for entry in mark["files"]}


def num_finished(folder: Path) -> int:
    """Return how many ranks, of all phases, have a completion mark."""
    return len(_mark_files(folder))


def _mark_files(folder: Path) -> list[Path]:
    marks = folder / RANKS_FOLDER
    return sorted([*marks.glob("[0-9]*.json"), *marks.glob("*/[0-9]*.json")])


def _mark(folder: Path, rank: int, phase: str = "") -> Path:
    return folder / RANKS_FOLDER / phase / f"{rank:05d}.json"


def _run_array_task(job: Job, stage: Stage, folder: Path, ranks: str, claims: str, name: str) -> None:
    module = _module(stage)
    phase = phase_of(module, name)
    totals = {one.name: one.num_ranks(job) for one in phases_of(module)}
    artifact.write_json(folder / RANKS_FOLDER / TOTAL_FILE, {"ranks": sum(totals.values())})
    _check_phases_before(folder, phase, totals)
    total = totals[name]
    if "/" in ranks:
        start, step = map(int, ranks.split("/"))
        chosen = list(range(start, total, step))
    elif claims:
        raise RecipeError(f"--claims: --ranks must be i/n, the share to begin with, not {ranks!r}")
    else:
        start, step, chosen = 0, 1, [int(rank) for rank in ranks.split(",")]
    missing = [rank for rank in chosen if rank < total and finished_rank(folder, rank, name) is None]
    if claims:
        others = [rank for ahead in range(1, step) for rank in range((start + ahead) % step, total, step)]
        made = _each_claimed(job, stage, [*missing, *others], name, claims)
    else:
        made = _each_rank(job, stage, missing, name, Progress(folder, enabled=False))
    for rank, _ in made:
        log.info("rank %d of %d%s done", rank, total, _of(name))


def _each_claimed(
    job: Job, stage: Stage, ranks: Sequence[int], phase: str, scope: str
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the ranks that this process claims and makes, with their results, until others have claimed all of them."""
    folder = Path(job.output)
    here, maker = _here(job, stage, Progress(folder, enabled=False)), _maker(job, stage, phase)
    place = folder / RANKS_FOLDER / phase / f"claims-{scope}"
    num_made = 0
    task = attempt_task()
    with Claims(
        place,
        ranks,
        partial(_marked_ranks, folder, phase),
        name=attempt_name(),
        restarted=task and f"{task}.",
        goes_on=SignsOfLife(lambda: num_made, job.run.hang_seconds),
    ) as claims:
        left: list[int] = []  # claimed, and no earlier artifact has them
        for rank, result in _each_reused(job, stage, ranks, claims.each_free):
            if result is None:
                left.append(rank)
            else:
                yield rank, result
        while True:
            for made in local.each_result(maker, chain(left, claims.each_free()), here):
                num_made += 1
                yield made
            left = []
            if not claims.wait_for_news():
                return


def _marked_ranks(folder: Path, phase: str) -> set[int]:
    """Return the ranks of a phase that have a completion mark, by the names of the marks alone."""
    with suppress(FileNotFoundError):
        names = [entry.name for entry in os.scandir(folder / RANKS_FOLDER / phase)]
        return {int(name[:-5]) for name in names if name.endswith(".json") and name[:-5].isdigit()}
    return set()


def _check_phases_before(folder: Path, phase: Phase, totals: Mapping[str, int]) -> None:
    """Raise RanksMissing unless every rank of every phase before this one has a mark."""
    for name, total in totals.items():
        if name == phase.name:
            return
        there = {path.name for path in (folder / RANKS_FOLDER / name).glob("[0-9]*.json")}
        missing = [rank for rank in range(total) if _mark(folder, rank, name).name not in there]
        if missing:
            raise RanksMissing(f"{_missing_in_words(missing, total, name)}; the phase {phase.name} needs them")


def _cost(folder: Path, seconds: float) -> dict[str, float]:
    """Return the wall seconds of this attempt, the sum of its CPU seconds, and the largest memory of a process (bytes).

    Sum and largest memory include ranks that ran in other processes.
    """
    elsewhere = [spent for spent in _spent(folder) if spent["pid"] != os.getpid()]
    times = os.times()
    own = times.user + times.system + times.children_user + times.children_system
    return {
        "wall_seconds": round(seconds, 3),
        "cpu_seconds": round(own + sum(spent["cpu_seconds"] for spent in elsewhere), 3),
        "peak_memory_bytes": max([_peak_memory_bytes(), *(spent["peak_memory_bytes"] for spent in elsewhere)]),
    }


def _spent(folder: Path) -> list[dict[str, Any]]:
    """Return the recorded process id, CPU time and memory of every finished rank."""
    return [mark["spent"] for mark in _marks(folder)]


def _marks(folder: Path) -> Iterator[dict[str, Any]]:
    for path in _mark_files(folder):
        with suppress(Unsealed):  # its rank is done again
            yield read_sealed(path)


def _node_hours(job: Job, stage: Stage, seconds: float, earlier_rank_seconds: float) -> float:
    """Return the node-hours of this attempt on its nodes plus those of earlier ranks.

    An earlier rank counts with the part of a node that one worker has.
    """
    own_nodes = 1 if stage.in_ranks else job.run.nodes + job.run.spare_nodes
    return (own_nodes * seconds + earlier_rank_seconds / max(job.run.num_workers, 1)) / 3600


def _charge(job: Job, node_hours: float) -> dict[str, float]:
    """Return the node-hours and, if the profile gives a price per hour, their price in its currency."""
    price = {"price": round(node_hours * job.run.price_per_hour, 6)} if job.run.price_per_hour else {}
    return {"node_hours": round(node_hours, 6), **price}


def _peak_memory_bytes() -> int:
    """Return the largest resident size of this process or of one child, in bytes (Linux reports kilobytes)."""
    import resource

    return 1024 * max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))


def total_counts(ranks: list[dict[str, Any]]) -> Counts:
    """Return the sum of the `counts` in the results of all ranks."""
    return Counts.total([rank["counts"] for rank in ranks])
