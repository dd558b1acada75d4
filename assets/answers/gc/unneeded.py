"""What `pedigree gc` lists: folders of artifacts that nothing needs, and leftovers of killed writers."""

from __future__ import annotations

import os
import re
import sqlite3
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from assets.answers.gc.needed import (
    ARTIFACT,
    IDENTITY,
    UNFINISHED,
    Folder,
    Folders,
    Needed,
    Wanted,
    by_damage,
    by_recipes,
    by_references,
    by_work,
    in_trash,
    needed,
)
from assets.state.liveness import at_work
from assets.state.removal_lock import LOCK_FILE, TRASH
from resources.profile import Profile
from resources.tracking.errors import TrackingError
from resources.tracking.reports import Tracking
from resources.tracking.versions import needed_versions
from training.contract.artifact import SCRATCH_FOLDER, checkpoint_step
from training.contract.files.writing import is_abandoned
from training.contract.job import DataError
from training.contract.running.lease import GUARD_FILE, LEASE_FILE
from training.contract.running.leftovers import RANKS_FOLDER
from training.contract.tables import folded, table_lines

STATE, TEMPORARY, RUN = "state", "temporary", "run"
FORGOTTEN_SECONDS = 86_400.0  # a temporary file of an unknown writer that nobody wrote to for this long
UNITS = (("kB", 1e3), ("MB", 1e6), ("GB", 1e9))
RUN_ID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Removable:
    """Something that can be removed: where it lies, what it is, its bytes, and why nobody needs it."""

    path: Path
    kind: str
    asset: str  # or the store to which it belongs
    bytes: int
    why: str
    fingerprint: str = ""

    def as_json(self, root: Path) -> dict[str, Any]:
        """Return the entry as plain data, with its path below the root."""
        return {
            "path": str(self.path.relative_to(root)),
            "kind": self.kind,
            "asset": self.asset,
            "fingerprint": self.fingerprint,
            "bytes": self.bytes,
            "why": self.why,
        }


class Look:
    """Finds which folders of a root are needed now, and which are not.

    The recipes' needs are found once; references, running work and registered versions are looked up each time.
    """

    def __init__(self, root: Path, profile: Profile) -> None:
        self.root, self._profile = root, profile
        self._tracking = Tracking(profile.tracker, root)
        self.folders = Folders(root)
        self._by_recipes = by_recipes(root, self.folders.all())

    def needed(self) -> Needed:
        """Return the folders that are needed now. Raise DataError if a registry does not answer."""
        folders = self.folders.all()
        now = file_system_time(self.root)
        return needed(
            folders,
            (
                self._by_recipes,
                by_references(self.root, folders),
                by_work(folders, partial(at_work, profile=self._profile, now=now)),
                by_damage(folders),
                self._by_versions(),
            ),
        )

    def is_at_work(self, folder: Path) -> bool:
        """Whether a process is working in a folder."""
        return bool(at_work(folder, self._profile, now=file_system_time(self.root)))

    def _by_versions(self) -> Wanted:
        try:
            versions = needed_versions(self._tracking)
        except TrackingError as error:
            raise DataError(f"nobody knows what the registered versions need: {error}") from None
        return Wanted(names={frozenset(filter(IDENTITY.fullmatch, one.tags.values())) for one in versions})


def file_system_time(root: Path) -> float:
    """Return the present time by the clock of the file system, which is the same for all machines."""
    try:
        os.utime(root / LOCK_FILE)
        return (root / LOCK_FILE).stat().st_mtime
    except OSError:
        return time.time()  # a root without runs, or one that is only read


def unreached(look: Look) -> tuple[list[Removable], Needed, int]:
    """Return what can be removed, by asset and path, which folders are needed, and how many folders there are."""
    folders, found = look.folders.all(), look.needed()
    entries = [_entry(one) for one in folders if one.path not in found.paths]
    entries += _trash(folders, look.root)
    kept = [one for one in folders if one.path in found.paths and one.path.parent.name != TRASH]
    entries += leftovers(look, kept)
    return entries, found, len(kept)


def _entry(folder: Folder) -> Removable:
    whose = f"of {folder.partition}" if folder.partition else "of nobody"
    why = f"{folder.kind} {whose}"
    if folder.path.parent.name == TRASH:
        why = "left in the trash by a gc that was ended"
    elif folder.kind == ARTIFACT:
        why = whose
    elif folder.kind == UNFINISHED:
        step = checkpoint_step(folder.path)
        why = (
            f"unfinished {whose}, and nobody is at work{'' if step is None else f'; has a checkpoint at step {step:,}'}"
        )
    kind = TRASH if folder.path.parent.name == TRASH else folder.kind
    return Removable(
        path=folder.path,
        kind=kind,
        asset=folder.asset,
        bytes=bytes_of(folder.path),
        why=why,
        fingerprint=folder.fingerprint,
    )


def _trash(folders: Sequence[Folder], root: Path) -> Iterator[Removable]:
    """Yield the folders in the trash whose removal was interrupted."""
    whole = {one.path for one in in_trash(folders)}
    for path in sorted(root.glob(f"*/{TRASH}/*")):
        if path not in whole:
            asset = path.parent.parent.name
            why = "being removed when a gc was ended"
            yield Removable(path=path, kind=TRASH, asset=asset, bytes=bytes_of(path), why=why)


def bytes_of(path: Path) -> int:
    """Return the size of a file, or the total size of the files below a folder. Files that vanish meanwhile count 0."""
    if not path.is_dir() or path.is_symlink():
        return _size(path)
    return sum(_size(Path(place, name)) for place, _, names in os.walk(path) for name in names)


