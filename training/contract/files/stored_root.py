"""Roots in an object store: each process works in a folder of its machine, and the store holds what is finished.

The file `store.json` in such a folder names the store. A finished rank, a committed artifact and a reference are
written to the store; a file that is needed and not here is brought from it. Keys in the store:

    refs/ASSET/PARTITION.json                   references
    records/ASSET/FINGERPRINT.json              the record of an artifact, written last, and only if there is none
    ASSET/FINGERPRINT/files/SHA256              files by their checksum, so no writer overwrites another one's
    ASSET/FINGERPRINT/ranks/PHASE/00000.json    completion marks of ranks, and claims on them, until the commit
    ASSET/FINGERPRINT/written/…                 what a job writes while it runs (`written_lines`)
    takedowns/…                                 what takedowns remember (`stored_takedowns`)

Nothing is believed because the store says it: records and marks have checksums of their own, and a file is read against
the checksum in its record.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
from base64 import b64decode
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from training.contract.errors import DataError
from training.contract.files.checksums import sha256_of
from training.contract.files.objects import Objects, StoreDown
from training.contract.files.writing import Unsealed, read_sealed, temporary_for, unsealed, write_sealed, written

log = logging.getLogger(__name__)

STORE_FILE = "store.json"
ERASED_FILE = "erased.json"  # as in training.contract.files.erased
RECORD, RECORDS, REFERENCES, MARKS, WRITTEN = "artifact.json", "records", "refs", "ranks", "written"
ERASED = "takedowns/erased"  # lists of erased files, as in the folder of each artifact: ASSET/FINGERPRINT.json
THREADS = 16
_FINGERPRINT = re.compile("[0-9a-f]+")
_KEY_OF_RECORD = re.compile(rf"{RECORDS}/(?P<asset>\w+)/(?P<fingerprint>[0-9a-f]+)\.json")

_listed: ContextVar[frozenset[str] | None] = ContextVar("listed", default=None)  # keys of records; None: nobody listed


@dataclass(frozen=True, slots=True)
class StoredRoot:
    """The folder of a root on this machine, and the objects of the root in its store."""

    folder: Path
    objects: Objects

    def key(self, path: Path) -> str:
        """Return the key of a file or folder under the root."""
        return path.relative_to(self.folder).as_posix()

    def key_of_record(self, folder: Path) -> str:
        """Return the key of the record of the artifact in a folder."""
        return f"{RECORDS}/{self.key(folder)}.json"

    def key_of_file(self, path: Path, sha256: str) -> str:
        """Return the key of an artifact's file with this checksum, which its folder's new name does not change."""
        asset, name = path.relative_to(self.folder).parts[:2]
        return f"{asset}/{name.partition('.')[0]}/files/{sha256}"


@lru_cache(maxsize=4096)  # else every missing artifact of a plain folder would ask for this file up to `/`
def stored_root(path: Path) -> StoredRoot | None:
    """Return the root that holds `path`, if it is in a store; None for a root that is a folder and nothing else."""
    if (said := _store_named(path / STORE_FILE)) is not None:
        return StoredRoot(path, Objects(said["address"], said["endpoint"]))
    return None if path.parent == path else stored_root(path.parent)


def _store_named(file: Path) -> dict[str, Any] | None:
    """Return what names the store; None if there is no such file, or one of another program or person.

    Raise DataError if it was damaged.
    """
    if not file.is_file() or file.stat().st_uid != file.parent.stat().st_uid:  # as in /tmp, where anybody may write
        return None
    try:
        return read_sealed(file)
    except Unsealed as error:
        if b'"endpoint"' in file.read_bytes():
            raise DataError(
                f"{file.parent}: {error}; remove this file, and open the root by its address again"
            ) from None
        return None


def make_stored_root(folder: Path, objects: Objects) -> None:
    """Make `folder` the place where this machine works on the root in a store."""
    folder.mkdir(parents=True, exist_ok=True)
    write_sealed(folder / STORE_FILE, {"address": objects.address, "endpoint": objects.endpoint})
    stored_root.cache_clear()


# Bringing


def bring(path: Path, sha256: str) -> bool:
    """Bring an artifact's file with this checksum from the store; return False if there is none to be had.

    A file that is here with another content is replaced.
    """
    if (root := stored_root(path.parent)) is None or ".." in path.parts:  # a record from a store may name any path
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = temporary_for(path)
    try:
        if not root.objects.get_file(root.key_of_file(path, sha256), temporary):
            return False
        if sha256_of(temporary) != sha256:
            log.warning("%s: what %s holds of it is not what was written", path, root.objects.address)
            return False
        if os.path.lexists(path):
            log.warning("%s was not what was written; it is replaced from %s", path, root.objects.address)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    return True


def is_here(path: Path, sha256: str) -> bool:
    """Whether an artifact's file with this checksum is here; it is brought if its root's store has it.

    Of a file that takedowns have overwritten, the store has what the last one made of it.
    """
    if path.exists():
        return True
    if (root := stored_root(path.parent)) is None:
        return False
    folder = root.folder.joinpath(*path.relative_to(root.folder).parts[:2])
    known = states_now(folder, {"path": path.relative_to(folder).as_posix(), "sha256": sha256})
    return any(bring(path, one["sha256"]) for one in known)


def states_now(folder: Path, entry: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the entries to which an artifact's file may answer, what the last takedown made of it first.

    If the list of erased files is damaged, which others tell, it is the given entry alone.
    """
    from training.contract.files.erased import states_of

    try:
        return states_of(folder, entry)[::-1]
    except Unsealed:
        return [dict(entry)]


