"""Check the files of an input artifact when they are opened, so that a process reads and checks only what it uses.

The job holds the digest of an input's manifest, and the manifest holds each file's checksum. A process checks a file
once, and again if the file has changed since. Standard library only.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path, PurePath
from typing import Any

from training.contract.files.checksums import Identity, digest_of_files, identity_of, sha256_of
from training.contract.files.erased import states_of
from training.contract.files.stored_root import bring
from training.contract.files.writing import Unsealed, is_being_written, read_sealed

ARTIFACT_FILE = "artifact.json"
FOREIGN = "is not in the manifest; somebody put it there"
# What lies beside the files of an artifact, at the top of its folder: regular files, by their names, and folders.
OWN_FILES = re.compile(
    r"artifact(\.copy)?\.json(\.damaged-\d+)?|(erased|job|recipe|handle|process|exit|cancelled)\.json"
    r"|(slurm|kubernetes|backend)\.json|log(-\d+)?\.txt"
    r"|(bill|messages|metrics)\.jsonl|(array-)?job(-[\w-]+)?\.sh|submit\.lock|lease\.json(\.guard)?|\..*\.tmp"
    r"|report\.html|shown_records\.json"
)
OWN_FOLDERS = ("attempts", "watchers")
# State and notes of jobs, which check what they read of it: nothing in these is looked at.
STATE_FOLDERS = ("first-read", "hangs", "ranks", "reuse", "scratch", "stopped")

_sound: dict[str, tuple[str, Identity]] = {}  # by path: the sha256 that this process found when it read the file
_noting: list[set[tuple[str, str]]] = []  # the set that gets (folder, name) of what is opened; empty: nobody asks


class Refused(ValueError):
    """A file of an input artifact is missing or differs from its checksum."""


def damage_of(path: Path, entry: Mapping[str, Any], *, reads: bool = True) -> str:
    """Return one line if a file is missing or differs from its manifest entry; empty if it is sound.

    With `reads=False` only the size is compared. A file that its root's store has is brought, and sound then.
    """
    damage = _damage_here(path, entry, reads=reads)
    if damage and (_is_regular(path) if os.path.lexists(path) else True) and bring(path, entry["sha256"]):
        _sound[str(path)] = entry["sha256"], identity_of(path)
        return ""
    return damage


def _damage_here(path: Path, entry: Mapping[str, Any], *, reads: bool) -> str:
    if not os.path.lexists(path):
        return f"{path}: missing"
    if not _is_regular(path):
        return f"{path}: is no regular file"
    if path.stat().st_size != entry["bytes"]:
        return f"{path}: {path.stat().st_size} bytes, the manifest says {entry['bytes']}"
    if not reads:
        return ""
    identity = identity_of(path)  # before reading, so that a later change is noticed
    if sha256_of(path) != entry["sha256"]:
        return f"{path}: content differs from its checksum {entry['sha256'][:12]}…"
    _sound[str(path)] = entry["sha256"], identity
    return ""


def unlisted(folder: Path, listed: Collection[str], inside: str = os.curdir) -> list[str]:
    """Return the names of what lies in an artifact's folder and is neither a listed file nor a folder above one.

    Whoever reads the whole folder, as libraries read that of a model, would take it for a part of the artifact. The
    commit leaves no such thing: no other file, hidden or not, no link, no pipe, no socket and no other folder. Files
    that a living process is writing, and at the top what jobs and watchers keep there, are left out. `listed` is the
    manifest; `inside` names the file or folder that is searched.
    """
    above = {str(parent) for name in listed for parent in PurePath(name).parents} | {*OWN_FOLDERS, os.curdir}
    found, waiting = [], [inside]
    while waiting:
        name = waiting.pop()
        path = folder / name
        if path.is_symlink() or not path.is_dir():
            is_own = name in listed or OWN_FILES.fullmatch(name) or os.path.dirname(name) in OWN_FOLDERS
            if os.path.lexists(path) and not (is_own and _is_regular(path)) and not is_being_written(path):
                found.append(name)
        elif name in above:
            waiting += [os.path.normpath(os.path.join(name, one)) for one in os.listdir(path)]
        elif name not in STATE_FOLDERS:
            found.append(name)
    return sorted(found)


def _is_regular(path: Path) -> bool:
    return stat.S_ISREG(path.lstat().st_mode)


def note_sound(path: Path, sha256: str) -> None:
    """Remember that the file at `path` has this checksum, because another process of the same job has verified it."""
    _sound[str(path)] = sha256, identity_of(path)


def is_known(path: Path, sha256: str) -> bool:
    """Whether the file at `path` was found to have this checksum before, and has not changed since."""
    known, identity = _sound.get(str(path), ("", (0, 0, 0)))
    return known == sha256 and path.exists() and identity == identity_of(path)


@contextmanager
def noting_opened() -> Iterator[set[tuple[str, str]]]:
    """Context manager that collects the files and folders of artifacts that are opened in its block.

    Each is a pair: the artifact's folder, and the name of the file or folder in it.
    """
    opened = set[tuple[str, str]]()
    _noting.append(opened)
    try:
        yield opened
    finally:
        _noting.remove(opened)


def check(folder: Path, digest: str, name: str, judged: str | None = None) -> None:
    """Verify the file `name`, or all files in the folder `name`, of the artifact in `folder` with this digest.

    A file that was verified and has not changed since is not read again. Files that jobs keep beside it (`OWN_FILES`)
    are accepted, because `job.json` and `artifact.json` have checksums of their own. Raise Refused if a file is
    damaged, if the folder holds another file than the manifest lists, or if its list of erased files is not the one
    that was `judged` (`erased_in`).
    """
    for opened in _noting:
        opened.add((str(folder), name))
    for entry in _entries(folder, digest, name):
        if damage := unsound(folder, entry, trusts=True, judged=judged):
            raise Refused(damage)
    listed, beside = _manifest(str(folder), digest)
    links = [str(one) for one in PurePath(name).parents if (folder / one).is_symlink() and one.name]
    if foreign := links or unlisted(folder, {*listed, *beside}, name):
        raise Refused(f"{folder / foreign[0]}: {FOREIGN}")


def unsound(
    folder: Path, entry: Mapping[str, Any], *, reads: bool = True, trusts: bool = False, judged: str | None = None
) -> str:
    """Return one line if a file of an artifact is neither what was written nor what a takedown made of it.

    The result is empty for a sound file. With `trusts`, a file that this process has verified and that has not changed
    since is not read again.
    """
    path, damage = folder / entry["path"], ""
    try:
        states = states_of(folder, entry, judged)
    except Unsealed as error:
        return f"{path}: {error}"
    for state in reversed(states):  # damage is told of the manifest's own entry
        if (trusts and is_known(path, state["sha256"])) or not (damage := damage_of(path, state, reads=reads)):
            return ""
    return damage


def _entries(folder: Path, digest: str, name: str) -> Iterator[Mapping[str, Any]]:
    listed = manifest_of(str(folder), digest)
    if name in listed:
        yield listed[name]
    else:
        inside = f"{name}/" if name != os.curdir else ""
        yield from (entry for path, entry in listed.items() if path.startswith(inside))


def manifest_of(folder: str, digest: str) -> Mapping[str, Mapping[str, Any]]:
    """Return the manifest of the artifact in `folder`, by path. Raise Refused unless it is the one with this digest."""
    return _manifest(folder, digest)[0]


@lru_cache(maxsize=256)
def _manifest(folder: str, digest: str) -> tuple[Mapping[str, Mapping[str, Any]], frozenset[str]]:
    """Return the manifest, and the names of the files that the record lists beside it."""
    try:
        record = read_sealed(Path(folder, ARTIFACT_FILE))
        files, beside = record["files"], frozenset(entry["path"] for entry in record.get("beside", ()))
        found = digest_of_files(files)
    except (OSError, Unsealed, KeyError, TypeError) as error:
        raise Refused(f"{folder}: {ARTIFACT_FILE}: {error}") from None
    if found != digest:
        raise Refused(f"{folder}: the files' checksums give digest {found[:12]}, not the {digest[:12]} of the job")
    return {entry["path"]: entry for entry in files}, beside
