"""Processes that live no longer than the one that started them, and who is who among them. Standard library only."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from multiprocessing import parent_process
from pathlib import Path

PR_SET_PDEATHSIG = 1
MIN_CPU_SHARE = 0.05  # of one core: a process that only waits, and looks now and then, uses less


def die_with_parent() -> None:
    """Let the kernel kill this process when its parent ends, however that ends. Linux; elsewhere nothing happens.

    A worker of a pool ends here when its main process is gone already: its fork server, the parent, may have gone too.
    """
    import ctypes  # what starts nothing does without it

    try:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL), 0, 0, 0)
    except (AttributeError, OSError):
        return
    main = parent_process()
    if main is not None and not main.is_alive():
        os._exit(1)


def machine_id() -> str:
    """This boot of this machine and the namespace that its process ids are from; "" where that cannot be known."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
        return f"{boot}/{os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def start_of(pid: int) -> str:
    """When a living process started, so that a reused id is not taken for it; "" when it is gone or a zombie."""
    fields = _stat_of(pid)
    return "" if fields is None or fields[0] in "ZX" else fields[19]


def cpu_seconds_of_tree(pid: int) -> float:
    """CPU time of a process and its living descendants, and of those children that they have waited for."""
    stats = {int(entry.name): _stat_of(int(entry.name)) for entry in Path("/proc").glob("[0-9]*")}
    children: dict[int, list[int]] = {}
    for one, fields in stats.items():
        if fields is not None:
            children.setdefault(int(fields[1]), []).append(one)
    tree = [pid]
    for one in tree:  # it grows
        tree += children.get(one, ())
    ticks = sum(int(tick) for one in tree if (fields := stats.get(one)) for tick in fields[11:15])
    return ticks / os.sysconf("SC_CLK_TCK")


def _stat_of(pid: int) -> list[str] | None:
    """State, parent, group and so on of a process, as `/proc` has them; None when it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()
    except OSError:
        return None


class SignsOfLife:
    """Whether work goes on: something was said, or its processes used CPU time, within the last so many seconds.

    To be asked by a thread of its own.
    """

    def __init__(self, count: Callable[[], int], seconds: float) -> None:
        self._count, self._seconds = count, seconds
        self._seen, self._since = count(), time.monotonic()
        self._used, self._looked_at = 0.0, time.monotonic()

    def __call__(self) -> bool:
        """Whether there was a sign of late."""
        now, count = time.monotonic(), self._count()
        if count != self._seen:
            self._seen, self._since = count, now
        elif now - self._looked_at > self._seconds / 4:  # a look at every process costs some milliseconds
            used = cpu_seconds_of_tree(os.getpid()) - time.thread_time()  # looking is no work
            if used - self._used > MIN_CPU_SHARE * (now - self._looked_at):
                self._since = now
            self._used, self._looked_at = used, now
        return now - self._since < self._seconds
