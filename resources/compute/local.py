"""The backend for this machine: each task is a process group, which outlives the orchestrator that started it.

A small supervisor process owns the task and every process that it starts. It writes the task's exit code when all of
them have ended, so that another orchestrator can read it.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from resources.compute.backends import BackendPart
from resources.compute.base import (
    Allocation,
    Handle,
    Status,
    Task,
    interpreter_argv,
    read_json,
    submit_lock,
    tail,
    write_json,
)
from resources.compute.supervise import (
    EXIT_FILE,
    OWNER_VARIABLE,
    PROCESS_FILE,
    kill,
    owner_of,
    remove_temporary,
    start_of,
    stat_of,
)

LOG_FILE, CANCEL_FILE = "log.txt", "cancelled.json"
SUPERVISOR = Path(__file__).with_name("supervise.py")
GRACE_SECONDS = 20.0
TRACKER_VARIABLES = "MLFLOW_TRACKING_"  # prefix of the variables with user, password and token
OUT_OF_MEMORY = (
    "meanwhile the kernel's out-of-memory killer struck in its control group; lower `workers`, `processes` or "
    "`micro_batch_tokens` in the profile"
)


class LocalBackend:
    """Runs tasks as processes of this machine. It is one node, so one process group runs all ranks of a fan-out."""

    name = "local"

    def __init__(self, *, poll_seconds: float = 0.1) -> None:
        self.poll_seconds = poll_seconds

    def render(self, task: Task) -> str:
        """The task's shell command line, with its environment variables."""
        settings = [f"{name}={shlex.quote(value)}" for name, value in sorted(_variables(task).items())]
        return " ".join([*settings, shlex.join(interpreter_argv(task, sys.executable))]) + "\n"

    def submit(self, task: Task) -> Handle:
        """Start the task under a supervisor in a new session; its output is appended to `log.txt`.

        If a task with this key is still running, return its handle instead.
        """
        folder = Path(task.folder)
        folder.mkdir(parents=True, exist_ok=True)
        with submit_lock(folder) as lock:
            there = self._noted(task.key, task.folder)
            if there is not None and not self.poll(there).is_over:
                return there
            for stale in (PROCESS_FILE, EXIT_FILE, CANCEL_FILE):
                (folder / stale).unlink(missing_ok=True)
            return self._start(task, folder, lock)

    def _start(self, task: Task, folder: Path, lock: int) -> Handle:
        command = json.dumps(interpreter_argv(task, sys.executable))
        with open(folder / LOG_FILE, "ab") as output:
            process = subprocess.Popen(
                [sys.executable, "-I", "-S", str(SUPERVISOR), str(folder), task.key, str(lock), command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**_inherited(task), **_variables(task)},
                pass_fds=(lock,),
                start_new_session=True,
            )
        _CHILDREN[process.pid] = process
        return Handle(backend=self.name, id=str(process.pid), key=task.key, folder=task.folder)

    def poll(self, handle: Handle) -> Status:
        """Return the task's status: running while its supervisor lives, then by the exit code that it wrote.

        If the supervisor was killed, the processes that it left behind are ended first.
        """
        folder, pid = Path(handle.folder), int(handle.id)
        child = _CHILDREN.get(pid)
        process = read_json(folder / PROCESS_FILE)
        had = _allocation(pid, process)
        if child is not None and child.poll() is None:
            return Status(state="running", allocations=had)
        ended = self._ended(folder, pid)  # read after the process file, because the task may end at any moment
        if ended is not None:
            return ended
        if process is not None and process["pid"] == pid and _lives(pid, process["start"]):
            return Status(state="running", allocations=had)
        if (ended := self._ended(folder, pid)) is not None:
            return ended
        lost = tuple(replace(one, end=_last_word(folder, one), cause="lost", least=True) for one in had)
        return replace(_lost(was_cancelled=_was_cancelled(folder, pid)), allocations=lost)

    def _ended(self, folder: Path, pid: int) -> Status | None:
        known = read_json(folder / EXIT_FILE)
        if known is None or known["pid"] != pid:
            return None
        status = _status_of(known["exit_code"], was_cancelled=_was_cancelled(folder, pid))
        cause = "completed" if status.state == "succeeded" else status.reason
        status = replace(status, allocations=_allocation(pid, known, cause))
        if status.state == "succeeded":
            return status
        if known.get("oom_kills"):
            status = replace(status, reason=f"{status.reason}; {OUT_OF_MEMORY}", was_ended=True)
        return replace(status, attempt=str(pid))

    def cancel(self, handle: Handle) -> None:
        """Send SIGTERM to the process group, and after 20 s SIGKILL to all processes that the task started."""
        pid = int(handle.id)
        if self.poll(handle).is_over:
            return
        write_json(Path(handle.folder) / CANCEL_FILE, {"pid": pid})
        steps = (
            (lambda: os.killpg(pid, signal.SIGTERM), GRACE_SECONDS),
            (lambda: kill(_owned_by(pid, start_of(pid))), 5.0),  # the supervisor then says how it ended
            (lambda: os.killpg(pid, signal.SIGKILL), 5.0),
        )
        for strike, seconds in steps:
            try:
                strike()
            except ProcessLookupError:
                return
            deadline = time.monotonic() + seconds
            while time.monotonic() < deadline:
                if self.poll(handle).is_over:
                    return
                time.sleep(0.05)

    def find(self, key: str, folder: str) -> Handle | None:
        """Return the handle of the task whose process file is in `folder`, if it has this key.

        This waits for a submission in progress.
        """
        if not Path(folder).is_dir():
            return None
        with submit_lock(Path(folder)):
            return self._noted(key, folder)

    def _noted(self, key: str, folder: str) -> Handle | None:
        process = read_json(Path(folder) / PROCESS_FILE)
        if process is None or process["key"] != key:
            return None
        return Handle(backend=self.name, id=str(process["pid"]), key=key, folder=folder)

    def log_tail(self, folder: str, lines: int, attempt: str = "") -> str:
        """The last lines of the last attempt in `log.txt`; empty if `attempt` is given and is another one."""
        return tail(Path(folder) / LOG_FILE, lines, attempt)


