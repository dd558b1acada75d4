"""Run a command and tell apart what it and the processes that it starts cost: itself, the tracker's writer, its jobs.

Every process that descends from the command is read from /proc (Linux) several times a second, also those that outlive
their parents. So at most LOOK_SECONDS of a process's last processor time are missing.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import tempfile
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

LOOK_SECONDS = 0.05
PR_SET_CHILD_SUBREAPER = 36  # orphans become children of the process that sets it
COMMAND, WRITER, JOBS = "command", "writer", "jobs"
WORDS = {"supervise.py": JOBS, "resources.tracking": WRITER}  # of a command line; all others are as their parent is
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(kw_only=True)
class Costs:
    """What a command cost: processor seconds by kind of process, and when jobs ran."""

    exit_code: int
    output: str
    seconds: float  # from the start of the command to its end
    processor: dict[str, float]
    jobs: list[tuple[float, float]]  # when each process of a job was first and last seen, seconds from the start

    @property
    def seconds_without_job(self) -> float:
        """Wall seconds of the command during which none of its jobs ran."""
        return self.seconds - covered((begin, min(end, self.seconds)) for begin, end in self.jobs)


def covered(intervals: Iterable[tuple[float, float]]) -> float:
    """Return the length of the union of intervals."""
    total, reached = 0.0, float("-inf")
    for begin, end in sorted(intervals):
        total += max(0.0, end - max(begin, reached))
        reached = max(reached, end)
    return total


@dataclass
class _Seen:
    kind: str
    processor: float = 0.0
    first: float = 0.0
    last: float = 0.0


def run_watched(argv: list[str], environment: dict[str, str] | None = None) -> Costs:
    """Run a command, and wait for every process that it leaves behind. `environment` is added to this process's."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    seen: dict[int, _Seen] = {}
    others = {pid for pid, _, _ in _children().get(os.getpid(), ())}
    seconds = None
    with tempfile.TemporaryFile("w+") as output:
        started = time.monotonic()
        process = subprocess.Popen(argv, stdout=output, env={**os.environ, **(environment or {})})
        while (left := _look(seen, others, time.monotonic() - started)) or seconds is None:
            if seconds is None and process.poll() is not None:
                seconds = time.monotonic() - started
            for pid in left - {process.pid}:
                with suppress(ChildProcessError):  # it is another process's child
                    os.waitpid(pid, os.WNOHANG)
            time.sleep(LOOK_SECONDS)
        output.seek(0)
        return Costs(
            exit_code=process.returncode,
            output=output.read(),
            seconds=seconds,
            processor={
                kind: sum(one.processor for one in seen.values() if one.kind == kind)
                for kind in (COMMAND, WRITER, JOBS)
            },
            jobs=[(one.first, one.last) for one in seen.values() if one.kind == JOBS],
        )


def _look(seen: dict[int, _Seen], others: set[int], now: float) -> set[int]:
    """Note what the processes under this one have cost so far; return those that live, or wait to be reaped.

    `others` are the children that this process had before.
    """
    children = _children()
    found: set[int] = set()
    waiting = [(os.getpid(), COMMAND)]
    while waiting:
        parent, inherited = waiting.pop()
        for pid, cost, has_ended in children.get(parent, ()):
            if pid in others:
                continue
            one = seen.setdefault(pid, _Seen(inherited, first=now))
            if not has_ended:
                one.kind, one.processor, one.last = _kind(pid, one.kind), cost, now
            found.add(pid)
            waiting.append((pid, one.kind))
    return found


def _children() -> dict[int, list[tuple[int, float, bool]]]:
    """Return the children of each process: number, processor seconds, and whether it has ended."""
    children: dict[int, list[tuple[int, float, bool]]] = {}
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            with suppress(OSError):  # it has just ended
                fields = Path(entry.path, "stat").read_text().rpartition(") ")[2].split()
                cost = (int(fields[11]) + int(fields[12])) / TICKS
                children.setdefault(int(fields[1]), []).append((int(entry.name), cost, fields[0] == "Z"))
    return children


def _kind(pid: int, otherwise: str) -> str:
    """Return the kind that a process's command line says; it changes when a forked process executes another program."""
    with suppress(OSError):
        line = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
        return next((kind for word, kind in WORDS.items() if word in line), otherwise)
    return otherwise
