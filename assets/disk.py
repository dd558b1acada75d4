"""A sentence for errors that a full disk caused."""

from __future__ import annotations

import shutil
from pathlib import Path

from training.contract.files.full_disk import told_of_full_disk

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
