"""Stage `crawl`: collects the archive files of one snapshot, with sizes and checksums.

The files are in `archives/<name>`, sorted by name. `archives.json` lists them and describes their content:

```json
{"snapshot", "label", "form": "warc" | "parquet" | "jsonl" | "text", "text_field", "url_field",
 "files": [{"name", "path", "bytes", "sha256"}]}
```

Local files are copied (as clones where the file system supports it), so that the artifact does not depend on the
originals. Remote files are downloaded, and interrupted downloads resume. Files without a single readable record are
quarantined. The counts are numbers of files.
"""

from __future__ import annotations

import fcntl
import gzip
import json
import os
import shutil
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from training.artifact import sha256_of, write_json
from training.data import generated
from training.data.crawl.settings import SnapshotRecipe
from training.data.crawl.warc import Damage, Record, read_warc
from training.data.documents import open_documents, read_lines, write_lines
from training.data.sources import checksum_of, expand, is_http, is_remote, open_uri, size_of
from training.generated_sources import SOURCES
from training.job import Counts, DataError, Job, Outcome, Work
from training.records import RecipeError

SUFFIXES = {
    "warc": (
        ".warc", ".warc.gz", ".warc.zst", ".warc.lz4",
        ".warc.wet", ".warc.wet.gz",
    ),
    "parquet": (".parquet",),
    "jsonl": (".jsonl", ".jsonl.gz", ".jsonl.zst"),
    "text": (".txt", ".txt.gz"),
}  # fmt: skip
"""What a folder or a pattern is searched for, by source. A file named by itself may have any name."""

FOLDER = "archives"
LIST_FILE = "archives.json"
FICLONE = 0x40049409  # Linux ioctl that makes a file share the blocks of another file
QUARANTINE_FILE = "quarantine/00000.jsonl"
MAX_LISTING_BYTES = 256 << 20  # after decompression; a listing of 90,000 files has 13 million bytes


def source_files(snapshot: SnapshotRecipe) -> list[dict[str, Any]]:
    """Return the name, size and checksum of each file of a snapshot, sorted by name.

    They identify the snapshot independently of where its files are stored. The list is empty for generated snapshots
    and for Common Crawl. The checksum of a remote file is empty, because computing it would mean downloading the file.
    Raise DataError if a path leads to no file.
    """
    if snapshot.source not in SUFFIXES:
        return []
    return [
        {"name": name, "bytes": size_of(location), "sha256": "" if is_remote(location) else checksum_of(location)}
        for name, location in _located(snapshot).items()
    ]


def _located(snapshot: SnapshotRecipe) -> dict[str, str]:
    """Return the location of each of the snapshot's files by file name, sorted by name.

    Raise RecipeError if two files have the same name.
    """
    found: dict[str, str] = {}
    for location in expand(snapshot.paths, SUFFIXES[snapshot.source]):
        name = location.rpartition("/")[2]
        if name in found:
            raise RecipeError(
                f"snapshots.{snapshot.name}.paths: {found[name]} and {location} have the same name {name!r};"
                " documents are identified by it, so file names must differ within a snapshot"
            )
        found[name] = location
    return found


def run(job: Job, work: Work) -> Outcome:
    """Collect the snapshot's files, check each one and list them."""
    snapshot = job.settings_as(SnapshotRecipe, "snapshot")
    folder = work.path / FOLDER
    folder.mkdir(exist_ok=True)
    extra: list[str] = []
    if snapshot.source in SOURCES:
        asked, extra = _generate(snapshot, job, work)
    elif snapshot.source == "commoncrawl":
        asked = _fetch_crawl(snapshot, folder, work)
    else:
        asked = _bring(snapshot, job.settings.get("files", []), folder, work)
    form = snapshot.source if snapshot.source in SUFFIXES else "warc"
    return _listed(snapshot, form, work, asked, extra)


