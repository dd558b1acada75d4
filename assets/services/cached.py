"""This machine's folder of a root in an object store: what the store holds too may go, used longest ago first.

Only files of artifacts go, and only those that a list of the store shows with their key and size. Whoever needs one
brings it again. A command that has looked at a file and not opened it yet may miss it, and fails with its name.
"""

from __future__ import annotations

import logging
import math
import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from assets.state.chain import CHAIN
from assets.state.liveness import at_work
from assets.state.removal_lock import nobody_looks
from resources.compute.base import read_json
from resources.profile import Profile
from training.contract import artifact
from training.contract.files.stored_root import StoredRoot, states_now, stored_root
from training.contract.job import DataError

log = logging.getLogger(__name__)

MAX_VARIABLE = "PEDIGREE_CACHE_MAX_GB"


@dataclass(frozen=True, kw_only=True, slots=True)
class Cached:
    """Files of an artifact that are here and in the store, their bytes, and when one of them was last used."""

    folder: Path
    files: tuple[Path, ...]
    bytes: int
    used: float


def max_bytes() -> float:
    """Return how large the folder of a root in a store may become: infinity without the variable."""
    text = os.environ.get(MAX_VARIABLE) or "inf"
    try:
        if (number := float(text)) > 0:
            return number * 1e9
    except ValueError:
        pass
    raise DataError(f"{MAX_VARIABLE}={text!r}: expected a number of gigabytes above 0")


def cached(root: Path, profile: Profile) -> list[Cached]:
    """Return what a root's store holds for certain and nobody uses here, used longest ago first."""
    if (stored := stored_root(root)) is None:
        return []
    folders = list(_folders(root))
    used = _in_use(folders, profile)
    there = stored.objects.listed("") if folders else {}
    found = (_cached(folder, stored, there) for folder in folders if folder.name not in used)
    return sorted((one for one in found if one.files), key=lambda one: one.used)


def free(root: Path, profile: Profile, entries: Iterable[Cached]) -> list[Cached]:
    """Remove these files while no run compares, unless somebody has begun to use them; return what was removed."""
    with nobody_looks(root):
        used = _in_use(_folders(root), profile)
        gone = [one for one in entries if one.folder.name not in used]
        for path in (path for one in gone for path in one.files):
            path.unlink(missing_ok=True)
    return gone


def make_room(root: Path, profile: Profile) -> None:
    """Remove local copies of what an object store holds until they have at most `max_bytes`, if that is possible.

    What stands in the way, such as a store that does not answer, is logged: nothing that was made depends on it.
    """
    most = max_bytes()
    if most == math.inf or stored_root(root) is None or (over := _bytes_in(root) - most) <= 0:
        return
    chosen, left = [], over
    try:
        for one in cached(root, profile):
            if left > 0:
                chosen.append(one)
                left -= one.bytes
        gone = sum(one.bytes for one in free(root, profile, chosen)) if chosen else 0
    except (DataError, OSError) as error:
        log.warning("%s: %.1f MB above %s, and no room could be made: %s", root, over / 1e6, MAX_VARIABLE, error)
        return
    log.info("%s: %.1f MB above %s; removed %.1f MB that the store has", root, over / 1e6, MAX_VARIABLE, gone / 1e6)


def _folders(root: Path) -> Iterator[Path]:
    for asset in CHAIN:
        yield from (path for path in sorted((root / asset).glob("*")) if path.is_dir())


def _in_use(folders: Iterable[Path], profile: Profile) -> set[str]:
    """Return the fingerprints of what somebody makes, and of what the jobs read that make it."""
    used = set[str]()
    for folder in folders:
        if at_work(folder, profile):
            job = read_json(folder / "job.json") or {}
            used |= {folder.name, *(one["fingerprint"] for kind in ("inputs", "guards") for one in job.get(kind, ()))}
    return used


def _cached(folder: Path, stored: StoredRoot, there: Mapping[str, Mapping[str, Any]]) -> Cached:
    files = []
    entries = _record(folder)["files"] if stored.key_of_record(folder) in there else ()
    for entry in (states_now(folder, one)[0] for one in entries):
        path = folder / entry["path"]
        if _size(path) == there.get(stored.key_of_file(path, entry["sha256"]), {}).get("size"):
            files.append(path)
    times = [max(found.st_atime, found.st_mtime) for found in map(os.stat, files)]
    return Cached(folder=folder, files=tuple(files), bytes=sum(map(_size, files)), used=max(times, default=0.0))


def _record(folder: Path) -> Mapping[str, Any]:
    try:
        made = artifact.find(folder) if (folder / artifact.ARTIFACT_FILE).exists() else None
    except artifact.Damaged:
        made = None
    return made.record if made else {"files": ()}


def _size(path: Path) -> int:
    """Return the size of a regular file; −1 for anything else."""
    try:
        found = path.lstat()
    except OSError:
        return -1
    return found.st_size if stat.S_ISREG(found.st_mode) else -1


def _bytes_in(root: Path) -> int:
    return sum(max(0, _size(Path(place, name))) for place, _, names in os.walk(root) for name in names)
