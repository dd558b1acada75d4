"""The ranks of a stage: take over those of earlier artifacts, and let an engine make the others, phase after phase."""

from __future__ import annotations

import importlib
import json
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from pathlib import Path
from types import ModuleType
from typing import Any

from training.contract import artifact
from training.contract.engines import local
from training.contract.engines.engine import Here, Maker, engine_of
from training.contract.files.checked import noting_opened
from training.contract.files.checksums import canonical_json, digest_of
from training.contract.files.notes import notes_in
from training.contract.files.stored_root import bring_marks, store_small, stored_root
from training.contract.files.writing import json_text
from training.contract.identity import made_by
from training.contract.job import Job, Work
from training.contract.parts.code import PARTS
from training.contract.parts.contained import Bounds, contained
from training.contract.process.exit_codes import BAD_INPUT
from training.contract.process.lean import leave_pandas_out, uncollected
from training.contract.process.lifetime import SignsOfLife
from training.contract.progress import Progress
from training.contract.records import RecipeError, read_record, write_record
from training.contract.running import reuse
from training.contract.running.attempt import Attempt, attempt_name, attempt_task
from training.contract.running.claims import Claims
from training.contract.running.leftovers import RANKS_FOLDER
from training.contract.running.marks import TOTAL_FILE, Clock, finished_rank, marked_ranks, write_mark
from training.contract.running.phase import Phase, phase_of, phases_of
from training.contract.running.versions import versions_of
from training.contract.stage import Stage, modules_of

log = logging.getLogger(__name__)

NAMED_RANKS = 10  # missing ranks that an error message lists


class RanksMissing(RuntimeError):
    """More ranks are missing than the finishing job of a fan-out may run itself."""


def work_in(folder: Path, *, enabled: bool = True) -> Work:
    folder.mkdir(parents=True, exist_ok=True)
    scratch = folder / artifact.SCRATCH_FOLDER
    scratch.mkdir(exist_ok=True)
    return Work(path=folder, scratch=scratch, progress=Progress(folder, enabled=enabled))


def contained_parts(job: Job, work: Work) -> AbstractContextManager[None]:
    """Return a context manager that holds the parts from outside to the bounds of the job, if it has such parts."""
    limits = Bounds.of(job) if job.settings.get(PARTS) else None
    return contained(limits, lambda: work.progress.num_lines, lambda said: Attempt(work.path).failed(BAD_INPUT, said))


def module_of(stage: Stage) -> ModuleType:
    with uncollected(stage.module):
        return importlib.import_module(stage.module)


def run_phases(
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
        begin=partial(begin_worker, stage),
        versions=partial(versions_of, job, stage),
    )


def begin_worker(stage: Stage) -> None:
    """Prepare a process that will run ranks of this stage: stages of data know no frames of pandas."""
    if stage.module.startswith("training.data."):
        leave_pandas_out()


def _made_rank(job: Job, stage: Stage, phase: str, rank: int) -> dict[str, Any]:
    """Run a rank and return its result, or return the result if a process that is lost had finished the rank."""
    result = finished_rank(Path(job.output), rank, phase)
    return run_rank(job, stage, rank, phase=phase) if result is None else result


def _here(job: Job, stage: Stage, progress: Progress) -> Here:
    folder = Path(job.output)
    scratch = folder / artifact.SCRATCH_FOLDER
    return Here(run=job.run, modules=(stage.module,), folder=folder, scratch=scratch, progress=progress)


def run_rank(job: Job, stage: Stage, rank: int, *, phase: str = "") -> dict[str, Any]:
    """Run one rank of a phase and return its result.

    The rank's completion mark is written last, so a killed rank is run again from its start.
    """
    folder = Path(job.output)
    work = work_in(folder, enabled=False)
    clock = Clock()
    code = made_by.note(work, *modules_of(stage, job.settings))
    module = module_of(stage)
    with noting_opened() as opened, contained_parts(job, work):
        # As it is read from a mark, so that `finish` gets the same of a rank whether it was made now or before.
        result = json.loads(canonical_json(phase_of(module, phase).run_rank(job, work, rank)))
    mark = {
        "rank": rank,
        "files": artifact.manifest(folder, result.get("files", [])),
        "result": result,
        "code": code,
        **_for_reuse(job, stage, module, rank, opened),
    }
    write_mark(job, phase, rank, mark, clock)
    return result


def _each_reused(
    job: Job, stage: Stage, missing: Sequence[int], claimed: Callable[[Sequence[int]], Iterable[int]] = iter
) -> Iterator[tuple[int, dict[str, Any] | None]]:
    """Copy the ranks that earlier artifacts seem to have; yield each with its result, or None if it was not copied.

    `claimed` returns those of some ranks that this process may take, one after the other.
    """
    module = module_of(stage)
    places = list(reuse.earlier(job, stage, module)) if missing and reuse.is_reusable(stage, module) else []
    if not places:
        return
    folder = Path(job.output)
    made_by.note(work_in(folder, enabled=False), *modules_of(stage, job.settings))
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
    clock = Clock(time.thread_time)
    mark = reuse.reused(job, asked, places, module)
    if mark is None:
        return None
    write_mark(job, "", asked.rank, mark, clock)
    return mark["result"]


_asked_last: tuple[Job, list[reuse.NeededRank]] | None = None  # a process runs many ranks of one job


def _asked(job: Job, stage: Stage, module: ModuleType) -> list[reuse.NeededRank]:
    global _asked_last
    if _asked_last is None or _asked_last[0] is not job:
        code = digest_of(made_by.own_code(*modules_of(stage, job.settings)))
        _asked_last = job, reuse.asked_of(job, stage, module, code)
    return _asked_last[1]


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


# An array task makes its share of a phase's ranks, and commits nothing


def run_array_task(job: Job, stage: Stage, folder: Path, ranks: str, claims: str, name: str) -> None:
    module = module_of(stage)
    phase = phase_of(module, name)
    totals = {one.name: one.num_ranks(job) for one in phases_of(module)}
    text = json_text({"ranks": sum(totals.values())})
    store_small(folder / RANKS_FOLDER / TOTAL_FILE, text.encode("utf-8"))
    artifact.write_text(folder / RANKS_FOLDER / TOTAL_FILE, text)
    bring_marks(folder)
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
    notes = notes_in(folder / RANKS_FOLDER / phase / f"claims-{scope}")
    num_made = 0
    task = attempt_task()
    with Claims(
        notes,
        ranks,
        partial(_marked, folder, phase),
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


def _marked(folder: Path, phase: str) -> set[int]:
    """Return the ranks of a phase that have a completion mark, also those that nodes with other folders made."""
    bring_marks(folder)
    return marked_ranks(folder, phase)


def _check_phases_before(folder: Path, phase: Phase, totals: Mapping[str, int]) -> None:
    """Raise RanksMissing unless every rank of every phase before this one has a mark.

    What this phase reads whole of it is brought if the root is in a store.
    """
    is_stored = stored_root(folder) is not None
    for name, total in totals.items():
        if name == phase.name:
            return
        there = marked_ranks(folder, name)
        missing = [
            rank
            for rank in range(total)
            if rank not in there or (is_stored and finished_rank(folder, rank, name) is None)
        ]
        if missing:
            raise RanksMissing(f"{_missing_in_words(missing, total, name)}; the phase {phase.name} needs them")
