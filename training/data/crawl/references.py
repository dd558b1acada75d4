"""Archives that stay where they are: each is opened by the rank that extracts it, and by no other process.

An entry of the listing says where an archive is and how to recognize it:

    {"name", "uri", "bytes", "etag", "sha256", "selected"}

`bytes` is null, and `etag` and `sha256` are empty, if they were not known when the archive was listed. `selected` names
the file with the offsets and lengths of the selected records; it is empty if all records are read.

A local file is read in place. A remote one is streamed into the rank's scratch folder, in one request if the connection
lasts, and is removed when the rank is finished. It becomes a file because archives are read fastest by memory mapping,
and because an interrupted stream resumes where it ended (docs/log/decisions/0017-archives-by-reference.md has the
measurements). If records are selected, only the byte ranges that hold them are requested.

Whoever reads an archive first writes its size and sha256 beside the listing. A later reader that finds other bytes
refuses them, even if the server gives no ETag.
"""

from __future__ import annotations

import bisect
import errno
import fcntl
import json
import logging
import os
import shutil
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import Any, TypeVar

from training.contract.files.checksums import identity_of, sha256_of
from training.contract.files.writing import Unsealed, read_sealed, write_sealed
from training.contract.job import DataError, InputArtifact, Work
from training.contract.secrets import masked
from training.data.crawl.warc import GZIP_MAGIC, ZSTD_MAGIC, Damage, Record
from training.data.sources import check_store, checksum_of, is_http, is_remote, resolve, size_and_tag

log = logging.getLogger(__name__)

FIRST_READ_FOLDER = "first-read"
BLOCK_BYTES = 1 << 20
STORE_BLOCK_BYTES = 32 << 20  # of one request to an object store
RECORD_MAGICS = (GZIP_MAGIC, ZSTD_MAGIC, b"WARC/")
DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EIO)  # of the scratch folder
MAX_BYTES = 1 << 62  # more than any file has
WAY_OUT = "run again, which lists it anew"

Item = TypeVar("Item", bound=Record | Damage)


@dataclass(frozen=True, kw_only=True, slots=True)
class Selection:
    """Offsets and lengths, in bytes, of the selected records of one archive, sorted by offset."""

    offsets: Sequence[int]
    lengths: Sequence[int]
    max_gap_bytes: int

    @classmethod
    def read(cls, path: Path) -> Selection:
        """Read the selection of one archive from the file that the stage `crawl` wrote."""
        return cls(**json.loads(path.read_text("utf-8")))

    def ranges(self) -> list[tuple[int, int]]:
        """Return the byte ranges to request for the chosen records.

        There is one range for each record, but nearby records share a range if the gap between them is small enough.
        """
        found: list[tuple[int, int]] = []
        for offset, length in zip(self.offsets, self.lengths, strict=True):
            if found and offset - found[-1][1] <= self.max_gap_bytes:
                found[-1] = found[-1][0], offset + length
            else:
                found.append((offset, offset + length))
        return found


@dataclass(frozen=True, kw_only=True, slots=True)
class AtHand:
    """A local file with a referenced archive, or with the selected records of it.

    It has the size and checksum of the bytes that were read, and the number of requests.
    """

    path: Path
    uri: str
    selection: Selection | None = None
    read: Mapping[str, Any]  # bytes, sha256, requests

    def placed(self, items: Iterator[Item]) -> Iterator[Item]:
        """Yield records and damaged parts with their offsets in the original archive instead of in the local file.

        Raise DataError if a selected record is missing, because then the index describes another archive.
        """
        if self.selection is None:
            yield from items
            return
        offsets = self.selection.offsets
        starts = [0, *accumulate(self.selection.lengths)]
        seen: set[int] = set()
        damaged = 0
        for item in items:
            place = bisect.bisect_right(starts, item.offset) - 1
            seen.add(place)
            damaged += isinstance(item, Damage)
            yield replace(item, offset=offsets[place] + item.offset - starts[place])
        if len(seen) < len(offsets) or damaged == len(offsets):
            missing = next((place for place in range(len(offsets)) if place not in seen), 0)
            raise DataError(
                f"{self.uri}: snapshots.select.index names a record of {self.selection.lengths[missing]} bytes at"
                f" {offsets[missing]}, and there is none; the index does not fit this archive"
            )


def described(location: str, uri: str) -> dict[str, Any]:
    """Return the size of a file, and its ETag if it is remote or its sha256 if it is local."""
    if is_remote(location):
        size, tag = size_and_tag(location)
        return {"uri": uri, "bytes": size if size >= 0 else None, "etag": tag, "sha256": ""}
    return {"uri": uri, "bytes": os.path.getsize(location), "etag": "", "sha256": checksum_of(location)}


