"""A takedown of a root in an object store: all of it is brought here, erased here, and then put in the store's place.

While the command is at work, `takedown-at-work.json` in the store keeps other takedowns out. What it erased here goes
to the store as new objects, and objects that jobs wrote and that are no files of finished artifacts are removed. Then
every object is read: it has the bytes of a file that was searched here, or is searched itself. A killed command is
given again and does the same, on this machine or another one.
"""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from assets.answers.gc.needed import NAME
from assets.answers.takedown.erasing import Say, Scanned, read_as
from assets.answers.takedown.takedown import check_nobody_writes
from assets.state.chain import CHAIN
from assets.state.removal_lock import nobody_looks
from resources.profile import Profile
from training.contract import artifact
from training.contract.artifact import ARTIFACT_FILE, Artifact
from training.contract.files.checksums import sha256_of
from training.contract.files.erased import ERASED_FILE
from training.contract.files.objects import Objects
from training.contract.files.stored_root import (
    ERASED,
    RECORDS,
    REFERENCES,
    THREADS,
    StoredRoot,
    bring,
    bring_record,
    is_copy,
    listed,
    states_now,
    stored_root,
)
from training.contract.files.stored_takedowns import FILE, FOLDER, HEAD_FILE, bring_takedowns, key_of, path_of, remember
from training.contract.files.writing import has_ended, sealed_text, this_process, unsealed
from training.contract.job import DataError
from training.data.words.ngrams import Hashes

AT_WORK = "takedown-at-work.json"

There = Mapping[str, Mapping[str, Any]]  # objects by key, with what a list says of them


@contextmanager
def whole(root: Path, *, alone: bool, say: Say) -> Iterator[None]:
    """Context manager in which all of a root is in its folder here; with `alone`, no other machine withdraws.

    Nothing is done for a root that is a folder. Raise DataError, before anything is changed, if another machine's
    takedown is at work or if the disk has no room.
    """
    if (stored := stored_root(root)) is None:
        yield
        return
    if alone:
        _begin(stored.objects)
    try:
        bring_whole(root, say)
        yield
    finally:
        if alone:
            stored.objects.remove([AT_WORK])


def _begin(objects: Objects) -> None:
    time = datetime.now(UTC).isoformat(timespec="seconds")
    mine = {"process": this_process(), "host": socket.gethostname(), "time": time}
    data = sealed_text(mine).encode("utf-8")
    if objects.create(AT_WORK, data) or (there := objects.get(AT_WORK)) is None:
        return
    said = unsealed(there, AT_WORK)
    if not has_ended(str(said["process"])):
        raise DataError(
            f"{objects.address}: a `pedigree takedown` is at work on {said['host']} since {said['time']}; nothing was"
            f" withdrawn. Wait for its end; if it was killed there, remove the object {AT_WORK}"
        )
    objects.put(AT_WORK, data)


def bring_whole(root: Path, say: Say) -> None:
    """Bring everything that a root's store has and its folder here lacks. Raise DataError if the disk has no room."""
    if (stored := stored_root(root)) is None:
        return
    bring_takedowns(root)
    there = stored.objects.listed("")
    with ThreadPoolExecutor(THREADS) as pool, listed(root):
        list(pool.map(bring_record, [one for one in _folders(stored, there) if not (one / ARTIFACT_FILE).exists()]))
    lacking = [
        (path, entry["sha256"], said["size"])
        for folder in _folders(stored, there)
        for path, entry in _files(folder)
        if not os.path.lexists(path) and (said := there.get(stored.key_of_file(path, entry["sha256"])))
    ]
    size, free = sum(one[2] for one in lacking), shutil.disk_usage(root).free
    if size > free:
        raise DataError(
            f"takedown: all of {stored.objects.address} is searched on this machine, and {size / 1e6:,.1f} MB of it do"
            f" not fit into {root}, where {free / 1e6:,.1f} MB are free; nothing was withdrawn. Free space, or let"
            " PEDIGREE_CACHE name a larger disk"
        )
    if lacking:
        say(f"bringing {len(lacking):,} files, {size / 1e6:,.1f} MB, from {stored.objects.address}")
    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(bring, [one[0] for one in lacking], [one[1] for one in lacking]))


