"""A lease that gives each artifact one writer, also over several machines. Its holder renews it while the work goes on.

No clock is compared with the clock of another machine. A process that wants a held lease watches its file. If the file
changes, the holder lives; if it stays unchanged for LEASE_SECONDS of the watcher's own time, the holder counts as dead.
If the holder runs on the same machine, it is enough to check whether its process exists.

Each take-over raises the token. A holder that lost its lease finds a higher token before it commits, and commits
nothing. This assumes that renaming is atomic and that every machine sees it within LEASE_SECONDS. Where the file system
also has locks (flock), two processes never believe at the same time that they hold the lease. Standard library only.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from training.contract.files.writing import regular_bytes, write_json
from training.contract.process.lifetime import machine_id, start_of

LEASE_FILE, GUARD_FILE = "lease.json", "lease.json.guard"
LEASE_SECONDS = 30.0
FORGOTTEN_SECONDS = 120.0
RENEW_SECONDS = 1.0
GUARD_SECONDS = 20.0  # a guard is held for microseconds, or longer by a process that was stopped while it held it


class LeaseHeld(RuntimeError):
    """The lease cannot be taken: another live process is making this artifact."""


class Lease:
    """A context manager that holds the right to write in a folder.

    `goes_on` returns whether the work has recently shown a sign of life. While it returns False the lease is not
    renewed, so another process may take it over. Entering raises LeaseHeld if a live process holds the lease; if it is
    not known whether the holder lives, `say_waiting` gets the holder's name, and entering waits for a sign of life.
    """

    def __init__(
        self,
        folder: Path,
        goes_on: Callable[[], bool] = lambda: True,
        say_waiting: Callable[[str], None] = lambda owner: None,
    ) -> None:
        self.goes_on = goes_on
        self._say_waiting = say_waiting
        self._path = folder / LEASE_FILE
        self._guard = folder / GUARD_FILE
        self._lease = {
            "owner": f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:8]}",
            "process": {"machine": machine_id(), "pid": os.getpid(), "start": start_of(os.getpid())},
        }
        self._token = 0
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Lease:
        self._take()
        self._thread = threading.Thread(target=self._renew, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        with suppress(LeaseHeld), self._guarded():
            if self.is_held:
                self._path.unlink(missing_ok=True)
            self._guard.unlink(missing_ok=True)

    @property
    def is_held(self) -> bool:
        """Whether this process still owns the lease; checked just before the commit."""
        current = _read(self._path)
        return current is not None and (current["owner"], current["token"]) == (self._lease["owner"], self._token)

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Context manager that commits under the lease: no other process can take the lease inside the block.

        Raise LeaseHeld if another process has taken it already.
        """
        with self._guarded():
            if not self.is_held:
                raise LeaseHeld(f"{self._path.parent}: another process took this work over; nothing was committed here")
            yield

    def _take(self) -> None:
        """Take the lease, waiting until its present holder is known to be dead.

        LeaseHeld is raised as soon as the holder is known to be alive.
        """
        self._path.parent.mkdir(parents=True, exist_ok=True)
        seen, since = None, 0.0
        while True:
            with self._guarded():
                current = _read(self._path)
                is_dead = current == seen and time.monotonic() - since >= LEASE_SECONDS
                if current is None or is_dead or _is_gone(current):
                    self._token = (current["token"] if current else 0) + 1
                    self._write(beat=0)
                    return
            if seen is not None and current != seen:
                raise LeaseHeld(f"{self._path.parent} is being made by {current['owner']}")
            if seen is None:
                seen, since = current, time.monotonic()
                self._say_waiting(current["owner"])
            time.sleep(RENEW_SECONDS / 10)

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        """Context manager whose block runs in one process at a time, if the file system has locks.

        The kernel releases the lock when its process ends.
        """
        descriptor = self._guard_descriptor()
        try:
            yield
        finally:
            os.close(descriptor)

    def _guard_descriptor(self) -> int:
        deadline = time.monotonic() + GUARD_SECONDS
        while time.monotonic() < deadline:
            descriptor = os.open(self._guard, os.O_CREAT | os.O_RDWR, 0o666)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(descriptor)
                time.sleep(0.01)
                continue
            except OSError:
                return descriptor  # no locks here: the token decides who may commit
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(descriptor), self._guard.stat()):
                    return descriptor
            os.close(descriptor)  # whoever had it removed it
        raise LeaseHeld(f"{self._guard} is held by a process that does not go on")

    def _write(self, *, beat: int) -> None:
        # Nothing of a lease must outlive a power failure, and one fsync of a busy disk can take longer than a lease.
        write_json(self._path, {**self._lease, "token": self._token, "beat": beat}, durable=False)

    def _renew(self) -> None:
        beat = 0
        while not self._stop.wait(RENEW_SECONDS):
            if not self.goes_on():
                continue
            with suppress(LeaseHeld, OSError), self._guarded():
                if not self.is_held:
                    return
                beat += 1
                self._write(beat=beat)


def holder_of(folder: Path, *, now: float = 0.0) -> str:
    """Return the name of the process that may hold the lease of a folder; empty if there is none.

    A process of this machine holds it while it exists; one of another machine until the lease is FORGOTTEN_SECONDS old
    at the time `now` of the file system's clock.
    """
    path = folder / LEASE_FILE
    lease = _read(path)
    if lease is None or _is_gone(lease):
        return ""
    with suppress(FileNotFoundError):  # its holder has just ended
        if _is_of_this_machine(lease) or now - path.stat().st_mtime <= FORGOTTEN_SECONDS:
            return lease["owner"]
    return ""


def _is_gone(lease: dict[str, Any]) -> bool:
    """Whether the lease's holder ran on this machine and its process no longer exists."""
    return _is_of_this_machine(lease) and start_of(lease["process"]["pid"]) != lease["process"]["start"]


def _is_of_this_machine(lease: dict[str, Any]) -> bool:
    return lease["process"]["machine"] == machine_id() != ""


def _read(path: Path) -> dict[str, Any] | None:
    try:
        return json.loads(regular_bytes(path))
    except (FileNotFoundError, ValueError):
        return None
