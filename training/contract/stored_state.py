"""The state of a training under way, in its root's store: another machine goes on where this one ended.

What lies in the artifact's scratch folder is stored after each checkpoint: the newest checkpoint, and the notes of the
attempts before it. Keys beside those of `stored_root`:

    ASSET/FINGERPRINT/state/SHA256    the files, until the commit
    ASSET/FINGERPRINT/state.json      their names, written last

A folder that several machines share needs none of this; without one, all processes of a training are on one machine.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath
from queue import SimpleQueue
from types import TracebackType
from typing import Any

from training.contract.artifact import SCRATCH_FOLDER, checkpoint_step, manifest
from training.contract.errors import DataError
from training.contract.files.checksums import sha256_of
from training.contract.files.stored_root import THREADS, StoredRoot, stored_root
from training.contract.files.writing import Unsealed, sealed_text, unsealed

log = logging.getLogger(__name__)

STATE, NAMES = "state", "state.json"
_BROUGHT = ".brought"  # in the scratch folder: what is not yet whole


class StateSender:
    """Stores a checkpoint of the job in an artifact's folder from a thread of its own, while training goes on.

    Nothing is done in a root that is a folder. A state that cannot be stored is a line in the log.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self._thread = folder, threading.Thread()
        self._steps: SimpleQueue[int] = SimpleQueue()

    def __enter__(self) -> StateSender:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        """Wait until the newest checkpoint that was to be sent is in the store."""
        while self._thread.is_alive() or not self._steps.empty():
            self._begin()
            self._thread.join()

    def send(self, step: int) -> None:
        """Store the checkpoint of this step; if one is being stored, after it."""
        if stored_root(self._folder) is not None:
            self._steps.put(step)
            self._begin()

    def _begin(self) -> None:
        if not self._thread.is_alive():
            self._thread = threading.Thread(target=self._send_newest, name="state")
            self._thread.start()

    def _send_newest(self) -> None:
        while not self._steps.empty():
            step = self._steps.get()
            if self._steps.empty():
                try:
                    store_state(self._folder, step)
                except (OSError, DataError) as error:  # the store is down, or newer checkpoints took this one's place
                    log.warning("%s: the checkpoint of step %d is not in the store: %s", self._folder, step, error)


def store_state(folder: Path, step: int) -> None:
    """Write the checkpoint of this step of an unfinished artifact, and the notes beside it, into its root's store."""
    if (root := stored_root(folder)) is None:
        return
    names = set(_names(folder, step))
    lists = {name: (folder / name).read_bytes() for name in names if name.count("/") == 1}  # they grow meanwhile
    entries = manifest(folder, names - lists.keys())
    entries += [{"path": name, "sha256": hashlib.sha256(data).hexdigest()} for name, data in lists.items()]
    wanted = {_key(root, folder, one["sha256"]): one["path"] for one in entries}
    there = root.objects.listed(f"{root.key(folder)}/{STATE}")
    new = [key for key in wanted if key not in there]

    def put(key: str) -> None:
        if (data := lists.get(wanted[key])) is None:
            root.objects.put_file(key, folder / wanted[key])
        else:
            root.objects.put(key, data)

    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(put, new))
    said = sealed_text({"step": step, "files": entries})
    root.objects.put(f"{root.key(folder)}/{NAMES}", said.encode("utf-8"))
    root.objects.remove([key for key in there if key not in wanted])


def bring_state(folder: Path) -> None:
    """Bring the state of an unfinished artifact if the store's is of a later step than what is here."""
    if (root := stored_root(folder)) is None or (data := root.objects.get(f"{root.key(folder)}/{NAMES}")) is None:
        return
    try:
        said = unsealed(data, NAMES)
        if (checkpoint_step(folder) or 0) >= said["step"]:
            return
        _bring(root, folder, said["files"])
    except (Unsealed, LookupError, TypeError) as error:
        log.warning("%s: the state in %s is not used: %s", folder, root.objects.address, error)
    else:
        log.info("%s: goes on from step %d, which another machine stored", folder, said["step"])


def saved_step(folder: Path) -> int | None:
    """Return the step of the newest checkpoint of an unfinished artifact, here or in its root's store; None if none.

    A store that does not answer, or answers with something else, counts as one without a checkpoint.
    """
    here = checkpoint_step(folder)
    if (root := stored_root(folder)) is None:
        return here
    try:
        data = root.objects.get(f"{root.key(folder)}/{NAMES}")
        return here if data is None else max(here or 0, int(unsealed(data, NAMES)["step"]))
    except (OSError, DataError, LookupError, TypeError, ValueError):
        return here


def forget_state(folder: Path) -> None:
    """Remove the checkpoint that the object store has of a committed training; log if the store does not answer."""
    if (root := stored_root(folder)) is not None and checkpoint_step(folder) is not None:
        prefix = root.key(folder)
        try:
            root.objects.remove([f"{prefix}/{NAMES}", *root.objects.listed(f"{prefix}/{STATE}")])
        except (OSError, DataError) as error:
            log.warning("%s: the state of its training stays in the store: %s", folder, error)


def _key(root: StoredRoot, folder: Path, sha256: str) -> str:
    return f"{root.key(folder)}/{STATE}/{sha256}"


def _names(folder: Path, step: int) -> Iterator[str]:
    """Yield the scratch files without unfinished ones and those of checkpoints of other steps."""
    for path in (folder / SCRATCH_FOLDER).rglob("*"):
        place = path.relative_to(folder)
        kind, _, number = place.parts[2].rpartition("-") if len(place.parts) > 3 else ("", "", "")
        is_other = kind in ("step", "checkpoint") and number.isdigit() and int(number) != step
        if path.is_file() and not is_other and not any(part.startswith(".") for part in place.parts):
            yield place.as_posix()


def _has_checkpoint(folder: Path) -> bool:
    return any(next(folder.glob(f"{kind}-[0-9]*"), None) is not None for kind in ("step", "checkpoint"))


def _bring(root: StoredRoot, folder: Path, entries: list[Mapping[str, Any]]) -> None:
    """Bring the files and put them in the place of the scratch folder's, the checkpoint last.

    Raise LookupError if the store lacks one or holds it with another content.
    """
    scratch = folder / SCRATCH_FOLDER
    brought = scratch / _BROUGHT
    shutil.rmtree(brought, ignore_errors=True)

    def bring_one(entry: Mapping[str, Any]) -> None:
        place = PurePosixPath(entry["path"])
        if place.parts[0] != SCRATCH_FOLDER or ".." in place.parts:  # anybody with rights on the store writes names
            raise LookupError(f"{place} is no scratch file")
        target = brought.joinpath(*place.parts[1:])
        target.parent.mkdir(parents=True, exist_ok=True)
        key = _key(root, folder, entry["sha256"])
        if not root.objects.get_file(key, target) or sha256_of(target) != entry["sha256"]:
            raise LookupError(f"{place} is missing there, or is not what was written")

    try:
        with ThreadPoolExecutor(THREADS) as pool:
            list(pool.map(bring_one, entries))
        for path in sorted(brought.iterdir(), key=_has_checkpoint):
            shutil.rmtree(scratch / path.name, ignore_errors=True)
            os.replace(path, scratch / path.name)
    finally:
        shutil.rmtree(brought, ignore_errors=True)