def _folders(stored: StoredRoot, there: There) -> list[Path]:
    """Return the folders of the artifacts that have a record in the store, those that were set aside included."""
    keys = (key.removeprefix(f"{RECORDS}/").removesuffix(".json") for key in there if key.startswith(f"{RECORDS}/"))
    found = (key.split("/") for key in keys if key.count("/") == 1)
    return [stored.folder / asset / name for asset, name in found if asset in CHAIN and NAME.fullmatch(name)]


def _made(folder: Path) -> Artifact | None:
    try:
        return artifact.find(folder)
    except artifact.Damaged:
        return None


def _files(folder: Path) -> Iterator[tuple[Path, Mapping[str, Any]]]:
    """Yield path and entry of each file of an artifact, as the last takedown left it; nothing if it is damaged."""
    if (made := _made(folder)) is None:
        return
    beside = made.record.get("beside", ())  # it goes where pages of the artifact were erased
    for entry in [*made.record["files"], *(beside if not (folder / ERASED_FILE).exists() else ())]:
        path = folder / entry["path"]
        if ".." not in path.parts and path.is_relative_to(folder):
            yield path, states_now(folder, entry)[0]


# Putting


def settle(root: Path, profile: Profile, say: Say) -> None:
    """Put what was erased here in the store's place, and remove there what belongs to no finished artifact.

    Raise DataError if somebody on this machine is making an artifact, whose objects would be removed.
    """
    if (stored := stored_root(root)) is None:
        return
    store_memory(root)  # with the words that are looked for: another machine may have to go on
    with nobody_looks(root):
        check_nobody_writes(root, profile)
        there = stored.objects.listed("")
        wanted = set[str]().union(*(_put(stored, folder, there) for folder in _folders(stored, there)))
        gone = [key for key in there if _is_of_artifact(key) and key not in wanted]
        stored.objects.remove(gone)
    say(f"{len(gone):,} objects were removed from {stored.objects.address}")


def _put(stored: StoredRoot, folder: Path, there: There) -> set[str]:
    """Write what is new in an artifact into the store, its record last; return the keys of its files."""
    if _made(folder) is None:  # nobody knows what its files are
        above = f"{folder.parent.name}/{folder.name.partition('.')[0]}/"
        return {key for key in there if key.startswith(above)}
    own = {stored.key_of_file(path, one["sha256"]): (path, one["sha256"]) for path, one in _files(folder)}
    for key, (path, sha256) in own.items():
        if key not in there and path.is_file() and sha256_of(path) == sha256:
            stored.objects.put_file(key, path)
    if (erased := folder / ERASED_FILE).exists():
        mirror, text = stored.folder / ERASED / f"{stored.key(folder)}.json", erased.read_text("utf-8")
        if not (mirror.exists() and mirror.read_text("utf-8") == text):
            remember(mirror, text)
    record, key = folder / ARTIFACT_FILE, stored.key_of_record(folder)
    if not is_copy(record, there[key]):
        stored.objects.put(key, record.read_bytes())
    return own.keys() | {key}


def _is_of_artifact(key: str) -> bool:
    """Whether an object is one of those that jobs write for an artifact, but not its record."""
    parts = key.split("/")
    return len(parts) > 2 and parts[0] in CHAIN


def store_memory(root: Path) -> None:
    """Write into the store what takedowns remember here, and remove there what they have forgotten."""
    if (stored := stored_root(root)) is None:
        return
    there = stored.objects.listed(FOLDER)
    own = [root / FILE, root / HEAD_FILE, *(root / FOLDER).glob("*.*")]
    keys = {key_of(stored, path): path for path in own if path.is_file() and path_of(stored, key_of(stored, path))}
    for key, path in keys.items():
        if not is_copy(path, there.get(key, {})):
            stored.objects.put(key, path.read_bytes())
    stored.objects.remove([key for key in there if ".grams." in key and key not in keys])


