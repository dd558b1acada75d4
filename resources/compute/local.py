"""This machine: a task is a process group of its own, which outlives the orchestrator that started it.

A small supervisor process waits for the task and writes its exit code, so that another orchestrator finds how it ended.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

from resources.compute.base import Handle, Status, Task, interpreter_argv

PID_FILE, EXIT_FILE, LOG_FILE = "process.json", "exit.json", "log.txt"
SUPERVISOR = Path(__file__).with_name("supervise.py")
GRACE_SECONDS = 20.0


class LocalBackend:
    """Runs tasks as processes of this machine."""

    name = "local"

    def __init__(self, *, poll_seconds: float = 0.1) -> None:
        self.poll_seconds = poll_seconds

    def render(self, task: Task) -> str:
        """The command line, as a shell would be given it."""
        settings = [f"{name}={shlex.quote(value)}" for name, value in sorted(_variables(task).items())]
        commands = [shlex.join(command) for command in _commands(task)]
        return " ".join(settings) + " \\\n" + " && ".join(commands) + "\n"

    def submit(self, task: Task) -> Handle:
        """Start the supervisor in a session of its own; output is appended to `log.txt`."""
        folder = Path(task.folder)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / EXIT_FILE).unlink(missing_ok=True)
        with open(folder / LOG_FILE, "ab") as output:
            process = subprocess.Popen(
                [sys.executable, "-I", "-S", str(SUPERVISOR), str(folder / EXIT_FILE), json.dumps(_commands(task))],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **_variables(task)},
                start_new_session=True,
            )
        _CHILDREN[process.pid] = process
        identity = {"key": task.key, "pid": process.pid, "start": _start_of(process.pid)}
        _write(folder / PID_FILE, identity)
        return Handle(backend=self.name, id=str(process.pid), key=task.key, folder=task.folder)

    def poll(self, handle: Handle) -> Status:
        """Running while the supervisor lives; then what it wrote."""
        child = _CHILDREN.get(int(handle.id))
        if child is not None:
            child.poll()  # reap it, or it would stay a zombie and look alive
        known = _read(Path(handle.folder) / EXIT_FILE)
        if known is not None:
            return _ended(known["exit_code"])
        identity = _read(Path(handle.folder) / PID_FILE)
        if identity is not None and _is_alive(identity):
            return Status(state="running")
        known = _read(Path(handle.folder) / EXIT_FILE)
        return (
            _ended(known["exit_code"])
            if known
            else Status(state="lost", reason="its process is gone and left no exit code")
        )

    def cancel(self, handle: Handle) -> None:
        """SIGTERM to the whole group, SIGKILL after a grace of 20 s."""
        identity = _read(Path(handle.folder) / PID_FILE)
        if identity is None or not _is_alive(identity):
            return
        for sign, seconds in ((signal.SIGTERM, GRACE_SECONDS), (signal.SIGKILL, 5.0)):
            try:
                os.killpg(identity["pid"], sign)
            except ProcessLookupError:
                return
            deadline = time.monotonic() + seconds
            while time.monotonic() < deadline:
                if self.poll(handle).is_over:
                    return
                time.sleep(0.05)

    def find(self, key: str, folder: str) -> Handle | None:
        """The task whose process file lies in `folder`, if it has this key."""
        identity = _read(Path(folder) / PID_FILE)
        if identity is None or identity["key"] != key:
            return None
        return Handle(backend=self.name, id=str(identity["pid"]), key=key, folder=folder)

    def log_tail(self, folder: str, lines: int) -> str:
        """The last lines of `log.txt`."""
        return tail(Path(folder) / LOG_FILE, lines)


_CHILDREN: dict[int, subprocess.Popen[bytes]] = {}


def tail(path: Path, lines: int) -> str:
    """The last `lines` lines of a text file; empty when there is none."""
    try:
        with open(path, "rb") as stream:
            stream.seek(max(0, path.stat().st_size - 65_536))
            return "\n".join(stream.read().decode("utf-8", "replace").splitlines()[-lines:])
    except FileNotFoundError:
        return ""


def _commands(task: Task) -> list[list[str]]:
    plain = interpreter_argv(task, sys.executable)
    fan_out = (
        [[*plain, "--ranks", f"{i}/{task.num_tasks}"] for i in range(task.num_tasks)] if task.num_tasks > 1 else []
    )
    return [*fan_out, plain]


def _variables(task: Task) -> dict[str, str]:
    threads = {"OMP_NUM_THREADS": str(task.size.threads)} if task.size.threads else {}
    return {**threads, **task.environment}


def _ended(code: int) -> Status:
    if code == 0:
        return Status(state="succeeded", exit_code=0)
    if code in (-signal.SIGTERM, -signal.SIGKILL, -signal.SIGINT):
        return Status(
            state="cancelled" if code != -signal.SIGKILL else "failed",
            reason=f"ended by {signal.Signals(-code).name}",
            exit_code=code,
        )
    return Status(state="failed", reason=f"exit code {code}", exit_code=code)


def _start_of(pid: int) -> str:
    """The kernel's start time of a process, so that a reused process id is not taken for it. Empty when unknown."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (FileNotFoundError, ProcessLookupError, IndexError):
        return ""


def _is_alive(identity: dict[str, str | int]) -> bool:
    pid = int(identity["pid"])
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, PermissionError):
        return False
    return _start_of(pid) == identity["start"] and not _is_zombie(pid)


def _is_zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def _read(path: Path) -> dict | None:
    try:
        return json.loads(path.read_text("utf-8"))
    except (FileNotFoundError, json.JSONDecodeError):
        return None


def _write(path: Path, value: dict) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    temporary.write_text(json.dumps(value), "utf-8")
    os.replace(temporary, path)