def tidy(folder: Path) -> None:
    """End the processes and remove the files of the last task of `folder` whose supervisor was killed.

    Call this when a task is no longer polled because its artifact was found.
    """
    process = read_json(folder / PROCESS_FILE)
    if process is None or (read_json(folder / EXIT_FILE) or {}).get("pid") == process["pid"]:
        return
    pid, start = process["pid"], process["start"]
    deadline = time.monotonic() + 5.0
    while not _supervises(pid, start) and _lives(pid, start) and time.monotonic() < deadline:
        time.sleep(0.02)


# Supervisors that this process started. They must be polled, because an ended child that nobody waits for looks alive.
_CHILDREN: dict[int, subprocess.Popen[bytes]] = {}


def _inherited(task: Task) -> dict[str, str]:
    """This process's environment without what the task must not have, nor the credentials for MLflow."""
    return {
        name: value
        for name, value in os.environ.items()
        if name not in task.withheld and not name.startswith(TRACKER_VARIABLES)
    }


def _variables(task: Task) -> dict[str, str]:
    threads = {"OMP_NUM_THREADS": str(task.size.threads)} if task.size.threads else {}
    return {**threads, **task.environment}


def _status_of(code: int, *, was_cancelled: bool) -> Status:
    if code == 0:
        return Status(state="succeeded", exit_code=0)
    reason = f"ended by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
    state = "cancelled" if was_cancelled else "failed"
    return Status(state=state, reason=reason, exit_code=code, was_ended=code < 0)


def _allocation(pid: int, known: dict[str, Any] | None, cause: str = "") -> tuple[Allocation, ...]:
    """This machine, from when the supervisor began to when it ended; nothing if its file is another one's."""
    if known is None or known["pid"] != pid or "began" not in known:
        return ()
    name, energy = f"{pid}@{known['began']:.3f}", known.get("energy", {})  # an id of a process comes again
    return (Allocation(attempt=name, begin=known["began"], end=known.get("ended"), cause=cause, energy=energy),)


def _last_word(folder: Path, lost: Allocation) -> float:
    """When an attempt whose supervisor was killed last wrote into its log: nobody knows when it ended."""
    return max((folder / LOG_FILE).stat().st_mtime if (folder / LOG_FILE).exists() else 0.0, lost.begin or 0.0)


def _lost(*, was_cancelled: bool) -> Status:
    return Status(state="cancelled" if was_cancelled else "lost", reason="its process is gone and left no exit code")


def _was_cancelled(folder: Path, pid: int) -> bool:
    return (read_json(folder / CANCEL_FILE) or {}).get("pid") == pid


def _lives(pid: int, start: str) -> bool:
    """Whether the supervisor lives, or a process that it owns.

    If only the supervisor was killed, this kills the processes that it owned, and removes its temporary files once they
    have ended.
    """
    if _supervises(pid, start):
        return True
    left = _owned_by(pid, start)
    kill(left)
    if not left:
        remove_temporary(pid, start)
    return bool(left)


def _supervises(pid: int, start: str) -> bool:
    """Whether this process is the supervisor itself, still alive."""
    fields = stat_of(pid)
    return fields is not None and fields[0] != "Z" and start_of(pid) == start


def _owned_by(pid: int, start: str) -> list[int]:
    """Return the living processes whose environment names this supervisor as owner, in whatever group or session."""
    mark = f"{OWNER_VARIABLE}={owner_of(pid, start)}".encode()
    return [int(entry.name) for entry in Path("/proc").glob("[0-9]*") if _is_marked(entry, mark)]


def _is_marked(entry: Path, mark: bytes) -> bool:
    try:
        fields = stat_of(int(entry.name))
        return fields is not None and fields[0] != "Z" and mark in (entry / "environ").read_bytes().split(b"\0")
    except OSError:
        return False  # the process has ended or belongs to another user


backend = BackendPart(make=lambda _: LocalBackend(), most_nodes=1)