def _listed(snapshot: SnapshotRecipe, form: str, work: Work, asked: int, extra: list[str]) -> Outcome:
    """Check every file, list the readable ones and quarantine the others. `asked` is the number of files requested."""
    entries, quarantined = [], []
    for path in sorted((work.path / FOLDER).iterdir()):
        problem = _problem(path, form, snapshot)
        if problem is None:
            name = f"{FOLDER}/{path.name}"
            entries.append({"name": path.name, "path": name, "bytes": path.stat().st_size, "sha256": sha256_of(path)})
        else:
            quarantined.append(
                {"warc_file": path.name, "warc_offset": 0, "reason": problem.reason, "detail": problem.detail}
            )
    if not entries:
        first = quarantined[0]
        raise DataError(
            f"snapshots.{snapshot.name}: no readable file; {first['warc_file']} is {first['reason']}: {first['detail']}"
        )
    listing = {
        "snapshot": snapshot.name,
        "label": snapshot.label,
        "form": form,
        "text_field": snapshot.text_field,
        "url_field": snapshot.url_field,
        "files": entries,
    }
    write_json(work.path / LIST_FILE, listing)
    write_lines(work.path / QUARANTINE_FILE, quarantined)
    work.progress.message(f"{len(entries)} archive files, {len(quarantined)} quarantined")
    reasons = sorted(line["reason"] for line in quarantined)
    return Outcome(
        files=(LIST_FILE, QUARANTINE_FILE, *(entry["path"] for entry in entries), *extra),
        counts=Counts(
            records_in=asked,
            kept=len(entries),
            quarantined={reason: reasons.count(reason) for reason in dict.fromkeys(reasons)},
        ),
        metrics={"files": len(entries), "bytes": sum(entry["bytes"] for entry in entries)},
    )


# Bringing files together


def _generate(snapshot: SnapshotRecipe, job: Job, work: Work) -> tuple[int, list[str]]:
    """Let the source write its archives; keep the truth of its pages apart, in `truth/`.

    Return the number of archives and the names of the truth files.
    """
    made = work.scratch / snapshot.source
    shutil.rmtree(made, ignore_errors=True)
    made.mkdir()
    try:
        written = generated.write_archives(snapshot.source, job.settings, snapshot.name, made)
    except RecipeError as error:
        raise RecipeError(f"snapshots.{snapshot.name}: {error}") from None
    truth = work.path / "truth"
    truth.mkdir(exist_ok=True)
    kept = []
    for path in sorted(made.iterdir()):
        if path.name.endswith(SUFFIXES["warc"]):
            os.replace(path, work.path / FOLDER / path.name)
        else:
            os.replace(path, truth / path.name)
            kept.append(f"truth/{path.name}")
    return written, kept


def _bring(snapshot: SnapshotRecipe, expected: list[dict[str, Any]], folder: Path, work: Work) -> int:
    """Copy or download the files that the recipe names, and compare them with the sizes and checksums in the job.

    Return the number of files.
    """
    located = _located(snapshot)
    asked = {entry["name"]: entry for entry in expected} or {entry["name"]: entry for entry in source_files(snapshot)}
    if missing := sorted(asked.keys() ^ located.keys()):
        raise DataError(
            f"snapshots.{snapshot.name}.paths: {missing[0]} has come or gone since the job was written; run again"
        )
    for path in folder.iterdir():
        if path.name not in asked:
            path.unlink()
    for name, location in located.items():
        target = folder / name
        if not _is_whole(target, asked[name]):
            target.unlink(missing_ok=True)
            _bring_one(location, target, work.scratch)
        if not _is_whole(target, asked[name]):
            raise DataError(
                f"{location}: {target.stat().st_size} bytes that differ from the {asked[name]['bytes']} bytes with"
                f" sha256 {asked[name]['sha256'][:12]} that the job was written for; run again"
            )
    return len(asked)


def _is_whole(target: Path, asked: dict[str, Any]) -> bool:
    if not target.exists() or target.stat().st_size != asked["bytes"]:
        return False
    return not asked["sha256"] or sha256_of(target) == asked["sha256"]


def _bring_one(location: str, target: Path, scratch: Path) -> None:
    if is_http(location):
        from training.data.crawl.download import Manners, fetch

        fetch(location, target, scratch, Manners())
    elif is_remote(location):
        _copy_remote(location, target, scratch)
    else:
        _copy(Path(location), target, scratch)


def _copy(source: Path, target: Path, scratch: Path) -> None:
    """Copy a file, so that later changes to the original do not affect the artifact.

    On file systems that support it (Btrfs, XFS and others), original and copy share their blocks until one of them
    changes.
    """
    partial = scratch / f"{target.name}.part"
    with open(source, "rb") as original, open(partial, "wb") as copy:
        try:
            fcntl.ioctl(copy.fileno(), FICLONE, original.fileno())
        except OSError:
            shutil.copyfileobj(original, copy, 1 << 20)
        copy.flush()
        os.fsync(copy.fileno())
    os.replace(partial, target)


