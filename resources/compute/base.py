"""The interface of compute backends: functions to submit a task, poll it, cancel it and find it again.

A task is a command, a size and a folder. Rendering the command is a pure function that returns text; running it takes a
few lines.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from resources.compute.size import Size
from training.contract.files.writing import Unsealed, regular_bytes

State = Literal["pending", "running", "succeeded", "failed", "cancelled", "lost"]


class NotSubmitted(RuntimeError):
    """A backend could not submit a task. With `is_refused`, it refuses the task as the profile describes it."""

    is_refused = False


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeFolder:
    """The artifact's folder on a node that does not see the root's folder, and the store that holds the root."""

    path: str
    address: str
    endpoint: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """One job to run.

    `key` is made from asset and fingerprint; a backend never runs two tasks with one key at once. `argv` follows
    the interpreter. Logs and exit status are written to `folder`.

    With `num_tasks` > 1, a backend with several nodes first runs that many tasks, which share the ranks (`--ranks i/n
    --claims NAME` is added to the command), and then a finishing job (`--finish SHARE` is added). The finishing job
    makes missing ranks itself, up to that share of all ranks, and exits with MISSING_RANKS if more are
    missing. With `phases`, it runs that many tasks for each phase (`--phase NAME` is added too); the tasks of a
    phase begin when those of the phase before have ended. With `on_ray`, the nodes of the size form a Ray cluster,
    and the command runs on the first one. `withheld` are names of the orchestrator's environment variables that the
    task must not inherit. With `node_folder`, the nodes do not see `folder`: the command works in that folder, which a
    node has for itself, and what it writes beside its artifact comes to `folder` by the root's store.
    """

    key: str
    argv: tuple[str, ...]
    size: Size
    folder: str
    environment: dict[str, str] = field(default_factory=dict)
    withheld: frozenset[str] = frozenset()
    num_tasks: int = 1
    phases: tuple[str, ...] = ()
    on_ray: bool = False
    node_folder: NodeFolder | None = None

    @property
    def work_folder(self) -> str:
        """The artifact's folder where the command runs."""
        return self.folder if self.node_folder is None else self.node_folder.path


@dataclass(frozen=True, kw_only=True, slots=True)
class Handle:
    """Identifies a submitted task. It can be saved as JSON, so that another process can watch the task later."""

    backend: str
    id: str
    key: str
    folder: str

    def as_json(self) -> dict[str, Any]:
        """Return the handle as plain data, from which `Handle(**data)` makes an equal handle."""
        return {"backend": self.backend, "id": self.id, "key": self.key, "folder": self.folder}


@dataclass(frozen=True, kw_only=True, slots=True)
class Allocation:
    """The nodes that one attempt at a task had, as its backend counts them; times are in seconds since 1970.

    `begin` is None if the backend no longer knows it, and `end` while the attempt has its nodes. `names` are the names
    of the nodes, and `cause` says how the attempt ended. `energy` is in joules, by what was measured; what is missing
    was not measured. `least` is True if nobody saw the end, and `end` is the last sign of life. `image` is the
    container image with its digest, where there is one.
    """

    attempt: str
    begin: float | None
    end: float | None = None
    nodes: int = 1
    names: str = ""
    cause: str = ""
    image: str = ""
    energy: Mapping[str, float] = field(default_factory=dict)
    least: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Status:
    """The state of a task as its backend knows it. `reason` is a text for people; `exit_code` is None if there is none.

    `pending_seconds` is how long a pending task has waited; `is_stuck` is True if waiting cannot help. `was_ended` is
    True if a task was ended from outside, by a signal or the scheduler; then `reason` explains more than the job's own
    error. `attempt` is the name under which the job's processes recorded their exit, and `log` is the file with their
    output. `parts` are the failed or cancelled tasks of a fan-out. `was_preempted` is True if the scheduler took the
    nodes away, which is no failure of the task. `allocations` are the nodes of this attempt, and of others as far as
    the backend knows them now.
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
    was_preempted: bool = False
    allocations: tuple[Allocation, ...] = field(default=(), compare=False)

    @property
    def is_over(self) -> bool:
        """Whether the task has ended, in whatever way."""
        return self.state not in ("pending", "running")


class Backend(Protocol):
    """A place that runs tasks, such as this machine or a Slurm cluster."""

    name: str
    poll_seconds: float

    def render(self, task: Task) -> str:
        """Return the command or script that `submit` runs, as text."""
        ...

    def submit(self, task: Task) -> Handle:
        """Start the task and return at once; if a task with this key is pending or running, return its handle."""
        ...

    def poll(self, handle: Handle) -> Status:
        """Return the task's present status."""
        ...

    def cancel(self, handle: Handle) -> None:
        """End the task and everything it started. It is no error if the task has already ended."""
        ...

    def find(self, key: str, folder: str) -> Handle | None:
        """The handle of the last task submitted with this key for `folder`; None if there is none."""
        ...

    def log_tail(self, folder: str, lines: int, attempt: str = "") -> str:
        """The last lines in the log of the task's last attempt; empty if `attempt` is given and is another one."""
        ...


