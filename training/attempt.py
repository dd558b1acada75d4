"""How an attempt at a job ended, told by the stage's own processes: whoever follows the job reads it afterwards.

A launcher of several processes makes 1 of every exit code, and a log holds the words of every attempt. So each process
leaves a file of its own, `attempts/<attempt>.json` in the artifact's folder (torchrun's followers:
`attempts/<attempt>.rank-<n>.json`): when it begins, and with exit code and cause when it ends. One that was killed says
nothing of its end. Standard library only.
"""

from __future__ import annotations

import json
import os
import socket
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from training.files import write_json
from training.secrets import masked

ATTEMPTS_FOLDER = "attempts"
VARIABLE = "PEDIGREE_ATTEMPT"  # the attempt's name, given by whoever starts the stage and reads how it ended
# Of what the processes of one attempt say: what every further attempt would say too, then who is waited for, then that
# the state is saved. A process that the launcher ended because of another one says something else, or nothing.
_SPEAKS_FIRST = (2, 3, 4, 76, 75, 1)


def attempt_name() -> str:
    """What this attempt is called: as its starter says, else by Slurm's job (and task of an array), else by process."""
    named = os.environ.get(VARIABLE)
    if named:
        return named
    if "SLURM_ARRAY_JOB_ID" in os.environ:
        return f"{os.environ['SLURM_ARRAY_JOB_ID']}_{os.environ['SLURM_ARRAY_TASK_ID']}"
    return os.environ.get("SLURM_JOB_ID") or f"{socket.gethostname()}-{os.getpid()}"


class Attempt:
    """This process's record of itself. Where it cannot be written the work goes on: an exit code says the most."""

    def __init__(self, folder: Path) -> None:
        name, rank = attempt_name(), int(os.environ.get("RANK", "0"))
        self._path = folder / ATTEMPTS_FOLDER / (f"{name}.json" if rank == 0 else f"{name}.rank-{rank}.json")
        self._said: dict[str, str | float | None] = {
            "attempt": name,
            "rank": rank,
            "pid": os.getpid(),
            "host": socket.gethostname(),
        }
        self._said |= {"started": round(time.time(), 3), "ended": None, "exit_code": None, "error": ""}
        self._write()

    def ended(self, exit_code: int, error: str = "") -> None:
        """Note the end; `error` is the sentence that a person needs."""
        self._said |= {"ended": round(time.time(), 3), "exit_code": exit_code, "error": masked(error)}
        self._write()

    def _write(self) -> None:
        with suppress(OSError):
            write_json(self._path, self._said, durable=False)


def read_attempts(folder: Path, name: str = "") -> list[dict[str, Any]]:
    """What the processes of the attempt called `name` (without: of all attempts) said of themselves, oldest first."""
    found = []
    for path in (folder / ATTEMPTS_FOLDER).glob("*.json"):
        with suppress(OSError, ValueError):
            said = json.loads(path.read_text("utf-8"))
            if not name or said["attempt"] == name:
                found.append(said)
    return sorted(found, key=lambda said: said["started"])


def verdict(folder: Path, name: str) -> dict[str, Any] | None:
    """The word of the process that says how the attempt ended; None when none of them came to say it."""
    ended = [said for said in read_attempts(folder, name) if said["exit_code"]]
    by_code = {said["exit_code"]: said for said in reversed(ended)}  # the first one that said it
    return next((by_code[code] for code in _SPEAKS_FIRST if code in by_code), None)
