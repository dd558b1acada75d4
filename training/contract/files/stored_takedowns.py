"""What takedowns remember of a root in a store: tombstones, lists, reports, and which files they have overwritten.

All of it lies under `takedowns/` in the store, the lists of erased files as `takedowns/erased/ASSET/FINGERPRINT.json`.
A command and a node's job bring what has changed. What a takedown on another machine has overwritten is then removed
from the folder here, and comes in its new version when it is opened.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from training.contract.errors import DataError
from training.contract.files.checksums import sha256_of
from training.contract.files.erased import erased_in, may_be_erased
from training.contract.files.stored_root import (
    ERASED,
    RECORD,
    THREADS,
    StoredRoot,
    bring_erased_list,
    bring_record,
    is_copy,
    stored_root,
    write_bytes,
)
from training.contract.files.writing import Unsealed, read_sealed, write_text

log = logging.getLogger(__name__)

FOLDER, FILE, HEAD_FILE = "takedowns", "takedowns.jsonl", "takedowns.head.json"
_NAME = re.compile(rf"(\d{{6}}|[0-9a-f]{{32}})\.[\w.]+|erased/\w+/[0-9a-f]+(\.[\w-]+)?\.json|{FILE}|{HEAD_FILE}")


def key_of(root: StoredRoot, path: Path) -> str:
    """Return the key of a file of the takedowns."""
    return f"{FOLDER}/{root.key(path).removeprefix(f'{FOLDER}/')}"


def path_of(root: StoredRoot, key: str) -> Path | None:
    """Return the path here of an object of the takedowns; None for any other: whoever has rights there chooses keys."""
    name = key.removeprefix(f"{FOLDER}/")
    if not key.startswith(f"{FOLDER}/") or not _NAME.fullmatch(name):
        return None
    return root.folder / name if name in (FILE, HEAD_FILE) else root.folder / FOLDER / name


def remember(path: Path, text: str) -> None:
    """Write a file of the takedowns, into the root's store first."""
    if (root := stored_root(path.parent)) is not None:
        root.objects.put(key_of(root, path), text.encode("utf-8"))
    write_text(path, text)


def bring_takedowns(root_folder: Path) -> None:
    """Bring what takedowns on other machines wrote, and remove here what they have overwritten.

    Raise DataError if the tombstones here are not those with which the store's begin.
    """
    if (root := stored_root(root_folder)) is None:
        return
    there = {path: (key, said) for key, said in root.objects.listed(FOLDER).items() if (path := path_of(root, key))}
    file, head = root.folder / FILE, root.folder / HEAD_FILE
    changed = [path for path, (_, said) in there.items() if not is_copy(path, said)]
    if not changed and (file in there or not file.exists()):
        return
    with ThreadPoolExecutor(THREADS) as pool:
        data = dict(zip(changed, pool.map(root.objects.get, [there[path][0] for path in changed]), strict=True))
    if file in changed or file not in there:
        _check_begins_as_here(root, file, data.get(file) or b"")
    for path in sorted(changed, key=lambda path: path in (file, head)):
        if (new := data[path]) is not None:
            write_bytes(path, new)
    for path in changed:
        if root.folder / ERASED in path.parents:
            _forget_erased(root.folder / path.relative_to(root.folder / ERASED).with_suffix(""))
    if file in changed:
        _renew_records(root)


def _check_begins_as_here(root: StoredRoot, file: Path, there: bytes) -> None:
    if file.exists() and not there.startswith(file.read_bytes()):
        raise DataError(
            f"{file}: {root.objects.address} has other tombstones; they are never changed by hand. Put back what the"
            f" store had as {FOLDER}/{FILE}, or remove the folder {root.folder} if the root was begun anew"
        )


def _forget_erased(folder: Path) -> None:
    """Take over the list of an artifact's erased files, and remove those that are here as they were before."""
    if not (folder / RECORD).exists():
        return  # its list comes with its record
    bring_erased_list(folder)
    try:
        states = erased_in(folder)
        beside = [one["path"] for one in read_sealed(folder / RECORD).get("beside", ())]
    except (OSError, Unsealed, LookupError, TypeError) as error:
        log.warning("%s: what takedowns erased in it is not known: %s", folder, error)
        return
    for name in (*states, *beside):  # beside lies what packs the same texts and may be absent
        path = folder / name
        if ".." in path.parts or not path.is_relative_to(folder) or not (may_be_erased(name) and path.is_file()):
            continue
        if name in beside or sha256_of(path) != states[name][-1].sha256:
            path.unlink()


def _renew_records(root: StoredRoot) -> None:
    """Bring the records in which a takedown has masked words."""
    there = root.objects.listed("records")
    named = ((root.folder / key.removeprefix("records/").removesuffix(".json"), said) for key, said in there.items())
    known = [folder for folder, said in named if _is_other(folder / RECORD, said)]
    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(bring_record, known))


def _is_other(record: Path, said: Mapping[str, Any]) -> bool:
    return ".." not in record.parts and os.path.lexists(record) and not is_copy(record, said)
