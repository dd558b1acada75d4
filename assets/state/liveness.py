"""Who is alive: commands, runs that wait for a job, and whoever is at work in an artifact's folder.

A process that others must know of keeps a sign of life, a file that it locks. The kernel frees the lock when the
process ends, in whatever way. So a killed process is told from one that works, and from a later one with the same id,
also by another machine that shares the root.

The writer of an artifact has a lease instead (`training.contract.running.lease`), because it must also lose its place
when it lives and does not go on, and on file systems without locks. A job has no process here: its backend is asked.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from resources.compute import supervise
from resources.compute.base import HANDLE_FILE, Handle, read_json
from resources.profile import Profile
from training.contract.artifact import ARTIFACT_FILE
from training.contract.files.checksums import at_once
from training.contract.running.lease import holder_of

WATCHERS_FOLDER = "watchers"
LAUNCHES = Path("dagster", "launches")


@contextmanager
def sign_of_life(path: Path, text: str = "") -> Iterator[None]:
    """Context manager in whose block `lives(path)` is true in every process; the file holds the text."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path.with_suffix(".new"), "w", encoding="utf-8") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        stream.write(text)
        stream.flush()
        os.replace(stream.name, path)  # only now, so that nobody finds it before it is locked
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def lives(path: Path) -> bool:
    """Return whether the process that made this sign of life still runs; also true if its file may not be opened."""
    try:
        with open(path, "rb", opener=at_once) as stream:
            fcntl.flock(stream, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except (BlockingIOError, PermissionError):
        return True
    return False


@dataclass(frozen=True, kw_only=True, slots=True)
class Watcher:
    """One run that waits for a job, and the process in which it runs."""

    run_id: str
    host: str
    pid: int

    def __str__(self) -> str:
        return f"run {self.run_id[:8]} (process {self.pid} on {self.host})"


def watchers_of(folder: Path) -> list[Watcher]:
    """Return the runs that watch the job of an artifact's folder now."""
    living = filter(lives, sorted((folder / WATCHERS_FOLDER).glob("*.json")))
    return [Watcher(**data) for path in living if (data := read_json(path)) is not None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Launched:
    """One `pedigree run`, or one run of the UI or of automation: its process, and that process's name in MLflow."""

    launch: str
    host: str
    pid: int
    owner: str
    what: str = "`pedigree run`"

    def __str__(self) -> str:
        return f"{self.what} (process {self.pid} on {self.host})"


def sign_of_launch(root: Path, launch: str) -> Path:
    """Return the sign of life of the `pedigree run` or the run with this id; its text is a `Launched` as JSON."""
    return root / LAUNCHES / f"{launch}.lock"


@contextmanager
def living(root: Path, launched: Launched) -> Iterator[None]:
    """Context manager in whose block this launch or run counts as alive."""
    with sign_of_life(sign_of_launch(root, launched.launch), json.dumps(asdict(launched))):
        yield


def killed_launches(root: Path) -> list[Launched]:
    """Return the launches and runs under a root that ended without a word, so that they seem to go on."""
    gone = [path for path in sorted((root / LAUNCHES).glob("*.lock")) if not lives(path)]
    return [Launched(**data) for path in gone if (data := read_json(path)) is not None]


def at_work(folder: Path, profile: Profile, *, now: float = 0.0) -> str:
    """Return, in words, who is at work in an artifact's folder: a run, a process or a job; empty if nobody is.

    In doubt somebody is. `now` is the present time by the clock of the file system; a lease that a process of another
    machine did not renew for minutes before it does not count.
    """
    if waiting := watchers_of(folder):
        return f"{waiting[0]} waits for it"
    if holder := holder_of(folder, now=now):
        return f"{holder} holds its lease"
    process = read_json(folder / supervise.PROCESS_FILE)
    if process is not None and supervise.start_of(process["pid"]) == process["start"]:
        return f"process {process['pid']} of this machine makes it"
    return _job(folder, profile)


def _job(folder: Path, profile: Profile) -> str:
    """Return the job of an unfinished artifact that waits in a scheduler's queue or runs; empty if there is none."""
    handle = read_json(folder / HANDLE_FILE)
    if handle is None or handle["backend"] == "local" or (folder / ARTIFACT_FILE).exists():
        return ""
    what = f"job {handle['id']} of {handle['backend']}"
    try:
        backend = profile.backend_for(folder.parent.name)
        if backend.name != handle["backend"]:
            return f"{what} made it last, and the profile {profile.name} cannot ask there"
        status = backend.poll(Handle(**handle))
    except Exception as error:  # whatever a scheduler's command raises: nobody knows whether the job lives
        return f"{what} made it last, and could not be asked ({error})"
    return "" if status.is_over else f"{what} is {status.state}"
