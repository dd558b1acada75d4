"""The folder of a root: whether it is one, can be written, or is full."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from training.contract.files.full_disk import told_of_full_disk
from training.contract.job import DataError
from training.contract.user_input.places import local_path

SQLITE_FAILS = "disk I/O error"
NO_SPACE_BYTES = 4 << 20


def full_disk(said: str, root: Path) -> str:
    """A sentence for an error that a full disk caused; empty for any other error.

    A stage, the metrics spool and Dagster's database report a full disk in different words. SQLite's "disk I/O error"
    has other causes too, so it counts only if less than 4 MiB are free.
    """
    free_bytes = shutil.disk_usage(next(place for place in (root, *root.parents) if place.exists())).free
    cause = told_of_full_disk(said)
    if not cause and free_bytes < NO_SPACE_BYTES:
        cause = next((line.strip() for line in said.splitlines() if SQLITE_FAILS in line), "")
    if not cause:
        return ""
    return (
        f"disk full under {root}, {free_bytes / 1e6:.1f} MB are free ({cause}); nothing of what was under way was "
        "committed. Free space and run again: what is finished is used."
    )


def check_root(root: Path) -> Path:
    """Return `root`. Raises DataError if it is not a folder and cannot become one."""
    place = local_path(root, "--root").absolute()
    try:
        there = next(one for one in (place, *place.parents) if os.path.lexists(one))
        if os.path.isdir(there):
            return root
    except OSError as error:  # too long, or a loop of links
        raise DataError(f"--root {root}: {error.strerror}; give a folder") from None
    raise DataError(f"--root {root}: {there} is no folder; give a folder, or a path where one can be made")


def make_writable(root: Path) -> None:
    """Create the root if needed. Raises DataError if nothing can be written in it."""
    try:
        root.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=root):
            pass
    except OSError as error:
        if full_disk(str(error), root):
            return  # reported later by the run, with its consequences
        raise DataError(
            f"--root {root}: nothing can be written there ({error.strerror}); give another folder, or mend its rights"
        ) from None
