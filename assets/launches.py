"""Which `pedigree run` commands still live, and the end of Dagster's runs whose command was killed.

A command holds the lock of a file for as long as it lives. The kernel frees the lock when the process ends, in whatever
way, so that a killed command is told from one that works, also by another machine that shares the root.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import dagster as dg
from dagster._core.storage.dagster_run import NOT_FINISHED_STATUSES

from assets.job import JOB, launch_of
from assets.stores import dagster_home

FOLDER, ENDING = "launches", ".lock"
KILLED = "the command `pedigree run` of this run was killed; run it again to go on"


@contextmanager
def living(root: Path, launch: str) -> Iterator[None]:
    """Context manager in whose block other processes see that the command of this launch lives."""
    path = _lock_of(root, launch)
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path.with_suffix(".new"), "w", encoding="utf-8") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        os.replace(stream.name, path)  # only now, so that nobody finds it before it is locked
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def end_killed(instance: dg.DagsterInstance, root: Path) -> int:
    """Report as failed the runs of commands that were killed, and return their number.

    Dagster would list them as running for ever, because only the process of such a run reports its end.
    """
    gone = {path for path in (dagster_home(root) / FOLDER).glob(f"*{ENDING}") if _is_free(path)}
    if not gone:
        return 0
    ended = 0
    for run in instance.get_runs(dg.RunsFilter(statuses=NOT_FINISHED_STATUSES, job_name=JOB)):
        if (launch := launch_of(run.tags)) and _lock_of(root, launch) in gone:
            instance.report_run_failed(run, KILLED)
            ended += 1
    for path in gone:
        path.unlink(missing_ok=True)  # last, so that a look that is killed is repeated
    return ended


def _lock_of(root: Path, launch: str) -> Path:
    return dagster_home(root) / FOLDER / f"{launch}{ENDING}"


def _is_free(path: Path) -> bool:
    with suppress(FileNotFoundError), open(path, encoding="utf-8") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True
    return False  # its command has just ended
