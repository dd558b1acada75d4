"""The compute seam: submit, poll, cancel, find again. A task is an argv, a size and a place.

Rendering what will run is a pure function that returns text; doing it is a few lines.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from resources.compute.size import Size

MISSING_RANKS_EXIT_CODE = 4

State = Literal["pending", "running", "succeeded", "failed", "cancelled", "lost"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """One job to run.

    `key` is unique for what is made (asset and fingerprint); a backend never runs two tasks with one key at once.
    `argv` is what comes after the interpreter. `folder` takes logs and exit status. With `num_tasks` > 1 a backend of
    several nodes runs that many ranges of ranks first (`--ranks i/n` is added), then a job that finishes (`--finish
    share`): it makes at most that share of the ranks itself, and ends with MISSING_RANKS_EXIT_CODE when more are
    missing.
    """

    key: str
    argv: tuple[str, ...]
    size: Size
    folder: str
    environment: dict[str, str] = field(default_factory=dict)
    num_tasks: int = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Handle:
    """A submitted task, as JSON-ready text, so that another process can go on watching it."""

    backend: str
    id: str
    key: str
    folder: str

    def as_json(self) -> dict[str, Any]:
        """Plain data; `Handle(**data)` is an equal handle."""
        return {"backend": self.backend, "id": self.id, "key": self.key, "folder": self.folder}


@dataclass(frozen=True, kw_only=True, slots=True)
class Status:
    """What a backend knows of a task. `reason` is for people; `exit_code` is None where there was none.

    A pending task has been so for `pending_seconds`; it `is_stuck` when no waiting ends what it waits for. One that is
    over `was_ended` when something else than its own exit ended it (a signal, the scheduler): then `reason` says more
    than the job's own words. `attempt` is the name under which the job's processes told how they ended, and `log` the
    file with their output. `parts` are the tasks of a fan-out that ended otherwise than well.
    """

    state: State
    reason: str = ""
    exit_code: int | None = None
    pending_seconds: float = 0.0
    is_stuck: bool = False
    was_ended: bool = False
    attempt: str = ""
    log: str = "log.txt"
    parts: tuple[Status, ...] = ()

    @property
    def is_over(self) -> bool:
        """Whether the task will not go on by itself."""
        return self.state not in ("pending", "running")


class Backend(Protocol):
    """Somewhere tasks run."""

    name: str
    poll_seconds: float

    def render(self, task: Task) -> str:
        """What `submit` will run, as text."""
        ...

    def submit(self, task: Task) -> Handle:
        """Start the task and return at once; the one that is on its way already when there is one."""
        ...

    def poll(self, handle: Handle) -> Status:
        """The task's present status."""
        ...

    def cancel(self, handle: Handle) -> None:
        """End the task and everything it started; no error when it is over already."""
        ...

    def find(self, key: str, folder: str) -> Handle | None:
        """The last task submitted with this key; None when there never was one."""
        ...

    def log_tail(self, folder: str, lines: int, attempt: str = "") -> str:
        """The last lines that the task's last attempt wrote; empty when that is not the one called `attempt`."""
        ...


def interpreter_argv(task: Task, python: str) -> list[str]:
    """The whole command of a task on one node: torchrun where the size has several processes."""
    if task.size.processes > 1 and task.argv[:1] == ("-m",):
        launcher = [*LAUNCHER, "--standalone", f"--nproc-per-node={task.size.processes}", "-m"]
        return [python, *launcher, *task.argv[1:]]
    return [python, *task.argv]


# SIGUSR1 is a scheduler's early warning, by which torchrun would die by default and leave its processes behind.
LAUNCHER = ("-m", "torch.distributed.run", "--signals-to-handle=SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1")


# Small things that backends share


LOCK_FILE = "submit.lock"
TAIL_BYTES = 65_536
ATTEMPT_MARK = "--- attempt "  # how the line begins that stands in a log before what an attempt wrote


@contextmanager
def submit_lock(folder: Path) -> Iterator[int]:
    """One submission at a time for a task's folder, also of several processes. Gives the lock's file descriptor.

    The kernel lets go when the last process that holds the descriptor ends or closes it, however it ends.
    """
    descriptor = os.open(folder / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield descriptor
    finally:
        os.close(descriptor)


def read_json(path: Path) -> dict[str, Any] | None:
    """The object in a file; None when there is no file or no whole object in it."""
    try:
        return json.loads(path.read_text("utf-8"))
    except (FileNotFoundError, json.JSONDecodeError):
        return None


def write_json(path: Path, value: dict[str, Any]) -> None:
    """Write the object whole or not at all."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    temporary.write_text(json.dumps(value), "utf-8")
    os.replace(temporary, path)


def tail(path: Path, lines: int, attempt: str = "") -> str:
    """The last `lines` lines of a log's last attempt; empty when there is none, or it is not the one called `attempt`.

    A log is appended to by every attempt. One without marks is taken as a whole.
    """
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return ""
    mark, _, own = text[text.rfind(b"\n" + ATTEMPT_MARK.encode()) + 1 :].partition(b"\n")
    if attempt and not mark.startswith(f"{ATTEMPT_MARK}{attempt} ".encode()):
        return ""
    own = own if mark.startswith(ATTEMPT_MARK.encode()) else text
    return "\n".join(own[-TAIL_BYTES:].decode("utf-8", "replace").splitlines()[-lines:])
