"""What artifacts, leases and databases need of the file system of a root, tried in a folder that is removed again."""

from __future__ import annotations

import fcntl
import mmap
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from assets.answers.doctor.finding import Finding
from training.pretrain.capacity.room import gigabytes

LITTLE_BYTES, FEW_BYTES = 1e9, 20e9
CLOCK_SECONDS = 2.0
LONG_NAME = "f" * 200
HELD = 3
# Opened for writing: NFS gives an exclusive lock to no other, and answers with EBADF.
TAKE_LOCK = f"""
import fcntl, sys
try:
    fcntl.flock(open(sys.argv[1], "r+"), fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    sys.exit({HELD})
"""


def look_at_storage(root: Path) -> Iterator[Finding]:
    """Yield what is found where a root is, or would be made. Nothing in it is changed."""
    place = next(one for one in (root, *root.parents) if os.path.lexists(one))
    if not os.path.isdir(place):
        yield Finding("root", "problem", f"{place} is no folder", "give another --root")
        return
    yield _space(place)
    try:
        folder = tempfile.TemporaryDirectory(prefix=".doctor-", dir=place)
    except OSError as error:
        yield Finding("root", "problem", f"{place}: {error.strerror}", "give another --root, or mend its rights")
        return
    with folder as scratch:
        for what, attempt, advice in ATTEMPTS:
            yield _tried(what, attempt, Path(scratch), advice)


def _space(place: Path) -> Finding:
    free = shutil.disk_usage(place).free
    found = f"{gigabytes(free)} GB are free in {place}"
    if free < LITTLE_BYTES:
        return Finding("disk", "problem", found, "free space, or give a --root on a larger disk")
    advice = "`pedigree plan RECIPE` says what a recipe takes" if free < FEW_BYTES else ""
    return Finding("disk", "warning" if advice else "ok", found, advice)


def _tried(what: str, attempt: Callable[[Path], str], scratch: Path, advice: str) -> Finding:
    try:
        return Finding(what, "ok", attempt(scratch))
    except (OSError, AssertionError) as error:
        return Finding(what, "problem", getattr(error, "strerror", None) or str(error), advice)


def _rename(scratch: Path) -> str:
    old, new = scratch / "old", scratch / "new"
    for path in (old, new):
        path.write_text(path.name, "utf-8")
    os.replace(new, old)
    assert old.read_text("utf-8") == "new" and not new.exists(), "a file that was renamed is not the one that was there"
    folder = scratch / "folder"
    (folder / "inside").mkdir(parents=True)
    os.rename(folder, scratch / "renamed")
    assert (scratch / "renamed" / "inside").is_dir(), "a folder lost its content when it was renamed"
    return "a file replaces another one, a folder moves with its content"


def _links(scratch: Path) -> str:
    (scratch / "one").write_text("one", "utf-8")
    os.link(scratch / "one", scratch / "two")
    assert os.path.samefile(scratch / "one", scratch / "two"), "a hard link is another file"
    return "two names of a file are one file"


def _locks(scratch: Path) -> str:
    path = scratch / "lock"
    with open(path, "w", encoding="utf-8") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        assert _other_process(path) == HELD, "another process got a lock that is held"
    assert _other_process(path) == 0, "another process did not get a lock that is free"
    return "a lock keeps another process out"


def _other_process(path: Path) -> int:
    return subprocess.run([sys.executable, "-I", "-S", "-c", TAKE_LOCK, str(path)], capture_output=True).returncode


def _names(scratch: Path) -> str:
    (scratch / "name").write_text("", "utf-8")
    (scratch / LONG_NAME).write_text("", "utf-8")
    assert not (scratch / "NAME").exists(), "NAME and name are the same file"
    return f"capitals count, and {len(LONG_NAME)} characters fit"


def _mapping(scratch: Path) -> str:
    with open(scratch / "mapped", "w+b") as stream:
        stream.write(b"page")
        stream.flush()
        os.fsync(stream.fileno())
        with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
            assert mapped[:] == b"page", "what was written is not what is read"
    return "a written file is read through a mapping"


def _clock(scratch: Path) -> str:
    before = time.time()
    (scratch / "clock").write_text("", "utf-8")
    written, after = (scratch / "clock").stat().st_mtime, time.time()
    apart = max(before - written, written - after)
    assert apart <= CLOCK_SECONDS, f"the times of files are {apart:.0f} s apart from this machine's"
    return "the times of files are those of this machine"


OTHER = "give a --root on another file system"
ATTEMPTS: tuple[tuple[str, Callable[[Path], str], str], ...] = (
    ("renaming", _rename, OTHER),
    ("hard links", _links, OTHER),
    ("locks", _locks, f"{OTHER}, or mount it with locks; two runs might write one artifact"),
    ("names", _names, OTHER),
    ("mapping", _mapping, OTHER),
    ("file times", _clock, "set the clocks of both"),
)
