"""The runs that wait for a job. Each has a small file in `watchers/` of the artifact's folder.

Several runs may follow one job. A cancelled run stops watching, and the job is ended only if no other run watches it.
Joining, leaving and ending happen under one lock, so a run that joins while the job is being ended waits until it has
ended. The file is a sign of life (`assets.state.liveness`), so a run counts until it leaves or its process ends.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import socket
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from types import TracebackType

from assets.state.liveness import WATCHERS_FOLDER, Watcher, sign_of_life, watchers_of
from resources.compute import local
from training.contract.files.checksums import at_once
from training.contract.running.leftovers import remove_state

LOCK_FILE, LEFT_FILE, ENDED_FILE = "lock", "left.jsonl", "ended.txt"


class Watching:
    """One run's registration as a watcher of the job of a folder, from entering the context until `leave`.

    `others` are the runs that already watched the job on entering.
    """

    def __init__(self, folder: Path, *, run_id: str) -> None:
        self._folder = folder
        self._file = folder / WATCHERS_FOLDER / f"{uuid.uuid4().hex}.json"
        self.run_id = run_id
        self._watcher = Watcher(run_id=run_id, host=socket.gethostname(), pid=os.getpid())
        self._sign = ExitStack()
        self._heard = 0  # bytes of LEFT_FILE that were read
        self._is_in = False
        self.others: list[Watcher] = []

    def __enter__(self) -> Watching:
        """Register as a watcher; waits while another run ends the job."""
        with _locked(self._folder) as place:
            self.others = watchers_of(self._folder)
            self._sign.enter_context(sign_of_life(self._file, json.dumps(asdict(self._watcher))))
            self._heard = _size(place / LEFT_FILE)
            self._is_in = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.leave()

    def news(self) -> list[str]:
        """Return one line for each other run that was cancelled since the last call."""
        if not self._file.exists():  # this machine was cut off until its lock was lost, and another one tidied up
            self._sign.close()
            self.__enter__()
        path = self._place / LEFT_FILE
        if _size(path) <= self._heard:
            return []
        with open(path, "rb", opener=at_once) as stream:
            stream.seek(self._heard)
            data = stream.read().rpartition(b"\n")[0]
        self._heard += len(data) + bool(data)
        return [json.loads(line) for line in data.splitlines()]

    def leave(self, end: Callable[[], None] | None = None) -> list[Watcher]:
        """Stop watching; return the runs that still watch the job.

        A cancelled run passes `end`, which ends the job. It is called if no other run watches; otherwise the other runs
        are notified.
        """
        if not self._is_in:
            return []
        with _locked(self._folder) as place:
            self._is_in = False
            self._sign.close()
            others = watchers_of(self._folder)
            if others and end is not None:
                with open(place / LEFT_FILE, "a", encoding="utf-8", opener=at_once) as stream:
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
        with suppress(OSError), open(self._place / ENDED_FILE, "a", encoding="utf-8", opener=at_once) as stream:
            stream.write(f"{job}\n")  # OSError is ignored, so that a job can be ended on a full disk too

    def has_ended(self, job: str) -> bool:
        """Whether a cancelled run ended `job` because it was its last watcher."""
        with suppress(FileNotFoundError):
            return job in (self._place / ENDED_FILE).read_text("utf-8").splitlines()
        return False

    @property
    def _place(self) -> Path:
        return self._folder / WATCHERS_FOLDER


def tidy(made: Path) -> None:
    """Remove what killed processes of an artifact's job left: watchers' files, processes, temporary files, state."""
    if (made / WATCHERS_FOLDER).is_dir():
        with _locked(made) as place:
            if not watchers_of(made):
                shutil.rmtree(place, ignore_errors=True)
    local.tidy(made)
    remove_state(made)


@contextmanager
def _locked(folder: Path) -> Iterator[Path]:
    """Lock the folder of watchers and yield its path. The last watcher to leave removes the folder and lock file."""
    place = folder / WATCHERS_FOLDER
    while True:
        place.mkdir(parents=True, exist_ok=True)
        try:
            descriptor = os.open(place / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o666)
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
