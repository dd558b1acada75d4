"""A root that a group of people uses: what one of them leaves, the others can open for writing."""

from __future__ import annotations

import os
import stat

from assets.state.removal_lock import nothing_removed, only_one
from resources.compute.base import submit_lock
from resources.tracking.spool import append_line


def test_locks_and_spool_obey_the_umask(tmp_path):
    former = os.umask(0o002)
    try:
        with nothing_removed(tmp_path), only_one(tmp_path, "one.lock", "gc"), submit_lock(tmp_path):
            append_line(tmp_path / "tracking", {"do": "gone"})
            modes = {path.name: stat.filemode(path.stat().st_mode) for path in tmp_path.rglob("*") if path.is_file()}
    finally:
        os.umask(former)
    assert len(modes) == 4 and set(modes.values()) == {"-rw-rw-r--"}, modes
