"""Remove files that killed attempts left in an artifact's folder.

After the commit the folder holds the files in the manifest, and beside them job, recipe, logs, metrics and attempts.
Standard library only.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

from training.contract.artifact import ARTIFACT_FILE, SCRATCH_FOLDER
from training.contract.files.writing import is_abandoned
from training.contract.running.attempt import ATTEMPTS_FOLDER
from training.contract.running.lease import GUARD_FILE, LEASE_FILE
from training.contract.running.phase import RANKS_FOLDER as RANKS_FOLDER
from training.contract.stored_state import forget_state

# Watchers of the job also write and rename files in the folder at any moment. Younger temporary files may be theirs.
WRITING_SECONDS = 60.0


def remove_leftovers(folder: Path, files: Iterable[str]) -> None:
    """Before a commit of `files`, remove temporary files, and every other file in the subfolders that `files` use.

    Only the holder of the lease may call this, because only the holder writes an artifact's files.
    """
    named = set(files)
    folders = {name.split("/")[0] for name in named if "/" in name}
    newest = max((_changed(path, 0.0) for path in folder.iterdir()), default=0.0)  # the file system's own clock
    for path in list(folder.iterdir()):
        if path.name in folders:
            _keep_only(path, folder, named)
        elif _is_temporary(path) and (not _is_watched(path) or newest - _changed(path, newest) > WRITING_SECONDS):
            _remove(path)


def remove_state(folder: Path) -> None:
    """Remove what only an unfinished artifact needs, if the artifact in `folder` is committed.

    It can be called again if a process was killed between its commit and this removal. Temporary files are removed too,
    whatever their age, if their writers have ended: watchers, and processes of an attempt that recorded their end.
    """
    if not (folder / ARTIFACT_FILE).exists():
        return
    forget_state(folder)
    for path in (*folder.glob(".*.tmp"), *(folder / ATTEMPTS_FOLDER).glob(".*.tmp")):
        if is_abandoned(path):
            _remove(path)
    for name in (SCRATCH_FOLDER, RANKS_FOLDER, LEASE_FILE, GUARD_FILE):
        if (folder / name).exists():
            _remove(folder / name)


def _keep_only(place: Path, folder: Path, named: set[str]) -> None:
    for path in _deepest_first(place):
        if path.is_dir() and not path.is_symlink():
            if not any(path.iterdir()):
                path.rmdir()
        elif path.relative_to(folder).as_posix() not in named:
            path.unlink()


def _deepest_first(place: Path) -> Iterator[Path]:
    return iter(sorted(place.rglob("*"), key=lambda path: len(path.parts), reverse=True))


def _is_temporary(path: Path) -> bool:
    return path.name.startswith(".") and path.name.endswith(".tmp")


def _is_watched(path: Path) -> bool:
    """Whether a process that waits for the job may be writing this temporary JSON file.

    Such a file must not be removed. For `artifact.json` the result is False, because only the job writes it.
    """
    name, kind = [*path.name.split("."), "", ""][1:3]
    return kind == "json" and name != ARTIFACT_FILE.partition(".")[0]


def _changed(path: Path, otherwise: float) -> float:
    """Return when the file was changed last, or `otherwise` if a watcher has meanwhile renamed it."""
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return otherwise


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
