"""Let processes end with their parent and in order, identify processes, and measure whether they make progress.

Standard library only.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import parent_process
from pathlib import Path

PR_SET_PDEATHSIG = 1
MIN_CPU_SHARE = 0.05  # share of one core; a process that only waits and polls uses less


def die_with_parent() -> None:
    """Let the kernel kill this process when its parent ends, for whatever reason. Does nothing outside Linux.

    A worker exits here if its main process has already ended. The worker's parent is the fork server, which may
    have ended too.
    """
    import ctypes  # here, so that processes which never call this do not import it

    try:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL), 0, 0, 0)
    except (AttributeError, OSError):
        return
    main = parent_process()
    if main is not None and not main.is_alive():
        os._exit(1)


@contextmanager
def leaving_process_group() -> Iterator[None]:
    """At the end, leave torch's process group if it was joined inside; transformers and accelerate never leave theirs.

    The group has threads, and a process that ends while they run may be aborted by the system's library. After an error
    nothing is left, since the launcher ends all processes.
    """
    was_in_group = _is_in_process_group()
    yield
    if not was_in_group and _is_in_process_group():
        sys.modules["torch.distributed"].destroy_process_group()


def _is_in_process_group() -> bool:
    distributed = sys.modules.get("torch.distributed")  # not imported for it
    return distributed is not None and distributed.is_available() and distributed.is_initialized()


def machine_id() -> str:
    """Return an id of this boot of this machine and of its process namespace, or "" if the system does not give one."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
        return f"{boot}/{os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def start_of(pid: int) -> str:
    """Return when a process started, in clock ticks since boot, or "" if it has ended or is a zombie.

    Together with the process id this identifies a process, because the system reuses ids.
    """
    fields = _stat_of(pid)
    return "" if fields is None or fields[0] in "ZX" else fields[19]


def cpu_seconds_with_children() -> float:
    """Return the CPU seconds of this process, its living descendants, and all children of these that have ended.

    Without `/proc`, descendants are left out.
    """
    return time.process_time() + cpu_seconds_of_tree(os.getpid(), itself=False)


def cpu_seconds_of_tree(pid: int, *, itself: bool = True) -> float:
    """Return the CPU seconds of a process, its living descendants, and all children of these that have ended.

    Without `itself`, the process's own seconds are left out.
    """
    tree, stats = [pid], dict[int, list[str] | None]()
    children = _children_of if Path(f"/proc/{pid}/task/{pid}/children").exists() else _children_by_search()
    for one in tree:  # the list grows during the loop
        stats[one] = _stat_of(one)
        tree += children(one)
    first = {pid: 11 if itself else 13}  # its own user and system time come before those of ended children
    ticks = sum(int(tick) for one, fields in stats.items() if fields for tick in fields[first.get(one, 11) : 15])
    return ticks / os.sysconf("SC_CLK_TCK")


def _children_of(pid: int) -> list[int]:
    """Return the living children of a process, from the lists that Linux keeps for each of its threads."""
    found: list[int] = []
    for thread in Path(f"/proc/{pid}/task").glob("[0-9]*"):
        with suppress(OSError):  # the thread has ended
            found += map(int, (thread / "children").read_text("ascii").split())
    return found


def _children_by_search() -> Callable[[int], Sequence[int]]:
    """Return a function like `_children_of`, for a kernel without these lists: it looks at every process once."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        if (fields := _stat_of(int(entry.name))) is not None:
            children.setdefault(int(fields[1]), []).append(int(entry.name))
    return lambda pid: children.get(pid, ())


def _stat_of(pid: int) -> list[str] | None:
    """Return the fields of `/proc/PID/stat` from the state on (state, parent, group, …), or None if it has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()
    except OSError:
        return None


class SignsOfLife:
    """A callable that tells whether work progressed in the last `seconds`: `count()` rose, or CPU time was used.

    Call it from a separate thread, whose own CPU time is not counted as work.
    """

    def __init__(self, count: Callable[[], int], seconds: float) -> None:
        self._count, self._seconds = count, seconds
        self._seen, self._since = count(), time.monotonic()
        self._used, self._looked_at = 0.0, time.monotonic()

    def __call__(self) -> bool:
        """Whether the work has shown a sign of life within the last `seconds`."""
        now, count = time.monotonic(), self._count()
        if count != self._seen:
            self._seen, self._since = count, now
        elif now - self._looked_at > self._seconds / 4:  # a look at every process costs some milliseconds
            used = cpu_seconds_of_tree(os.getpid()) - time.thread_time()  # less the CPU time of these looks
            if used - self._used > MIN_CPU_SHARE * (now - self._looked_at):
                self._since = now
            self._used, self._looked_at = used, now
        return now - self._since < self._seconds
