"""Calls of Slurm's commands, here or on a login node by ssh, and one look at the queue that all processes share.

Cells side by side are watched by processes of their own, and each asks often. The controller should not be asked by
each: whoever finds the last answer too old asks about all of the user's jobs, and the others read this answer.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shlex
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import IO, Any

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
_TIMES = {"SLURM_TIME_FORMAT": "standard", "TZ": "UTC0"}  # a login node may be in another time zone

SSH_OPTIONS = ("BatchMode=yes", "ConnectTimeout=10", "ServerAliveInterval=10")
SHARED_SECONDS = 60  # how long a connection outlives its last call
MOST_SOCKET = 90  # bytes of a socket's path, to which ssh adds letters of its own
SSH_FAILED, NO_COMMAND = 255, (126, 127)
# Run by the login's shell: variables come line by line before what the command reads, and so stand in no list of
# processes.
_WITH_VARIABLES = ("sh", "-c", 'while IFS= read -r one && [ -n "$one" ]; do export "$one"; done; exec "$@"', "sh")
# What ssh says where waiting does not help, and what to do.
_NO_LOGIN = {
    "host key": "its host key is not the one known here; compare it, then connect once by hand: ssh {login}",
    "permission denied": "it lets nobody in without a password; give it a key (ssh-copy-id {login}) or start an agent",
    "could not resolve": "there is no such host; change it",
}


class SlurmError(NotSubmitted):
    """Slurm refused a call or gave no usable answer; the message contains Slurm's own."""


class SlurmRefusal(SlurmError):
    """The queue refuses a job; the message names the fields of the profile that it depends on."""

    is_refused = True


def fields_of(line: str) -> dict[str, str]:
    """Return the fields in a line of `scontrol -o show job`."""
    return dict(part.split("=", 1) for part in line.split() if "=" in part)


@dataclass(frozen=True, kw_only=True, slots=True)
class Login:
    """Where Slurm's commands run: on this machine, or on the login node `ssh`, by one connection that calls share."""

    ssh: str | None = None

    def call(
        self,
        argv: Sequence[str],
        given: str | IO[bytes] = "",
        *,
        passed: Sequence[str] = (),
        seconds: float | None = CALL_SECONDS,
    ) -> str:
        """Run a command, which reads what is given, and return its standard output.

        On a login node it also has this process's variables with the names `passed`. Raises SlurmError if it fails, is
        not installed or does not answer in time.
        """
        variables = {**_TIMES, **{name: os.environ[name] for name in passed if name in os.environ}}
        command, environment, before = list(argv), {**os.environ, **variables}, ""
        if self.ssh is not None:
            command = [*ssh_command(self.ssh), shlex.join([*_WITH_VARIABLES, *argv])]
            environment, before = dict(os.environ), _lines(variables)
        try:
            done = _run(command, environment, before, given, seconds)
        except FileNotFoundError:
            raise SlurmError(f"{command[0]} is not installed here; {_needs(self.ssh)}") from None
        except subprocess.TimeoutExpired:
            raise SlurmError(f"{argv[0]} gave no answer in {seconds:.0f} s") from None
        if not done.returncode:
            return done.stdout.decode("utf-8", "replace")
        said = (done.stderr.strip() or done.stdout.strip()).decode("utf-8", "replace")
        if self.ssh is not None and (why := _why_no_login(self.ssh, argv[0], done.returncode, said)):
            raise why
        raise SlurmError(f"{' '.join(argv[:4])}: {said}")

    def jobs_of(self, job: str, *, within_seconds: float) -> list[dict[str, str]]:
        """Return the fields of a job, or of the tasks of an array that have begun and of the rest together.

        They are at most `within_seconds` old, if the queue lists the job; else Slurm is asked about this job alone.
        Raises SlurmError if Slurm does not know the job or does not answer.
        """
        listed = [one for one in self._queue(within_seconds) if one.get("ArrayJobId", one["JobId"]) == job]
        if listed:
            return listed
        answer = self.call(["scontrol", "-o", "show", "job", job])
        return [fields_of(line) for line in answer.splitlines() if "JobState=" in line]

    def _queue(self, within_seconds: float) -> list[dict[str, str]]:
        """Return the fields of the user's jobs, at most so old. An answer that failed counts as one: SlurmError."""
        with _shared(self.ssh) as path:
            there = _read(path) if path else None
            if there is None or not 0 <= time.monotonic() - there["at"] < within_seconds:
                there = self._asked()
                if path:
                    temporary = path.with_suffix(f".{os.getpid()}")
                    temporary.write_text(json.dumps(there), "utf-8")
                    os.replace(temporary, path)
        if there["error"]:
            raise SlurmError(there["error"])
        return there["jobs"]

    def _asked(self) -> dict[str, Any]:
        wanted, error = ",".join(f"{name}:|" for name in _FIELDS.values()), ""
        try:
            answer = self.call(["squeue", "--noheader", "--states=all", "--me", f"--Format={wanted}"])
        except SlurmError as refused:
            answer, error = "", str(refused)
        jobs = [_job(line) for line in answer.splitlines() if "|" in line]
        return {"at": time.monotonic(), "error": error, "jobs": jobs}


