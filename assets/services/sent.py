"""Send a folder to an object store: a model or corpus there cannot be loaded before its last file has arrived.

While it is sent, `unfinished-export.json` beside the files says of what they are and which checksum each has. An object
is whole or not there, so one of the size that the note's file has is that file.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from training.contract.errors import DataError
from training.contract.files.checksums import sha256_of
from training.contract.files.objects import Objects
from training.contract.files.stored_root import THREADS
from training.contract.files.writing import Unsealed, sealed_text, unsealed

log = logging.getLogger(__name__)

NOTE = "unfinished-export.json"


@contextmanager
def sent_to(objects: Objects, what: str, *, last: str) -> Iterator[Path]:
    """Context manager with an empty folder; after its block, the folder's files are in a store, the file `last` last.

    If sending `what` was ended before, it is gone on with. Raise DataError if anything else is there, or if another
    process began to send meanwhile.
    """
    _sent_before(objects, what)
    with TemporaryDirectory(prefix="pedigree-sent-") as folder:
        yield Path(folder)
        log.info("sending what is in %s to %s", folder, objects.address)
        _send(Path(folder), objects, what, last)


def _sent_before(objects: Objects, what: str) -> Mapping[str, str] | None:
    """Return the checksums that the note of an ended export of `what` says; None if nothing is there.

    Raise DataError if anything else is there: nothing is overwritten.
    """
    there = objects.listed("").keys()
    if not there:
        return None
    note: dict[str, Any]
    try:
        note = unsealed(objects.get(NOTE) or b"", NOTE)
    except Unsealed:
        note = {"of": "something unknown", "files": {}}
    if foreign := sorted(there - {*note["files"], NOTE}):
        raise DataError(f"{objects.address}: holds {foreign[0]}, and nothing is overwritten; choose another prefix")
    if note["of"] != what:
        raise DataError(
            f"{objects.address}: holds a part of an export of {note['of']}; go on with that one, choose another prefix,"
            " or remove what is there"
        )
    return note["files"]


def _send(folder: Path, objects: Objects, what: str, last: str) -> None:
    files = {str(path.relative_to(folder)): path for path in folder.rglob("*") if path.is_file()}
    sums = {name: sha256_of(path) for name, path in sorted(files.items())}
    before = _sent_before(objects, what)
    there = set[str]() if before is None else _kept(objects, before, files, sums, last)
    note = sealed_text({"of": what, "files": sums}).encode("utf-8")
    if before is not None:
        objects.put(NOTE, note)
    elif not objects.create(NOTE, note):
        raise _taken(objects)
    missing = sorted(sums.keys() - there - {last})
    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(objects.put_file, missing, [files[name] for name in missing]))
    if objects.get(NOTE) != note:
        raise _taken(objects)
    objects.put_file(last, files[last])
    objects.remove([NOTE])


def _kept(
    objects: Objects, noted: Mapping[str, str], files: Mapping[str, Path], sums: Mapping[str, str], last: str
) -> set[str]:
    """Remove what an ended export sent and is not sent now, and the last file first; return the names that stay."""
    there = objects.listed("")
    objects.remove([last] if last in there else [])
    same = {name for name, sha256 in sums.items() if name != last and noted.get(name) == sha256}
    stay = {name for name in same & there.keys() if there[name]["size"] == files[name].stat().st_size}
    objects.remove(sorted(there.keys() - stay - {last, NOTE}))
    return stay


def _taken(objects: Objects) -> DataError:
    return DataError(f"{objects.address}: another export into it began meanwhile; wait for it, or give this again")