@contextmanager
def at_hand(entry: Mapping[str, Any], archives: InputArtifact, work: Work, rank: int) -> Iterator[AtHand]:
    """Context manager that gives the archive of a listing's entry as a local file.

    Raise DataError, with the archive's URI, if its content is not what was listed or first read, or if the file changes
    inside the `with` block.
    """
    location = resolve(entry["uri"])
    chosen = Selection.read(archives.file(entry["selected"])) if entry["selected"] else None
    with _own_folder(work.scratch / "archives", rank) as folder:
        path, requests = folder / entry["name"], 0
        if is_remote(location):
            requests = _fetched(location, path, folder, entry, chosen)
        else:
            _check_local(location, entry)
            path = _cut_out(location, path, entry, chosen) if chosen else Path(location)
        before = identity_of(path)
        read = {"bytes": before[0], "sha256": sha256_of(path), "requests": requests}
        given = AtHand(path=path, uri=entry["uri"], selection=chosen, read=read)
        _check_read(given, entry)
        _check_first_read(given, entry, Path(archives.path, FIRST_READ_FOLDER))
        yield given
        if not path.exists() or identity_of(path) != before:
            raise DataError(f"{entry['uri']}: the file changed while it was read; {WAY_OUT}")


@contextmanager
def _own_folder(place: Path, rank: int) -> Iterator[Path]:
    """Context manager that gives a folder used by no other process; the folder is removed if the `with` block succeeds.

    Usually this is the rank's own folder, where an earlier attempt may have left a partial download to resume. If
    another process still has that folder locked, such as an attempt on a node that lost contact, a new folder is made.
    """
    place.mkdir(parents=True, exist_ok=True)
    with open(place / f"{rank:05d}.lock", "w") as lock:
        folder = place / f"{rank:05d}"
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            folder = place / f"{rank:05d}-{uuid.uuid4().hex[:8]}"
            log.warning("rank %d: another process reads this archive; it is read again into %s", rank, folder.name)
        folder.mkdir(exist_ok=True)
        yield folder
        shutil.rmtree(folder, ignore_errors=True)


# Whether it is the archive that was listed


def _check_local(location: str, entry: Mapping[str, Any]) -> None:
    if not os.path.isfile(location):
        raise DataError(f"{entry['uri']}: the file is gone; it was listed with {entry['bytes']} bytes; {WAY_OUT}")
    if (size := os.path.getsize(location)) != entry["bytes"]:
        raise DataError(
            f"{entry['uri']}: {size} bytes; it was listed with {entry['bytes']}: the file changed; {WAY_OUT}"
        )


def _check_read(given: AtHand, entry: Mapping[str, Any]) -> None:
    """Raise DataError if a whole archive has another size or checksum than its entry in the listing.

    Local archives with selected records are checked in `_cut_out` instead.
    """
    if given.selection is not None:
        return
    for name, found in (("bytes", given.read["bytes"]), ("sha256", given.read["sha256"])):
        if entry[name] not in (None, "") and found != entry[name]:
            raise DataError(
                f"{entry['uri']}: {name} {found}; it was listed with {entry[name]}: the file changed; {WAY_OUT}"
            )


def _check_first_read(given: AtHand, entry: Mapping[str, Any], folder: Path) -> None:
    """Compare an archive's checksum with the one that its first reader stored.

    If this reading is the first, its checksum is stored.
    """
    path = folder / f"{entry['name']}.json"
    found = {"uri": given.uri, "bytes": given.read["bytes"], "sha256": given.read["sha256"]}
    try:
        known = read_sealed(path)
    except (FileNotFoundError, Unsealed):
        try:
            folder.mkdir(exist_ok=True)
            write_sealed(path, found, durable=False)
        except OSError as error:  # somebody else's root
            log.warning("%s: cannot note the checksum of the first reading: %s", given.uri, error)
        return
    if known["sha256"] != found["sha256"]:
        raise DataError(
            f"{given.uri}: sha256 {found['sha256'][:12]}…, {found['bytes']} bytes; the first reading found"
            f" {known['sha256'][:12]}…, {known['bytes']} bytes: the file changed between two readings. To read what is"
            " there now, give the snapshot a new name"
        )


# Bringing it


def _fetched(location: str, path: Path, folder: Path, entry: Mapping[str, Any], chosen: Selection | None) -> int:
    """Stream a remote archive, or the selected records of it, to `path`; return the number of requests."""
    path.unlink(missing_ok=True)
    if chosen is None:
        if is_http(location):
            from training.data.crawl.download import Manners, fetch  # requests is slow to import

            return fetch(location, path, folder, Manners(), tag=entry["etag"], is_lasting=False)
        return _fetch_from_store(location, path, folder, entry)
    joined = folder / f"{path.name}.ranges"
    joined.unlink(missing_ok=True)
    requests = _fetch_ranges(location, joined, entry, chosen)
    _cut(joined, chosen, path, entry["uri"], ranges=chosen.ranges())
    joined.unlink()
    return requests


