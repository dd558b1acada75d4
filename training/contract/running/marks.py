"""The completion marks of ranks: the result of a rank, the checksums of its files, and what it cost.

A rank is the unit of resuming. Its mark is written last, so a rank without one is run again from its start.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from training.contract.artifact import SCRATCH_FOLDER
from training.contract.files.checked import damage_of
from training.contract.files.stored_root import is_only_stored, store_files, store_small
from training.contract.files.writing import Unsealed, read_sealed, sealed_text, write_text
from training.contract.job import Job
from training.contract.process.lifetime import cpu_seconds_with_children
from training.contract.running.leftovers import RANKS_FOLDER

SLICES = ".slices"  # ending of files in the scratch folder of which later ranks read slices (dedup/shuffle.py)
TOTAL_FILE = "total.json"  # beside the marks of a fan-out's ranks: how many ranks there are


class Clock:
    """Measures wall seconds and processor seconds since it was created; children of this process are included."""

    def __init__(self, cpu: Callable[[], float] = cpu_seconds_with_children) -> None:
        self._cpu = cpu
        self._before, self._started = cpu(), time.monotonic()

    def spent(self) -> dict[str, float]:
        return {"wall_seconds": time.monotonic() - self._started, "cpu_seconds": self._cpu() - self._before}


def write_mark(job: Job, phase: str, rank: int, mark: Mapping[str, Any], clock: Clock) -> None:
    folder = Path(job.output)
    spent = {"pid": os.getpid(), "peak_memory_bytes": peak_memory_bytes(), **clock.spent()}
    changed = {entry["path"]: (folder / entry["path"]).stat().st_mtime_ns for entry in mark["files"]}
    whole = sealed_text({**mark, "fingerprint": job.fingerprint, "changed": changed, "spent": spent})
    store_files(folder, mark["files"], asks=False)
    store_small(mark_path(folder, rank, phase), whole.encode("utf-8"))
    write_text(mark_path(folder, rank, phase), whole)


def peak_memory_bytes() -> int:
    """Return the largest resident size of this process or of one child, in bytes (Linux reports kilobytes)."""
    import resource

    return 1024 * max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))


def finished_rank(folder: Path, rank: int, phase: str = "") -> dict[str, Any] | None:
    """Return the result of a rank that an earlier attempt finished, or None.

    None means that the rank's completion mark or a file is missing or damaged. A file is not read if its size and
    time of change are those in the mark. So the end of a stage reads none of its outputs: the marks hold their
    checksums, and every later reader verifies the files that it opens.

    Of a rank that another machine finished, only scratch files that later phases and the end of the stage read whole
    are brought from the root's store. The store must have the others.
    """
    try:
        mark = read_sealed(mark_path(folder, rank, phase))
    except (FileNotFoundError, Unsealed):
        return None
    changed = mark.get("changed", {})
    is_damaged = any(_is_damaged(folder / entry["path"], entry, changed.get(entry["path"])) for entry in mark["files"])
    return None if is_damaged else mark["result"]


def _is_damaged(path: Path, entry: Mapping[str, Any], changed_ns: int | None) -> bool:
    is_read_whole = entry["path"].startswith(f"{SCRATCH_FOLDER}/") and not entry["path"].endswith(SLICES)
    if not is_read_whole and is_only_stored(path, entry):
        return False
    return bool(damage_of(path, entry, reads=not path.exists() or path.stat().st_mtime_ns != changed_ns))


def entries_of_rank(folder: Path, rank: int, phase: str = "") -> dict[str, Mapping[str, Any]]:
    """Return the manifest entries of the files that a rank wrote, by path; none without a readable mark."""
    try:
        return files_of([read_sealed(mark_path(folder, rank, phase))])
    except (FileNotFoundError, Unsealed):
        return {}


def marks_in(folder: Path) -> Iterator[dict[str, Any]]:
    for path in _mark_files(folder):
        with suppress(Unsealed):  # its rank is done again
            yield read_sealed(path)


def file_of_rank(folder: Path, name: str) -> Path:
    """Return the path of a file that a rank of the job wrote; it is brought if only the root's store has it."""
    path = folder / name
    if not path.exists() and (entry := files_of(marks_in(folder)).get(name)) is not None:
        damage_of(path, entry)
    return path


def files_of(marks: Iterable[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """Return the manifest entries of the files that ranks wrote, by path."""
    return {entry["path"]: entry for mark in marks for entry in mark["files"]}


def spent_on_ranks(folder: Path) -> list[dict[str, Any]]:
    """Return the recorded process id, CPU time and memory of every finished rank."""
    return [mark["spent"] for mark in marks_in(folder)]


def num_finished(folder: Path) -> int:
    """Return how many ranks, of all phases, have a completion mark."""
    return len(_mark_files(folder))


def marked_ranks(folder: Path, phase: str) -> set[int]:
    """Return the ranks of a phase that have a completion mark, by the names of the marks alone."""
    with suppress(FileNotFoundError):
        names = [entry.name for entry in os.scandir(folder / RANKS_FOLDER / phase)]
        return {int(name[:-5]) for name in names if name.endswith(".json") and name[:-5].isdigit()}
    return set()


def _mark_files(folder: Path) -> list[Path]:
    marks = folder / RANKS_FOLDER
    return sorted([*marks.glob("[0-9]*.json"), *marks.glob("*/[0-9]*.json")])


def mark_path(folder: Path, rank: int, phase: str = "") -> Path:
    return folder / RANKS_FOLDER / phase / f"{rank:05d}.json"
