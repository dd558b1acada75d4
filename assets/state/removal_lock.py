"""The lock that keeps `pedigree gc` from removing what a run has just found and does not yet name as its own.

A run holds it together with others from the moment in which it compares recipe and artifacts until its job or its
reference names what it found. `gc` holds it alone while it renames. On a file system without locks nothing is held;
there `gc` relies on the second look that it takes after renaming.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from training.contract.job import DataError

LOCK_FILE = "gc.lock"
TRASH = "trash"  # a folder beside an asset's artifacts, which no search for artifacts looks into
PATIENCE_SECONDS = 60.0  # a run holds the lock for about a second


@contextmanager
def nothing_removed(root: Path) -> Iterator[None]:
    """Context manager: while it is open, `pedigree gc` removes nothing under this root."""
    root.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(root / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        _lock(descriptor, fcntl.LOCK_SH)
        yield
    finally:
        os.close(descriptor)


@contextmanager
def nobody_looks(root: Path) -> Iterator[None]:
    """Context manager: while it is open, no run compares its recipe with the artifacts under this root.

    Raise DataError if runs hold the lock for longer than a minute.
    """
    descriptor = os.open(root / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not _lock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB):
            if time.monotonic() > deadline:
                raise DataError(f"{root}: runs have been starting here for {PATIENCE_SECONDS:.0f} s; try again later")
            time.sleep(0.02)
        yield
    finally:
        os.close(descriptor)


@contextmanager
def only_one(root: Path, lock_file: str, command: str) -> Iterator[None]:
    """Context manager that one process at a time can enter. Raise DataError if another `command` is inside."""
    descriptor = os.open(root / lock_file, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        if not _lock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB):
            raise DataError(f"{root}: another `pedigree {command}` is at work here; wait until it is done")
        yield
    finally:
        os.close(descriptor)


def _lock(descriptor: int, kind: int) -> bool:
    """Lock a file; return False if another process holds it. A file system without locks counts as locked."""
    try:
        fcntl.flock(descriptor, kind)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True
