"""What artifacts, leases and databases need of the file system of a root, tried in a folder that is removed again.

Of a root in a store, what they need of the store is tried with objects that are removed again.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

from assets.answers.doctor.finding import Finding
from training.contract.files.objects import Objects
from training.contract.files.stored_root import stored_root
from training.contract.job import DataError
from training.pretrain.capacity.room import gigabytes

LITTLE_BYTES, FEW_BYTES = 1e9, 20e9
CLOCK_SECONDS = 2.0
LONG_NAME = "f" * 200
HELD = 3
LARGE_MB, SMALL_FILES = 64, 9  # of what is written to see how fast that is
SLOW_BYTES, SLOW_SECONDS = 50e6, 0.2
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
        try:
            yield speed("speed", *_speed_of_disk(Path(scratch)))
        except OSError as error:
            yield Finding("speed", "problem", error.strerror or str(error), OTHER)
    if (stored := stored_root(root)) is not None:
        yield from _store(stored.objects)


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


def _store(objects: Objects) -> Iterator[Finding]:
    """Yield whether a store can hold a root, and how fast it is."""
    try:
        objects.check_conditions()
        measured = _speed_of_store(objects)
    except (DataError, OSError) as error:
        yield Finding("store", "problem", str(error), "mend what it says, or give another --root")
        return
    yield Finding("store", "ok", f"{objects.address} writes an object only if there is none, where that is asked")
    yield speed("store speed", *measured)


def speed(what: str, written: float, small: float) -> Finding:
    """Return what so many bytes a second mean, and so many seconds until a small file is safe."""
    found = f"{written / 1e6:,.0f} MB/s are written; a small file is safe after {1000 * small:,.1f} ms"
    is_slow = written < SLOW_BYTES or small > SLOW_SECONDS
    advice = f"a checkpoint of 10 GB takes {1e10 / written / 60:,.0f} min here; {OTHER} if that is too long"
    return Finding(what, "warning" if is_slow else "ok", found, advice if is_slow else "")


def _speed_of_disk(scratch: Path) -> tuple[float, float]:
    """Return the bytes a second of a file that is forced to the disk, and the seconds of a small one."""

    def put(name: str, data: bytes) -> None:
        with open(scratch / name, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())

    return _speed(put)


def _speed_of_store(objects: Objects) -> tuple[float, float]:
    prefix, names = f"probe-{uuid.uuid4().hex}", list[str]()

    def put(name: str, data: bytes) -> None:
        names.append(f"{prefix}-{name}")
        objects.put(names[-1], data)

    try:
        return _speed(put)
    finally:
        objects.remove(names)


def _speed(put: Callable[[str, bytes], None]) -> tuple[float, float]:
    data, small = os.urandom(1 << 20) * LARGE_MB, list[float]()
    begun = time.perf_counter()
    put("large", data)
    large = time.perf_counter() - begun
    for number in range(SMALL_FILES):
        begun = time.perf_counter()
        put(f"small-{number}", b"{}")
        small.append(time.perf_counter() - begun)
    return len(data) / large, statistics.median(small)


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
