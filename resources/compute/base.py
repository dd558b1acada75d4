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

State = Literal["pending", "running", "succeeded", "failed", "cancelled", "lost"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """One job to run.

    `key` is unique for what is made (asset and fingerprint); a backend never runs two tasks with one key at once.
    `argv` is what comes after the interpreter. `folder` takes logs and exit status. With `num_tasks` > 1 a backend of
    several nodes runs that many ranges of ranks first (`--ranks i/n` is added), then the plain command, which finishes.
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

    A pending task has been so for `pending_seconds`; it `is_stuck` when no waiting ends what it waits for.
    """

    state: State
    reason: str = ""
    exit_code: int | None = None
    pending_seconds: float = 0.0
    is_stuck: bool = False

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

    def log_tail(self, folder: str, lines: int) -> str:
        """The last lines of the task's output."""
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


def tail(path: Path, lines: int) -> str:
    """The last `lines` lines of a text file; empty when there is none."""
    try:
        with open(path, "rb") as stream:
            stream.seek(max(0, path.stat().st_size - 65_536))
            return "\n".join(stream.read().decode("utf-8", "replace").splitlines()[-lines:])
    except FileNotFoundError:
        return ""
