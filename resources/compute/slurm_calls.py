"""Calls of Slurm's commands, and one look at the queue that all processes of a user on a machine share.

Cells side by side are watched by processes of their own, and each asks often. The controller should not be asked by
each: whoever finds the last answer too old asks about all of the user's jobs, and the others read this answer.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import pwd
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from resources.compute.base import NotSubmitted
from training.contract.files.writing import regular_bytes

CALL_SECONDS = 30.0  # a client waits about 10 s for a dead controller
# The fields of `squeue` under the names that `scontrol show job` has for them.
_FIELDS = {
    "JobId": "JobID",
    "ArrayJobId": "ArrayJobID",
    "ArrayTaskId": "ArrayTaskID",
    "JobState": "State",
    "ExitCode": "exit_code",
    "Reason": "Reason",
    "NodeList": "NodeList",
    "Restarts": "RestartCnt",
    "Dependency": "Dependency",
    "EligibleTime": "EligibleTime",
    "SubmitTime": "SubmitTime",
    "StartTime": "StartTime",
    "EndTime": "EndTime",
    "TimeLimit": "TimeLimit",
    "PreemptTime": "PreemptTime",
    "NumNodes": "NumNodes",
    "Priority": "PriorityLong",
}
_CLUSTER = ("SLURM_CONF", "SLURM_CLUSTERS", "SLURM_CONF_SERVER")


class SlurmError(NotSubmitted):
    """Slurm refused a call or gave no usable answer; the message contains Slurm's own."""


class SlurmRefusal(SlurmError):
    """The queue refuses a job; the message names the fields of the profile that it depends on."""

    is_refused = True


def call(argv: list[str], given: str = "") -> str:
    """Run a command of Slurm's, which reads what is given, and return its standard output.

    Raises SlurmError if it fails, is not installed or does not answer within CALL_SECONDS.
    """
    try:
        done = subprocess.run(
            argv,
            capture_output=True,
            text=True,
            timeout=CALL_SECONDS,
            check=False,
            input=given,
            env={**os.environ, "SLURM_TIME_FORMAT": "standard"},
        )
    except FileNotFoundError:
        raise SlurmError(f"{argv[0]} is not installed here; the slurm backend needs Slurm's client commands") from None
    except subprocess.TimeoutExpired:
        raise SlurmError(f"{argv[0]} gave no answer in {CALL_SECONDS:.0f} s") from None
    if done.returncode:
        raise SlurmError(f"{' '.join(argv[:4])}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


def user() -> str:
    """Return the name of the user who runs this process."""
    return pwd.getpwuid(os.getuid()).pw_name


def fields_of(line: str) -> dict[str, str]:
    """Return the fields in a line of `scontrol -o show job`."""
    return dict(part.split("=", 1) for part in line.split() if "=" in part)


def jobs_of(job: str, *, within_seconds: float) -> list[dict[str, str]]:
    """Return the fields of a job, or of the tasks of an array that have begun and of the rest together.

    They are at most `within_seconds` old, if the queue lists the job; else Slurm is asked about this job alone. Raises
    SlurmError if Slurm does not know the job or does not answer.
    """
    listed = [one for one in _queue(within_seconds) if one.get("ArrayJobId", one["JobId"]) == job]
    if listed:
        return listed
    answer = call(["scontrol", "-o", "show", "job", job])
    return [fields_of(line) for line in answer.splitlines() if "JobState=" in line]


def _queue(within_seconds: float) -> list[dict[str, str]]:
    """Return the fields of the user's jobs, at most so old. An answer that failed counts as one: SlurmError."""
    with _shared() as path:
        there = _read(path) if path else None
        if there is None or not 0 <= time.monotonic() - there["at"] < within_seconds:
            there = _asked()
            if path:
                temporary = path.with_suffix(f".{os.getpid()}")
                temporary.write_text(json.dumps(there), "utf-8")
                os.replace(temporary, path)
    if there["error"]:
        raise SlurmError(there["error"])
    return there["jobs"]


def _asked() -> dict[str, Any]:
    wanted = ",".join(f"{name}:|" for name in _FIELDS.values())
    try:
        answer, error = call(["squeue", "--noheader", "--states=all", f"--user={user()}", f"--Format={wanted}"]), ""
    except SlurmError as refused:
        answer, error = "", str(refused)
    return {"at": time.monotonic(), "error": error, "jobs": [_job(line) for line in answer.splitlines() if "|" in line]}


def _job(line: str) -> dict[str, str]:
    fields = dict(zip(_FIELDS, (value.strip() for value in line.split("|")), strict=False))
    code = fields["ExitCode"]
    if code.isdigit():  # as `wait` gives it
        fields["ExitCode"] = f"{int(code) >> 8}:{int(code) & 127}"
    if fields["ArrayTaskId"] == "N/A":
        del fields["ArrayTaskId"], fields["ArrayJobId"]
    return fields


@contextmanager
def _shared() -> Iterator[Path | None]:
    """Give the file of the last answer, locked; None if this machine has no folder of the user's own for it.

    The kernel releases the lock when the process ends.
    """
    folder = Path(tempfile.gettempdir(), f"pedigree-slurm-{os.getuid()}")
    cluster = hashlib.sha256("\n".join(os.environ.get(name, "") for name in _CLUSTER).encode()).hexdigest()[:16]
    descriptor = -1
    with suppress(OSError):
        folder.mkdir(mode=0o700, exist_ok=True)
        seen = folder.lstat()
        if seen.st_uid == os.getuid() and not seen.st_mode & 0o77:
            descriptor = os.open(folder / f"{cluster}.lock", os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW, 0o600)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
    try:
        yield folder / f"{cluster}.json" if descriptor >= 0 else None
    finally:
        if descriptor >= 0:
            os.close(descriptor)


def _read(path: Path) -> dict[str, Any] | None:
    try:
        return json.loads(regular_bytes(path))
    except (OSError, ValueError):
        return None