def _fetch_ranges(location: str, joined: Path, entry: Mapping[str, Any], chosen: Selection) -> int:
    joined.touch()
    if is_http(location):
        from training.data.crawl.download import Manners, fetch_range

        manners, tag = Manners(), entry["etag"]
        return sum(fetch_range(location, joined, start, end, manners, tag=tag) for start, end in chosen.ranges())
    with _opened_in_store(location, entry) as (stream, size), open(joined, "ab") as target:
        for start, end in chosen.ranges():
            if end > size:
                raise _beyond(entry["uri"], start, end, size)
            stream.seek(start)
            _copy(stream, target, end - start)
    return len(chosen.ranges())


def _fetch_from_store(location: str, path: Path, folder: Path, entry: Mapping[str, Any]) -> int:
    """Copy an object of an object store to `path`, resuming a partial copy if the object is still the listed one."""
    partial = folder / f"{path.name}.part"
    with _opened_in_store(location, entry) as (stream, size), open(partial, "ab") as target:
        if not entry["etag"] or target.tell() > size:  # nothing says that it is the same object
            target.truncate(0)
        have = target.seek(0, os.SEEK_END)
        stream.seek(have)
        _copy(stream, target, size - have)
    os.replace(partial, path)
    return -(-(size - have) // STORE_BLOCK_BYTES)


@contextmanager
def _opened_in_store(location: str, entry: Mapping[str, Any]) -> Iterator[tuple[Any, int]]:
    """Context manager that opens an object and gives its stream and size in bytes, if it is the object that was listed.

    Raise DataError if the object's size or ETag differs from the listing, before or after the block. The file system is
    created in the rank's process, because it does not survive a fork. s3fs sends the ETag with every request, and
    retries with its own waits.
    """
    import fsspec

    check_store(location)
    _check_object(location, entry)
    system, place = fsspec.core.url_to_fs(location)
    try:
        with system.open(place, "rb", block_size=STORE_BLOCK_BYTES, cache_type="readahead") as stream:
            yield stream, int(stream.size)
    except FileNotFoundError:
        raise DataError(f"{entry['uri']}: nothing is there; {WAY_OUT}") from None
    except OSError as error:  # of the store: s3fs raises one for an object that changes while it is read
        if error.errno in DISK_ERRORS:
            raise
        raise DataError(f"{entry['uri']}: the store did not give it whole: {masked(str(error))}") from None
    _check_object(location, entry)


def _check_object(location: str, entry: Mapping[str, Any]) -> None:
    size, tag = size_and_tag(location)
    if tag != entry["etag"] or (entry["bytes"] is not None and size != entry["bytes"]):
        raise DataError(
            f"{entry['uri']}: {size} bytes, ETag {tag or 'none'}; it was listed with {entry['bytes']} bytes, ETag"
            f" {entry['etag'] or 'none'}: the file changed; {WAY_OUT}"
        )


def _copy(source: Any, target: Any, size: int) -> None:
    """Copy exactly `size` bytes from one stream to another. Raise DataError if the source ends earlier."""
    while size:
        block = source.read(min(size, BLOCK_BYTES))
        if not block:
            raise DataError(f"{getattr(source, 'path', 'the object')}: {size} bytes less than were promised")
        target.write(block)
        size -= len(block)


def _cut_out(location: str, path: Path, entry: Mapping[str, Any], chosen: Selection) -> Path:
    """Write the selected records of a local archive to `path`, after checking the whole archive; return the path."""
    if sha256_of(Path(location)) != entry["sha256"]:
        raise DataError(f"{entry['uri']}: other content than was listed: the file changed; {WAY_OUT}")
    _cut(Path(location), chosen, path, entry["uri"], ranges=[(0, MAX_BYTES)])
    return path


def _cut(source: Path, chosen: Selection, path: Path, uri: str, *, ranges: Sequence[tuple[int, int]]) -> None:
    """Copy the selected records from `source` to `path`, one after another.

    `source` holds the byte `ranges` (start, end) of the archive, one after another. Raise DataError if a record does
    not begin where the index says, or ends after the archive's end.
    """
    size = source.stat().st_size
    befores = accumulate((end - start for start, end in ranges), initial=0)
    places = iter(zip(ranges, befores, strict=False))
    (start, end), before = next(places)
    with open(source, "rb") as stream, open(path, "wb") as target:
        for offset, length in zip(chosen.offsets, chosen.lengths, strict=True):
            while offset >= end:
                (start, end), before = next(places)
            where = stream.seek(before + offset - start)
            if where + length > size:
                raise _beyond(uri, offset, offset + length, size)
            record = stream.read(length)
            if not record.startswith(RECORD_MAGICS):
                raise DataError(
                    f"{uri}: snapshots.select.index names a record at {offset}, and none begins there; the index does"
                    " not fit this archive"
                )
            target.write(record)


def _beyond(uri: str, start: int, end: int, size: int) -> DataError:
    return DataError(
        f"{uri}: snapshots.select.index names bytes {start} to {end}, and the archive has {size}; the index does not"
        " fit this archive"
    )