def _run(
    command: list[str], environment: dict[str, str], before: str, given: str | IO[bytes], seconds: float | None
) -> subprocess.CompletedProcess[bytes]:
    """Run a command that reads the lines `before`, then what is given."""
    if isinstance(given, str):
        text = (before + given).encode()
        return subprocess.run(command, input=text, capture_output=True, timeout=seconds, check=False, env=environment)
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
    ) as process:
        assert process.stdin is not None
        with suppress(BrokenPipeError):
            process.stdin.write(before.encode())
            shutil.copyfileobj(given, process.stdin, 2**20)
        out, error = process.communicate()
    return subprocess.CompletedProcess(command, process.returncode, out, error)


def ssh_command(login: str) -> list[str]:
    """Return the words that run a command on a login node, by a connection that the next calls use too.

    A connection that the user's own configuration of ssh shares is used as it is: where a login needs a second factor,
    the user opens it by hand.
    """
    options = [word for one in SSH_OPTIONS for word in ("-o", one)]
    folder = own_folder()
    if folder is not None and len(os.fsencode(folder)) + 41 <= MOST_SOCKET and not _shares_connections(login):
        shared = ("ControlMaster=auto", f"ControlPath={folder}/%C", f"ControlPersist={SHARED_SECONDS}")
        options += [word for one in shared for word in ("-o", one)]
    return ["ssh", *options, "--", login]


@cache
def _shares_connections(login: str) -> bool:
    """Whether the user's own configuration of ssh names a socket for connections to this login."""
    told = subprocess.run(["ssh", "-G", "--", login], capture_output=True, text=True, check=False).stdout
    return any(line.startswith("controlpath ") and line != "controlpath none" for line in told.splitlines())


def _lines(variables: dict[str, str]) -> str:
    """Return the variables line by line, and an empty line. Raises SlurmRefusal for a value of several lines."""
    if wrong := [name for name, value in variables.items() if "\n" in value]:
        raise SlurmRefusal(f"parts.slurm.environment: {wrong[0]} has a line break, with which it cannot go by ssh")
    return "".join(f"{name}={value}\n" for name, value in variables.items()) + "\n"


def _needs(ssh: str | None) -> str:
    return "parts.slurm.ssh needs it" if ssh else "the slurm backend needs Slurm's client commands, or parts.slurm.ssh"


def _why_no_login(login: str, program: str, code: int, said: str) -> SlurmError | None:
    """Return the error of a call by ssh that did not reach its command; None if the command itself failed."""
    where = f"parts.slurm.ssh: {login}"
    if code in NO_COMMAND:
        path = f"put it on the path of commands that are run by `ssh {login} {program}`"
        return SlurmRefusal(f"{where} has no command {program}: {_last_line(said)}; {path}")
    if code != SSH_FAILED:
        return None
    refusal = next((todo for part, todo in _NO_LOGIN.items() if part in said.lower()), None)
    if refusal is not None:
        return SlurmRefusal(f"{where}: {refusal.format(login=login)} ({_last_line(said)})")
    return SlurmError(f"{where} cannot be reached: {_last_line(said)}")


def _last_line(said: str) -> str:
    return said.splitlines()[-1].strip() if said else "it says nothing"


def _job(line: str) -> dict[str, str]:
    fields = dict(zip(_FIELDS, (value.strip() for value in line.split("|")), strict=False))
    code = fields["ExitCode"]
    if code.isdigit():  # as `wait` gives it
        fields["ExitCode"] = f"{int(code) >> 8}:{int(code) & 127}"
    if fields["ArrayTaskId"] == "N/A":
        del fields["ArrayTaskId"], fields["ArrayJobId"]
    return fields


def own_folder() -> Path | None:
    """Return a folder of the user's own on this machine, which is made; None if there can be none."""
    folder = Path(tempfile.gettempdir(), f"pedigree-slurm-{os.getuid()}")
    with suppress(OSError):
        folder.mkdir(mode=0o700, exist_ok=True)
        seen = folder.lstat()
        if seen.st_uid == os.getuid() and not seen.st_mode & 0o77:
            return folder
    return None


@contextmanager
def locked(name: str) -> Iterator[bool]:
    """Lock a file of the user's own folder while the context is open; give whether there is such a folder.

    The kernel releases the lock when the process ends.
    """
    folder, descriptor = own_folder(), -1
    if folder is not None:
        with suppress(OSError):
            descriptor = os.open(folder / name, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW, 0o600)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
    try:
        yield descriptor >= 0
    finally:
        if descriptor >= 0:
            os.close(descriptor)


@contextmanager
def _shared(ssh: str | None) -> Iterator[Path | None]:
    """Give the file of the last answer, locked; None if this machine has no folder of the user's own for it."""
    named = [*(os.environ.get(name, "") for name in _CLUSTER), *([ssh] if ssh else [])]
    cluster, folder = hashlib.sha256("\n".join(named).encode()).hexdigest()[:16], own_folder()
    with locked(f"{cluster}.lock") as is_locked:
        yield folder / f"{cluster}.json" if folder is not None and is_locked else None


def _read(path: Path) -> dict[str, Any] | None:
    try:
        return json.loads(regular_bytes(path))
    except (OSError, ValueError):
        return None