def interpreter_argv(task: Task, python: str) -> list[str]:
    """The whole command of a task on one node; through torchrun if the size has several processes.

    On a node with a folder of its own, a process brings the job from the store and sends what the command writes.
    """
    there, launcher = task.node_folder, list[str]()
    if task.size.processes > 1 and task.argv[:1] == ("-m",):
        launcher = [*LAUNCHER, "--standalone", f"--nproc-per-node={task.size.processes}"]
    command = [python, *launcher, *task.argv]
    return command if there is None else [python, *ON_NODE, there.address, there.endpoint, there.path, *command]


def waited(child: str) -> str:
    """Return a line of the shell that waits for the process `child` and sets `code` to its exit code.

    A signal ends `wait` early, with a code of its own; the script's trap sets `again` then. 127 is `wait` without a
    child: its code was read before.
    """
    again = f'again=; wait "{child}"; last=$?; [ "$last" = 127 ] || code=$last'
    return f'again=1 code=127; while [ "$again" ]; do {again}; done'


def cores_asked(task: Task) -> int | None:
    """Return the cores that a profile asks for on each node; None, all of a node's, if it names no number of them."""
    size = task.size
    if size.workers is None and size.threads is None:
        return None
    return max(size.workers or 1, (size.threads or 0) * size.processes)


ON_NODE = ("-m", "training.on_node")

# SIGUSR1 is a scheduler's early warning. By default it would kill torchrun and leave its processes behind.
LAUNCHER = ("-m", "torch.distributed.run", "--signals-to-handle=SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1")


# Small things that backends share


LOCK_FILE = "submit.lock"
HANDLE_FILE = "handle.json"  # in a task's folder: the handle of its last submission
TAIL_BYTES = 65_536
ATTEMPT_MARK = "--- attempt "  # begins the line in a log that precedes the output of an attempt


@contextmanager
def submit_lock(folder: Path) -> Iterator[int]:
    """Lock a task's folder against other submissions, also by other processes, while the context is open.

    It gives the file descriptor of the lock. The kernel releases the lock when the last process that holds the
    descriptor closes it or ends, however it ends.
    """
    descriptor = os.open(folder / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield descriptor
    finally:
        os.close(descriptor)


def read_json(path: Path) -> dict[str, Any] | None:
    """The JSON object in a file; None if the file is missing, incomplete or no regular file."""
    try:
        return json.loads(regular_bytes(path))
    except (FileNotFoundError, ValueError):
        return None


def write_json(path: Path, value: dict[str, Any]) -> None:
    """Write the object to a file atomically."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    temporary.write_text(json.dumps(value), "utf-8")
    os.replace(temporary, path)


def tail(path: Path, lines: int, attempt: str = "") -> str:
    """The last `lines` lines of the last attempt in a log; empty if there is no log or the last attempt is another one.

    Every attempt appends to the log, after a line with its name. A log without such lines counts as one attempt.
    """
    try:
        text = regular_bytes(path)
    except (FileNotFoundError, Unsealed):
        return ""
    mark, _, own = text[text.rfind(b"\n" + ATTEMPT_MARK.encode()) + 1 :].partition(b"\n")
    if attempt and not mark.startswith(f"{ATTEMPT_MARK}{attempt} ".encode()):
        return ""
    own = own if mark.startswith(ATTEMPT_MARK.encode()) else text
    return "\n".join(own[-TAIL_BYTES:].decode("utf-8", "replace").splitlines()[-lines:])
