"""Records of how each attempt at a job ended, written by the stage's own processes and read after the job.

A launcher of several processes turns every failure into exit code 1, and one log holds the messages of all attempts. So
each process writes its own file in the artifact's folder: `attempts/<attempt>.json`, or, for torchrun's ranks above 0,
`attempts/<attempt>.rank-<n>.json`. It writes the file when it begins, renews the file's time while it lives, and adds
exit code and cause when it ends. A killed process leaves a file without an end. Standard library only.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from training.contract.files.writing import regular_bytes, write_json
from training.contract.secrets import masked

ATTEMPTS_FOLDER = "attempts"
SIGN_SECONDS = 5.0  # between two signs of life
VARIABLE = "PEDIGREE_ATTEMPT"  # holds the attempt's name; set by the backend, which reads the record afterwards
# Which exit code decides when the processes of one attempt report several. First the errors that every further attempt
# would repeat (2, 3, 4), then a lease held by another process (76), then a saved state (75). A process that the
# launcher ended because of another one records another code, or none.
_SPEAKS_FIRST = (2, 3, 4, 76, 75, 1)


def attempt_name() -> str:
    """Return the attempt's name: PEDIGREE_ATTEMPT, else Slurm's job id (and array task), else host and process id."""
    named = os.environ.get(VARIABLE)
    if named:
        return named
    if "SLURM_ARRAY_JOB_ID" in os.environ:
        return f"{os.environ['SLURM_ARRAY_JOB_ID']}_{os.environ['SLURM_ARRAY_TASK_ID']}"
    return os.environ.get("SLURM_JOB_ID") or f"{socket.gethostname()}-{os.getpid()}"


def attempt_task() -> str | None:
    """Return the part of the attempt's name that it shares with earlier attempts; None if it is the first one.

    The name ends with the number of earlier attempts, as in `8_1.2`.
    """
    task, _, restarts = os.environ.get(VARIABLE, "").rpartition(".")
    return task if task and restarts.isdigit() and int(restarts) else None


class Attempt:
    """The file in which this process records how it begins and ends.

    If the file cannot be written, this is ignored: the exit code still tells how the process ended.
    """

    def __init__(self, folder: Path) -> None:
        name, rank = attempt_name(), int(os.environ.get("RANK", "0"))
        self._path = _path_of(folder, name, rank)
        self._said: dict[str, str | float | None] = {
            "attempt": name,
            "rank": rank,
            "pid": os.getpid(),
            "host": socket.gethostname(),
        }
        self._said |= {"started": round(time.time(), 3), "ended": None, "exit_code": None, "error": ""}
        self._write()
        self._is_over = threading.Event()

    def show_life(self) -> None:
        """Renew the time of the file from now on, while this process lives and has not recorded its end."""
        threading.Thread(target=self._renew, daemon=True).start()

    def _renew(self) -> None:
        while not self._is_over.wait(SIGN_SECONDS):
            with suppress(OSError):
                os.utime(self._path)

    def ended(self, exit_code: int, error: str = "") -> None:
        """Record the end of the process; `error` is a sentence for people, empty if there was no error."""
        self._is_over.set()
        self._said |= {"ended": round(time.time(), 3), "exit_code": exit_code, "error": masked(error)}
        self._write()

    def failed(self, exit_code: int, error: object) -> int:
        """Record an end for which people find a sentence on standard error; return the exit code."""
        self.ended(exit_code, str(error))
        print(f"error: {error}", file=sys.stderr, flush=True)
        return exit_code

    def _write(self) -> None:
        with suppress(OSError):
            write_json(self._path, self._said, durable=False)


def _path_of(folder: Path, name: str, rank: int) -> Path:
    return folder / ATTEMPTS_FOLDER / (f"{name}.json" if rank == 0 else f"{name}.rank-{rank}.json")


def last_sign_of(folder: Path, said: dict[str, Any]) -> float:
    """Return when the process of a record ended; if it was killed, when it last showed that it lives."""
    return said["ended"] or max(said["started"], _path_of(folder, said["attempt"], said["rank"]).stat().st_mtime)


def read_attempts(folder: Path, name: str = "") -> list[dict[str, Any]]:
    """Return the records of the processes of attempt `name` (of all attempts if it is empty), oldest first."""
    found = []
    for path in (folder / ATTEMPTS_FOLDER).glob("*.json"):
        with suppress(OSError, ValueError):
            said = json.loads(regular_bytes(path))
            if not name or said["attempt"] == name:
                found.append(said)
    return sorted(found, key=lambda said: said["started"])


def verdict(folder: Path, name: str) -> dict[str, Any] | None:
    """Return the record of the process whose exit code explains why the attempt failed.

    Return None if no process recorded a nonzero exit code.
    """
    ended = [said for said in read_attempts(folder, name) if said["exit_code"]]
    by_code = {said["exit_code"]: said for said in reversed(ended)}  # the first one that said it
    return next((by_code[code] for code in _SPEAKS_FIRST if code in by_code), None)