def _size(path: Path) -> int:
    try:
        return path.lstat().st_size
    except OSError:
        return 0


# Leftovers of killed writers


def leftovers(look: Look, kept: Iterable[Folder]) -> Iterator[Removable]:
    """Yield temporary files, state of finished jobs, and databases of Dagster's runs, that killed writers left."""
    now = file_system_time(look.root)
    for folder in kept:
        if folder.kind == ARTIFACT and not folder.problem and not look.is_at_work(folder.path):
            yield from _state(folder)
            yield from _temporary(folder.path, folder.asset, now)
    for name in ("refs", "recipes", "tracking"):
        yield from _temporary(look.root / name, name, now)
    yield from _runs(look.root)


def _state(folder: Folder) -> Iterator[Removable]:
    """Yield what only an unfinished artifact needs, in a folder whose artifact is committed."""
    for name in (SCRATCH_FOLDER, RANKS_FOLDER, LEASE_FILE, GUARD_FILE):
        path = folder.path / name
        if path.exists():
            why = "of a job that was ended just after its commit"
            yield Removable(path=path, kind=STATE, asset=folder.asset, bytes=bytes_of(path), why=why)


def _temporary(folder: Path, owner: str, now: float) -> Iterator[Removable]:
    for place, _, names in os.walk(folder):
        for name in names:
            path = Path(place, name)
            if name.startswith(".") and name.endswith(".tmp") and is_forgotten(path, now):
                yield Removable(path=path, kind=TEMPORARY, asset=owner, bytes=_size(path), why="its writer has ended")


def is_forgotten(path: Path, now: float) -> bool:
    """Whether a temporary file's writer has ended, or is unknown and has not written for a day."""
    try:
        return is_abandoned(path) or now - path.stat().st_mtime > FORGOTTEN_SECONDS
    except OSError:
        return False


def _runs(root: Path) -> Iterator[Removable]:
    """Yield the files of Dagster runs that are not in Dagster's list of runs."""
    found = list(_run_files(root))  # before the list is read: a run is listed before it has files
    known = known_runs(root)
    for run, path in found:
        if known is not None and run not in known:
            yield Removable(
                path=path, kind=RUN, asset="dagster", bytes=bytes_of(path), why=f"run {run[:8]} is not listed"
            )


def _run_files(root: Path) -> Iterator[tuple[str, Path]]:
    for place in (root / "dagster" / "history" / "runs", root / "dagster" / "storage"):
        for path in sorted(place.iterdir()) if place.is_dir() else ():
            if named := RUN_ID.match(path.name):
                yield named[0], path


def known_runs(root: Path) -> set[str] | None:
    """Return the ids of all runs in Dagster's own list; None if there is no list that can be read."""
    path = root / "dagster" / "history" / "runs.db"
    if not path.exists():
        return None
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as database:
            return {run for (run,) in database.execute("SELECT run_id FROM runs")}
    except sqlite3.Error:
        return None


# In words


def as_json(root: Path, entries: Sequence[Removable], found: Needed, kept: int | None) -> dict[str, Any]:
    """Return the object that `pedigree gc --json` prints, before anything is removed.

    `kept` is the number of folders that are needed, None if nobody counted them.
    """
    assets: dict[str, dict[str, int]] = {}
    for one in entries:
        of = assets.setdefault(one.asset, {"number": 0, "bytes": 0})
        of["number"] += 1
        of["bytes"] += one.bytes
    return {
        "root": str(root),
        "ok": True,
        "removed": False,
        "bytes": sum(one.bytes for one in entries),
        "kept": kept,
        "assets": assets,
        "entries": [one.as_json(root) for one in entries],
        "notes": list(found.notes),
        "put_back": [],
    }


def in_bytes(number: int) -> str:
    """Return a number of bytes in words, such as 1.2 MB."""
    if number < 1000:
        return f"{number:,} bytes"
    unit, size = next(((name, size) for name, size in UNITS if number < 1000 * size), UNITS[-1])
    return f"{number / size:,.1f} {unit}"


def lines_of(told: dict[str, Any]) -> list[str]:
    """Return the answer as lines of at most 80 columns."""
    lines = []
    for asset, of in sorted(told["assets"].items()):
        own = [one for one in told["entries"] if one["asset"] == asset]
        rows = [(in_bytes(one["bytes"]), f"{short(one['path'])}  {one['why']}") for one in own]
        lines += [f"{asset}: {of['number']:,}, {in_bytes(of['bytes'])}", *table_lines(rows, indent=2, right={0})]
    for note in told["notes"]:
        lines += folded(f"kept: {note}")
    for path in told["put_back"]:
        lines += folded(f"put back: {path}: somebody needs it now")
    number, size = len(told["entries"]) - len(told["put_back"]), in_bytes(told["bytes"])
    kept = (
        ""
        if told["kept"] is None
        else f"; {told['kept']:,} {'folder is' if told['kept'] == 1 else 'folders are'} needed"
    )
    if not told["entries"]:
        return [*lines, f"nothing can be removed{kept}"]
    what = "removed" if told["removed"] else "can be removed by --yes"
    return [*lines, f"{number:,} {what}, {size}{kept}"]


def short(path: str) -> str:
    """Return a path with its fingerprint cut to twelve digits."""
    return re.sub(r"([0-9a-f]{12})[0-9a-f]{20}", r"\1", path)