def _copy_remote(location: str, target: Path, scratch: Path) -> None:
    """Copy a file from an fsspec URL, resuming where an earlier attempt stopped."""
    partial = scratch / f"{target.name}.part"
    with open_uri(location) as source, open(partial, "ab") as stream:
        if stream.tell() > size_of(location):
            stream.truncate(0)
        source.seek(stream.tell())
        shutil.copyfileobj(source, stream, 1 << 20)
    os.replace(partial, target)


def _fetch_crawl(snapshot: SnapshotRecipe, folder: Path, work: Work) -> int:
    """Download the chosen WARC files of a Common Crawl snapshot according to its listing; return their number."""
    from training.data.crawl.download import Manners, fetch, fetch_all  # requests is slow to import

    manners = Manners()
    base = snapshot.base_url.rstrip("/")
    listing = work.scratch / "warc.paths.gz"
    fetch(f"{base}/crawl-data/{snapshot.crawl}/warc.paths.gz", listing, work.scratch, manners)
    chosen = _chosen_paths(snapshot, listing)
    work.progress.message(f"fetching {len(chosen)} files of {snapshot.crawl} from {base}")
    fetch_all(
        [f"{base}/{path}" for path in chosen],
        [folder / path.rpartition("/")[2] for path in chosen],
        work.scratch,
        manners,
    )
    return len(chosen)


def _chosen_paths(snapshot: SnapshotRecipe, listing: Path) -> list[str]:
    try:
        with gzip.open(listing) as stream:
            text = stream.read(MAX_LISTING_BYTES)
            if stream.read(1):
                raise OSError(f"more than {MAX_LISTING_BYTES} bytes")
        paths = text.decode("ascii").split()
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        listing.unlink()
        raise DataError(f"the listing of {snapshot.crawl} is not gzip text: {error}") from None
    end = snapshot.first_file + snapshot.num_files
    if not 0 <= snapshot.first_file < end <= len(paths):
        raise RecipeError(
            f"snapshots.{snapshot.name}: first_file={snapshot.first_file}, num_files={snapshot.num_files};"
            f" {snapshot.crawl} lists {len(paths)} files, numbered from 0"
        )
    return paths[snapshot.first_file : end]


# Checking files


@dataclass(frozen=True, kw_only=True, slots=True)
class _Problem:
    reason: str
    detail: str


def _problem(path: Path, form: str, snapshot: SnapshotRecipe) -> _Problem | None:
    """Return why a file cannot be used at all; None if it has at least one readable record."""
    if path.stat().st_size == 0:
        return _Problem(reason="empty", detail="0 bytes")
    if form == "warc":
        return _warc_problem(path)
    if form == "text":
        return None
    try:
        fields = _parquet_fields(path) if form == "parquet" else _first_row_fields(path)
    except DataError as error:
        return _Problem(reason="unreadable", detail=str(error).replace(f"{path.parent}/", ""))
    if not fields:
        return _Problem(reason="empty", detail="no rows")
    if form == "parquet" and snapshot.text_field not in fields:
        raise RecipeError(
            f"snapshots.{snapshot.name}.text_field: {path.name} has no column {snapshot.text_field!r}; it has"
            f" {', '.join(sorted(fields))}"
        )
    return None


def _warc_problem(path: Path) -> _Problem | None:
    first: Damage | None = None
    for item in read_warc(path, max_content_bytes=0):
        if isinstance(item, Record):
            return None
        first = first or item
    if first is None:
        return _Problem(reason="empty", detail="no records")
    return _Problem(reason="unreadable", detail=f"no WARC record in it; {first.reason}: {first.detail}")


def _parquet_fields(path: Path) -> list[str]:
    with open_documents(path) as parquet:
        return parquet.schema_arrow.names if parquet.metadata.num_rows else []


def _first_row_fields(path: Path) -> list[str]:
    for row in read_lines(path):
        if not isinstance(row, dict):
            raise DataError(f"expected JSON objects, got {type(row).__name__}")
        return list(row) or [""]
    return []


def read_listing(path: Path) -> dict[str, Any]:
    """The `archives.json` of a crawl artifact at `path`."""
    return json.loads((path / LIST_FILE).read_text("utf-8"))


def truth_files(path: Path) -> Iterator[Path]:
    """Yield the truth files of a crawl artifact at `path`, which only generated sources write."""
    yield from sorted((path / "truth").glob("*.jsonl*"))
