"""The runs that wait for a job. Each has a small file in `watchers/` of the artifact's folder.

Several runs may follow one job. A cancelled run stops watching, and the job is ended only if no other run watches it.
Joining, leaving and ending happen under one lock, so a run that joins while the job is being ended waits until it has
ended.

A watcher counts only while it renews its file, and while its process lives, if this machine can see that process. So a
killed process does not count for long.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import socket
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType

from resources.compute import local
from resources.compute.base import read_json, write_json
from training.process.lifetime import machine_id, start_of
from training.running.leftovers import remove_state

WATCHERS_FOLDER = "watchers"
LOCK_FILE, LEFT_FILE, ENDED_FILE = "lock", "left.jsonl", "ended.txt"
RENEW_SECONDS = 10.0
STALE_SECONDS = 120.0  # a watcher renews its file between two polls; one call to a scheduler takes up to 30 s


@dataclass(frozen=True, kw_only=True, slots=True)
class Watcher:
    """One run that waits for a job, and the process in which it runs."""

    run_id: str
    launch: str
    host: str
    machine: str  # the boot and the process namespace to which `pid` belongs
    pid: int
    start: str  # start time of the process, which differs if the pid is reused

    def __str__(self) -> str:
        return f"run {self.run_id[:8]} (process {self.pid} on {self.host})"

    @property
    def is_gone(self) -> bool:
        """Whether the process is known to have ended; False if it runs on a machine that this one cannot see."""
        if not self.machine or self.machine != machine_id():
            return False
        return start_of(self.pid) != self.start


class Watching:
    """One run's registration as a watcher of the job of a folder, from entering the context until `leave`.

    `others` are the runs that already watched the job on entering.
    """

    def __init__(self, folder: Path, *, run_id: str, launch: str) -> None:
        pid = os.getpid()
        self._folder = folder
        self._name = f"{uuid.uuid4().hex}.json"
        self._watcher = Watcher(
            run_id=run_id,
            launch=launch,
            host=socket.gethostname(),
            machine=machine_id(),
            pid=pid,
            start=start_of(pid),
        )
        self._renewed_at = time.monotonic()
        self._heard = 0  # bytes of LEFT_FILE that were read
        self._is_in = False
        self.others: list[Watcher] = []

    def __enter__(self) -> Watching:
        """Register as a watcher; waits while another run ends the job."""
        with _locked(self._folder) as place:
            self.others = _living(place)
            write_json(place / self._name, asdict(self._watcher))
            self._heard = _size(place / LEFT_FILE)
            self._is_in = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.leave()

    def renew(self) -> list[str]:
        """Renew the registration; return one line for each other run that was cancelled since the last call."""
        if time.monotonic() - self._renewed_at > RENEW_SECONDS:
            self._renewed_at = time.monotonic()
            try:
                os.utime(self._place / self._name)
            except FileNotFoundError:  # this process did not renew in time, and another one removed its file
                self.__enter__()
        return self._news()

    def leave(self, end: Callable[[], None] | None = None) -> list[Watcher]:
        """Stop watching; return the runs that still watch the job.

        A cancelled run passes `end`, which ends the job. It is called if no other run watches; otherwise the other runs
        are notified.
        """
        if not self._is_in:
            return []
        with _locked(self._folder) as place:
            self._is_in = False
            (place / self._name).unlink(missing_ok=True)
            others = _living(place)
            if others and end is not None:
                with open(place / LEFT_FILE, "a", encoding="utf-8") as stream:
                    stream.write(json.dumps(str(self._watcher)) + "\n")
            if not others and end is not None:
                end()
            elif not others:
                shutil.rmtree(place, ignore_errors=True)
        return others

    def note_end(self, job: str) -> None:
        """Record that `job` is being ended because no run watches it any more.

        A run that joins now then submits a new job.
        """
        with suppress(OSError), open(self._place / ENDED_FILE, "a", encoding="utf-8") as stream:
            stream.write(f"{job}\n")  # OSError is ignored, so that a job can be ended on a full disk too

    def has_ended(self, job: str) -> bool:
        """Whether a cancelled run ended `job` because it was its last watcher."""
        with suppress(FileNotFoundError):
            return job in (self._place / ENDED_FILE).read_text("utf-8").splitlines()
        return False

    @property
    def _place(self) -> Path:
        return self._folder / WATCHERS_FOLDER

    def _news(self) -> list[str]:
        path = self._place / LEFT_FILE
        if _size(path) <= self._heard:
            return []
        with open(path, "rb") as stream:
            stream.seek(self._heard)
            data = stream.read().rpartition(b"\n")[0]
        self._heard += len(data) + bool(data)
        return [json.loads(line) for line in data.splitlines()]


def watchers_of(folder: Path) -> list[Watcher]:
    """The runs that watch the job of `folder` now. Files of dead watchers are removed."""
    if not (folder / WATCHERS_FOLDER).is_dir():
        return []
    with _locked(folder) as place:
        living = _living(place)
        if not living:
            shutil.rmtree(place, ignore_errors=True)
    return living


def tidy(made: Path) -> None:
    """Remove what killed processes of an artifact's job left: watchers' files, processes, temporary files, state."""
    watchers_of(made)
    local.tidy(made)
    remove_state(made)


def _living(place: Path) -> list[Watcher]:
    """The live watchers; the files of all others are removed. The caller must hold the lock.

    Ages are measured by the file system's clock, which is the same for all machines.
    """
    os.utime(place / LOCK_FILE)
    now = (place / LOCK_FILE).stat().st_mtime
    found = []
    for path in sorted(place.glob("*.json")):
        data = read_json(path)
        watcher = Watcher(**data) if data is not None else None
        if watcher is None or watcher.is_gone or now - path.stat().st_mtime > STALE_SECONDS:
            path.unlink(missing_ok=True)
        else:
            found.append(watcher)
    return found


@contextmanager
def _locked(folder: Path) -> Iterator[Path]:
    """Lock the folder of watchers and yield its path. The last watcher to leave removes the folder and lock file."""
    place = folder / WATCHERS_FOLDER
    while True:
        place.mkdir(parents=True, exist_ok=True)
        try:
            descriptor = os.open(place / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o644)
        except FileNotFoundError:
            continue  # removed at this moment
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if _is_at(descriptor, place / LOCK_FILE):
                yield place
                return
        finally:
            os.close(descriptor)


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