def bring_record(folder: Path) -> bool:
    """Bring the record of an artifact from the store, and write its copy; return False if it has none."""
    if (root := stored_root(folder.parent)) is None:
        return False
    key, listed = root.key_of_record(folder), _listed.get()
    data = root.objects.get(key) if listed is None or key in listed else None
    if data is None:
        return False
    if os.path.lexists(folder / RECORD):
        log.warning("%s was not what was written; it is replaced from %s", folder / RECORD, root.objects.address)
    bring_erased_list(folder)
    for name in ("artifact.copy.json", RECORD):
        write_bytes(folder / name, data)
    return True


def bring_erased_list(folder: Path) -> None:
    """Write the store's list of what takedowns erased in an artifact beside its record, if there is one."""
    root = stored_root(folder)
    if root is not None and (there := root.folder / ERASED / f"{root.key(folder)}.json").exists():
        write_bytes(folder / ERASED_FILE, there.read_bytes())


def bring_records(root_folder: Path) -> None:
    """Bring all records from a root's store, for what looks at the folder to see which artifacts there are."""
    if (root := stored_root(root_folder)) is None:
        return
    named = [match for key in root.objects.listed(RECORDS) if (match := _KEY_OF_RECORD.fullmatch(key))]
    folders = [root.folder / match["asset"] / match["fingerprint"] for match in named]
    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(bring_record, [folder for folder in folders if not (folder / RECORD).exists()]))


def bring_marks(folder: Path) -> None:
    """Bring the completion marks of the ranks that other machines finished; their files come when they are opened."""
    if (root := stored_root(folder)) is not None:
        _bring_changed(root, root.key(folder / MARKS))
        _sizes.cache_clear()


def is_only_stored(path: Path, entry: Mapping[str, Any]) -> bool:
    """Whether an artifact's file is not here, and its root's store has one of this checksum and size."""
    if path.exists() or (root := stored_root(path.parent)) is None:
        return False
    key = root.key_of_file(path, entry["sha256"])
    return _sizes(root, key.rpartition("/")[0]).get(key) == entry["bytes"]


def size_of(path: Path, entry: Mapping[str, Any] | None) -> int:
    """Return the bytes of an artifact's file; if only the root's store has it, those of its manifest entry."""
    return entry["bytes"] if entry is not None and is_only_stored(path, entry) else path.stat().st_size


def those_here(folder: Path, names: Iterable[str], known: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return the files of a folder except those that, by their entries in `known`, only the root's store has."""
    return [name for name in names if name not in known or not is_only_stored(folder / name, known[name])]


@lru_cache(maxsize=8)
def _sizes(root: StoredRoot, prefix: str) -> dict[str, int]:
    return {key: said["size"] for key, said in root.objects.listed(prefix).items()}


@contextmanager
def listed(root_folder: Path) -> Iterator[None]:
    """Context manager in which a root is looked at as its store is now.

    References that were written elsewhere are brought, and the records to which they point. Which other records there
    are is listed once, so that nothing is asked for each record that is missing.
    """
    if (root := stored_root(root_folder)) is None:
        yield
        return
    token = _listed.set(frozenset(root.objects.listed(RECORDS)))
    try:
        changed = _bring_changed(root, REFERENCES)
        folders = {root.folder / Path(key).parts[1] / _fingerprint_in(root.folder / key) for key in changed}
        with ThreadPoolExecutor(THREADS) as pool:
            list(pool.map(bring_record, [folder for folder in folders if not (folder / RECORD).exists()]))
        yield
    finally:
        _listed.reset(token)


def _fingerprint_in(reference: Path) -> str:
    try:
        said = str(json.loads(reference.read_text("utf-8"))["fingerprint"])
    except (ValueError, KeyError, TypeError):
        return "damaged"
    return said if _FINGERPRINT.fullmatch(said) else "damaged"


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file whole or not at all."""
    with written(path) as stream:
        stream.write(data)


def _is_small(key: str) -> bool:
    """Whether a key can be that of a reference or a mark: anybody with rights on the store chooses keys."""
    return key.endswith(".json") and not {"", ".", ".."} & {*key.split("/")}


def is_copy(path: Path, said: Mapping[str, Any]) -> bool:
    """Whether a file here is a copy of an object of which a list says this.

    Stores say the MD5 of an object that was written in one piece; of another one, the object is read again.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return False
    digest = hashlib.md5(data, usedforsecurity=False).digest()
    of_azure = (said.get("content_settings") or {}).get("content_md5") or b""
    of_google = b64decode(said.get("md5Hash", ""))
    of_s3 = str(said.get("ETag", "")).strip('"')
    return digest.hex() == of_s3 or digest in (bytes(of_azure), of_google)


def _bring_changed(root: StoredRoot, prefix: str) -> list[str]:
    """Bring the small objects under `prefix` that differ from what is here; return their keys."""

    def bring_one(key: str) -> None:
        data = root.objects.get(key)
        if data is not None:
            write_bytes(root.folder / key, data)

    there = root.objects.listed(prefix).items()
    changed = [key for key, said in there if _is_small(key) and not is_copy(root.folder / key, said)]
    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(bring_one, changed))
    return changed


