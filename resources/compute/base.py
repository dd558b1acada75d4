"""The compute seam: submit, poll, cancel, find again. A task is an argv, a size and a place.

Rendering what will run is a pure function that returns text; doing it is a few lines.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    from resources.profile import Size

State = Literal["pending", "running", "succeeded", "failed", "cancelled", "lost"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """One job to run.

    `key` is unique for what is made (asset and fingerprint); a backend never runs two tasks with one key at once.
    `argv` is what comes after the interpreter. `folder` takes logs and exit status. With `num_tasks` > 1 that many
    ranges of
    ranks run first (`--ranks i/n` is added), then the plain command, which finishes.
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
    """What a backend knows of a task. `reason` is for people; `exit_code` is None where there was none."""

    state: State
    reason: str = ""
    exit_code: int | None = None

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
        """Start the task and return at once."""
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
        launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={task.size.processes}", "-m"]
        return [python, *launcher, *task.argv[1:]]
    return [python, *task.argv]
