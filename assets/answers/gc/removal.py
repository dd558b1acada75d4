"""Remove what `pedigree gc` has listed, so that a run beside it, or a kill at any moment, leaves nothing half removed.

An artifact goes in four steps. One rename takes it into the trash of its asset, while no run compares. Then everything
that may need it is looked at again, and it is put back if something does. If not, a second rename marks it as gone, and
only then are its files deleted. Whoever is killed in between leaves a folder in the trash; the next `gc` takes the
steps that are left.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

from assets.answers.gc.needed import Folder, in_trash
from assets.answers.gc.unneeded import (
    RUN,
    STATE,
    TEMPORARY,
    Look,
    Removable,
    as_json,
    is_forgotten,
    known_runs,
    unreached,
)
from assets.state.removal_lock import TRASH, nobody_looks, only_one
from training.contract.running.leftovers import remove_state

GONE = ".gone"  # ends the name of a folder in the trash that nobody needs, and whose files may be missing
BATCH = 100  # folders that are renamed before one look at what is needed


def collect(look: Look, *, removes: bool) -> dict[str, Any]:
    """Return what nothing needs; with `removes`, remove it.

    Raise DataError if that is unknown because of a registry or a recipe, or if another process is collecting.
    """
    if not removes:
        return as_json(look.root, *unreached(look))
    with only_one(look.root, "gc.one.lock", "gc"):
        put_back = list(_emptied(look))
        entries, found, kept = unreached(look)
        folders = {one.path: one for one in look.folders.all()}
        waiting = [folders[entry.path] for entry in entries if entry.path in folders]
        for batch in _batches(waiting):
            put_back += _removed(look, batch)
        _remove_leftovers(look, [entry for entry in entries if entry.path not in folders])
        for place in look.root.glob(f"*/{TRASH}"):
            with suppress(OSError):
                place.rmdir()  # unless something had to stay in it
    told = as_json(look.root, entries, found, kept)
    back = {str(path.relative_to(look.root)) for path in put_back}
    size = sum(entry["bytes"] for entry in told["entries"] if entry["path"] not in back)
    return {**told, "removed": True, "bytes": size, "put_back": sorted(back)}


def _batches(folders: Iterable[Folder]) -> Iterator[list[Folder]]:
    rest = iter(folders)
    while batch := list(islice(rest, BATCH)):
        yield batch


def _removed(look: Look, batch: Sequence[Folder]) -> list[Path]:
    """Remove those folders of a batch that are not needed; return the paths of the folders that were put back."""
    with nobody_looks(look.root):
        still = look.needed().paths
        for folder in batch:
            if folder.path not in still:
                _into_trash(folder)
    return list(_emptied(look))


def _into_trash(folder: Folder) -> None:
    place = folder.path.parent / TRASH
    place.mkdir(exist_ok=True)
    with suppress(FileNotFoundError):
        folder.path.rename(place / folder.path.name)


def _emptied(look: Look) -> Iterator[Path]:
    """Put back the folders in the trash that are needed, delete the rest, and yield the paths that were put back."""
    needed = look.needed().paths  # the second look: after the rename
    for folder in list(in_trash(look.folders.all())):
        if folder.path in needed:
            with nobody_looks(look.root):
                yield _put_back(folder)
        else:
            with suppress(FileNotFoundError):
                folder.path.rename(folder.path.with_name(folder.path.name + GONE))
    for path in look.root.glob(f"*/{TRASH}/*{GONE}"):
        shutil.rmtree(path)


def _put_back(folder: Folder) -> Path:
    """Rename a folder from the trash to its place, or beside an artifact that has been made there meanwhile."""
    place = folder.path.parent.parent / folder.path.name
    try:
        folder.path.rename(place)
    except OSError:  # a run has begun to make it again
        place = place.with_name(f"{folder.fingerprint}.replaced-{time.time_ns() // 1_000_000}")
        folder.path.rename(place)
    return place


def _remove_leftovers(look: Look, entries: Iterable[Removable]) -> None:
    now = time.time()
    for entry in entries:
        if entry.kind == STATE:
            with nobody_looks(look.root):
                if not look.is_at_work(entry.path.parent):
                    remove_state(entry.path.parent)
        elif entry.kind == TEMPORARY and is_forgotten(entry.path, now):
            entry.path.unlink(missing_ok=True)
        elif entry.kind == RUN and _is_unlisted(look.root, entry.path):
            if entry.path.is_dir():
                shutil.rmtree(entry.path)
            else:
                entry.path.unlink(missing_ok=True)


def _is_unlisted(root: Path, path: Path) -> bool:
    known = known_runs(root)
    return known is not None and path.name[:36] not in known