# Reading


@dataclass(kw_only=True, slots=True)
class Read:
    """How many objects of a store were read, and their bytes."""

    address: str
    objects: int = 0
    bytes: int = 0


def scan_store(root: Path, wanted: Hashes, found: Scanned) -> Read | None:
    """Read every object of a root's store, and add to `found` where one of the wanted runs stands; None for a folder.

    An object with the bytes of a file here was searched as that file; any other is searched under its own name.
    """
    if (stored := stored_root(root)) is None:
        return None
    there, read = stored.objects.listed(""), Read(address=stored.objects.address)
    for folder in _folders(stored, there):
        if _made(folder) is None:
            name = f"{stored.objects.address}/{stored.key_of_record(folder)}"
            why = "is damaged, so nobody knows what its files are; remove it there, and give the command again"
            found.not_read.append({"path": name, "why": why})
    own = (one for folder in _folders(stored, there) for one in _files(folder))
    files = {stored.key_of_file(path, one["sha256"]): (path, one["sha256"]) for path, one in own}
    keys = [key for key in there if key != AT_WORK]
    with tempfile.TemporaryDirectory(prefix="takedown-") as place, ThreadPoolExecutor(THREADS) as pool:
        for begin in range(0, len(keys), THREADS):
            some = keys[begin : begin + THREADS]
            paths = [Path(place, str(number), Path(key).name) for number, key in enumerate(some)]
            for path in paths:
                path.parent.mkdir(exist_ok=True)
            for key, path, is_there in zip(some, paths, pool.map(stored.objects.get_file, some, paths), strict=True):
                if is_there:
                    read.objects += 1
                    read.bytes += path.stat().st_size
                    _read(stored, key, path, files.get(key), wanted, found)
                    path.unlink()
    return read


def _read(
    stored: StoredRoot, key: str, path: Path, here: tuple[Path, str] | None, wanted: Hashes, found: Scanned
) -> None:
    """Search a stored object, downloaded to `path`, for withdrawn text, or compare it with its file `here`."""
    name = f"{stored.objects.address}/{key}"
    if here is None:
        if not _is_here(stored, key, path):
            read_as(name, path, wanted, found)
    elif sha256_of(path) != here[1]:
        why = "is not what was written; remove it, and give the command again"
        found.not_read.append({"path": name, "why": why})
    elif not here[0].is_file() or sha256_of(here[0]) != here[1]:
        found.not_read.append({"path": name, "why": f"is {here[0]}, which is damaged here; remove it here"})


def _is_here(stored: StoredRoot, key: str, path: Path) -> bool:
    """Whether an object is a copy of a record, a reference or a file of the takedowns in the folder here."""
    kind = key.partition("/")[0]
    if kind == RECORDS:
        here = stored.folder / key.removeprefix(f"{RECORDS}/").removesuffix(".json") / ARTIFACT_FILE
    elif kind in (FOLDER, REFERENCES):
        here = path_of(stored, key) or stored.folder / key
    else:
        return False
    return here.is_file() and here.read_bytes() == path.read_bytes()


def beyond(root: Path) -> list[str]:
    """Return a sentence for each place of a root's store that is not among its objects."""
    if (stored := stored_root(root)) is None:
        return []
    objects = stored.objects
    number = objects.earlier_versions()
    many = f"{number:,}" if number is not None else "The"
    kept = f"{many} earlier versions of objects that the bucket keeps under {objects.address}"
    kept += "" if number is not None else ", if it keeps some, which it did not say"
    return [
        *([kept] if number != 0 else ()),
        f"Uploads in parts to {objects.address} that never ended",
        f"Folders of other machines that work on {objects.address}, and what their jobs write there afterwards",
    ]
