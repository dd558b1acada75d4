"""Files that the ranks of one phase write for the ranks of a later phase, with one slice for each reader.

A rank writes one file, whatever the number of its readers. The file holds the slices one after the other, each followed
by a checksum over its bytes and over which slice it is, and ends with a table of their places. So a reader opens and
checks its own slices only, and a file that belongs to another job, rank or slice is noticed. Of a file that the root's
store alone has, nothing but the table and these slices is brought. The checksum is XXH3: it finds damage as SHA-256
does, ten times as fast, and nobody but the job itself writes these files.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import xxhash

from training.contract.artifact import SCRATCH_FOLDER
from training.contract.files.stored_ranges import StoredStream, stored_stream
from training.contract.files.stored_root import forget_mark
from training.contract.files.writing import written
from training.contract.job import Job, Work
from training.contract.running.marks import SLICES, entries_of_rank, mark_path

_NUMBER = struct.Struct("<Q")
_PLACE = struct.Struct("<QQ")  # first byte and number of bytes of a slice
_CHECKSUM_BYTES = 16


class SliceDamaged(RuntimeError):
    """Raised if a slice that an earlier phase wrote is missing or damaged.

    The rank that wrote it is made again when the job runs again.
    """


class SliceWriter:
    """Writes byte strings ("slices") one after the other into a file; readers ask for them by number, from 0."""

    def __init__(self, stream: IO[bytes], what: str) -> None:
        self._stream, self._what = stream, what
        self._places: list[tuple[int, int]] = []
        self._end = 0

    def add(self, *parts: Any) -> None:
        """Write the next slice: these bytes or contiguous arrays, one after the other."""
        checksum = _checksum(self._what, len(self._places))
        begin = self._end
        for part in parts:
            data = memoryview(part).cast("B") if memoryview(part).nbytes else b""
            checksum.update(data)
            self._stream.write(data)
            self._end += len(data)
        self._places.append((begin, self._end - begin))
        self._stream.write(checksum.digest())
        self._end += _CHECKSUM_BYTES

    def close(self) -> None:
        """Write the table of the slices' places."""
        for place in self._places:
            self._stream.write(_PLACE.pack(*place))
        self._stream.write(_NUMBER.pack(len(self._places)))


@contextmanager
def writing_slices(job: Job, work: Work, phase: str, rank: int, what: str = "") -> Iterator[SliceWriter]:
    """Open the file that a rank of a phase writes for later phases.

    The file appears only when it is complete. `what` names its content if other jobs may read it too (`SliceFile`);
    otherwise its checksums cover the job, the phase and the rank.
    """
    # Not durable: readers compare checksums, so a power failure costs the rank and nothing else.
    with written(_path(work, phase, rank), durable=False) as stream:
        writer = SliceWriter(stream, what or _what(job, phase, rank))
        yield writer
        writer.close()


def name_of(phase: str, rank: int) -> str:
    """Return the path of a rank's file of slices, relative to the artifact's folder.

    It is the form for `files` in the rank's result.
    """
    return f"{SCRATCH_FOLDER}/{phase}/{rank:05d}{SLICES}"


def read_slice(job: Job, work: Work, phase: str, rank: int, number: int, what: str = "") -> bytes:
    """Return slice `number` of the file of a rank of an earlier phase, after verifying its checksum.

    If the slice is damaged or missing, remove the mark of that rank, so that it is made again, and raise SliceDamaged.
    """
    path = _path(work, phase, rank)
    entry = None if path.exists() else entries_of_rank(work.path, rank, phase).get(name_of(phase, rank))
    data = _slice_at(path, entry, number)
    if not _is_sound(data, what or _what(job, phase, rank), number):
        forget_mark(mark_path(Path(job.output), rank, phase))
        raise SliceDamaged(
            f"{path}: slice {number}, which rank {rank} of the phase {phase} wrote, is damaged or missing;"
            " run again, which makes that rank anew"
        )
    return data[:-_CHECKSUM_BYTES]


def _slice_at(path: Path, entry: Mapping[str, Any] | None, number: int) -> bytes:
    """Return a slice of a file here, or of one of this entry in the root's store; nothing if it cannot be read."""
    if entry is not None and (there := stored_stream(path, entry)) is not None:
        with suppress(FileNotFoundError, struct.error):
            return _slice(there, number)
        return b""
    with suppress(OSError, struct.error), open(path, "rb") as stream:
        return _slice(stream, number)
    return b""


class SliceFile:
    """A file of slices that the stage of another artifact wrote and kept. It may be damaged or removed at any time."""

    def __init__(self, path: Path, what: str) -> None:
        self.path, self._what = path, what
        self._stream: IO[bytes] | None = None

    def __enter__(self) -> SliceFile:
        with suppress(OSError):
            self._stream = open(self.path, "rb")
        return self

    def __exit__(self, *_: object) -> None:
        if self._stream is not None:
            self._stream.close()

    def __len__(self) -> int:
        """Number of slices, as the file says; 0 if it cannot be read or is too short for them."""
        with suppress(OSError, struct.error):
            if self._stream is not None:
                return _num_slices(self._stream)[0]
        return 0

    def read(self, number: int) -> bytes | None:
        """Return slice `number` after verifying its checksum, or None if it is damaged or missing."""
        data = b""
        with suppress(OSError, struct.error):
            data = _slice(self._stream, number) if self._stream is not None else b""
        return data[:-_CHECKSUM_BYTES] if _is_sound(data, self._what, number) else None


def _is_sound(data: bytes, what: str, number: int) -> bool:
    """Whether a slice with the checksum at its end is the one with this number of the file with this content."""
    found = _checksum(what, number)
    found.update(memoryview(data)[:-_CHECKSUM_BYTES])
    return found.digest() == data[-_CHECKSUM_BYTES:]


def _slice(stream: IO[bytes] | StoredStream, number: int) -> bytes:
    """Return a slice followed by its checksum, or nothing if the file has no such slice."""
    total, end = _num_slices(stream)
    if number >= total:
        return b""
    stream.seek(end - _PLACE.size * (total - number))
    begin, size = _PLACE.unpack(stream.read(_PLACE.size))
    if begin + size > end:
        return b""
    stream.seek(begin)
    return stream.read(size + _CHECKSUM_BYTES)


def _num_slices(stream: IO[bytes] | StoredStream) -> tuple[int, int]:
    """Return the number of slices in a file, 0 if it is too short for the list of their places, and where this ends."""
    end = stream.seek(-_NUMBER.size, os.SEEK_END)
    (total,) = _NUMBER.unpack(stream.read())
    return total if total * _PLACE.size <= end else 0, end


def _path(work: Work, phase: str, rank: int) -> Path:
    return work.path / name_of(phase, rank)


def _what(job: Job, phase: str, rank: int) -> str:
    return f"{job.fingerprint} {phase} {rank}"


def _checksum(what: str, number: int) -> Any:
    return xxhash.xxh3_128(f"{what} {number}\n".encode())