# Writing


def store_files(folder: Path, entries: Iterable[Mapping[str, Any]], *, asks: bool = True) -> None:
    """Write an artifact's files, given by their manifest entries, into the store; with `asks`, only what it lacks.

    Files that ranks wrote on other machines are there already, and may be nowhere else.
    """
    if (root := stored_root(folder)) is None:
        return
    now = [states_now(folder, one)[0] for one in entries]
    wanted = {root.key_of_file(folder / one["path"], one["sha256"]): one for one in now}
    known = root.objects.listed(f"{root.key(folder)}/files") if wanted and asks else {}
    new = [(key, folder / one["path"]) for key, one in wanted.items() if known.get(key, {}).get("size") != one["bytes"]]
    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(root.objects.put_file, [key for key, _ in new], [path for _, path in new]))


def store_small(path: Path, data: bytes) -> None:
    """Write a reference or a mark into the store, before it is written here."""
    if (root := stored_root(path.parent)) is not None:
        root.objects.put(root.key(path), data)


def store_record(folder: Path, data: bytes) -> bytes:
    """Write an artifact's record into the store if no other one is there; return the record that is there now.

    If another process committed another result meanwhile, files of ours that are not its own are removed here.
    """
    if (root := stored_root(folder)) is None:
        return data
    key = root.key_of_record(folder)
    if (folder / RECORD).exists():  # it is committed, and what it cost is known now
        root.objects.put(key, data)
        return data
    if root.objects.create(key, data):
        return data
    there = root.objects.get(key)
    ours = unsealed(data, RECORD)
    theirs = unsealed(there, RECORD) if there is not None else ours
    if there is None or theirs["record_digest"] == ours["record_digest"]:
        return there or data
    log.warning("%s: another process has committed this artifact with another result, which is used", folder)
    kept = {(one["path"], one["sha256"]) for one in _files_of(theirs)}
    for one in _files_of(ours):
        if (one["path"], one["sha256"]) not in kept:
            (folder / one["path"]).unlink(missing_ok=True)
    return there


def _files_of(record: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [*record["files"], *record.get("beside", ())]


def forget_mark(mark: Path) -> None:
    """Remove the completion mark of a rank, here and in the store, so that the rank is made again."""
    mark.unlink(missing_ok=True)
    if (root := stored_root(mark.parent)) is not None:
        root.objects.remove([root.key(mark)])


def forget_marks(folder: Path) -> None:
    """Remove the ranks' completion marks of a committed artifact from the store, if it answers."""
    if (root := stored_root(folder)) is not None:
        try:
            root.objects.remove(list(root.objects.listed(root.key(folder / MARKS))))
        except StoreDown as error:
            log.warning("%s: the marks of its ranks stay in the store: %s", folder, error)


def move_stored(folder: Path, new: Path) -> None:
    """Move the record of an artifact whose folder gets another name here; its files stay where they are.

    Marks that another writer left after the commit are removed, so that nothing that is made again begins with them,
    and so is what its job wrote, of which a copy is here.
    """
    if (root := stored_root(folder)) is not None:
        root.objects.move(root.key_of_record(folder), root.key_of_record(new))
        forget_marks(folder)
        root.objects.remove(list(root.objects.listed(f"{root.key(folder)}/{WRITTEN}")))


# Looking


def not_stored(folder: Path, entries: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return one line for each of an artifact's files that the store lacks or holds with another size."""
    if (root := stored_root(folder)) is None:
        return []
    known = root.objects.listed(f"{root.key(folder)}/files")
    now = [states_now(folder, one)[0] for one in entries]
    keys = [(root.key_of_file(folder / one["path"], one["sha256"]), one) for one in now]
    return [
        f"{root.objects.address}/{key}: {one['path']} is missing or of another size there"
        for key, one in keys
        if known.get(key, {}).get("size") != one["bytes"]
    ]
