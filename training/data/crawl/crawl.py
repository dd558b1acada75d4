"""Stage `crawl`: collects the archive files of one snapshot, with sizes and checksums.

The files are in `archives/<name>`, sorted by name. `archives.json` lists them and describes their content:

```json
{"snapshot", "label", "form": "warc" | "parquet" | "jsonl" | "files" | "shards" | "reader", "text_field",
 "url_field", "prompt_field", "files": [{"name", "path", "bytes", "sha256"}]}
```

`prompt_field` is there only if the recipe names one. For token shards (training/data/crawl/token_files.py), an entry
lists the files that are read with it as `beside`: those next to the tokens, and the tokenizer. `provenance.json` says
what is not known about such documents.

Local files are copied (as clones where the file system supports it), so that the artifact does not depend on the
originals. Remote files are downloaded, and interrupted downloads resume. Files without a single readable record are
quarantined. The other files of the snapshot's folders are dropped, and listed in `dropped/` with the reason. The counts
are numbers of files.

With `archives: referenced`, nothing is copied: an entry of the list has, instead of a path, what
training/data/crawl/references.py needs to read the file and to recognize it, and `selected/` holds the places of
selected records. Files without a selected record are dropped (`not_selected`).
"""

from __future__ import annotations

import gzip
import json
import os
import shutil
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from training.contract.artifact import sha256_of, write_json
from training.contract.files.writing import Unsealed, regular_bytes, shares_blocks
from training.contract.identity.generated_sources import SOURCES
from training.contract.job import Counts, DataError, Job, Outcome, Work
from training.contract.records import RecipeError
from training.data import generated
from training.data.crawl import selection, token_files
from training.data.crawl.folder import FILES, folder_files, left_out, said_of_files
from training.data.crawl.references import described
from training.data.crawl.settings import SnapshotRecipe
from training.data.crawl.warc import Damage, Record, read_warc
from training.data.documents import open_documents, write_lines
from training.data.sources import (
    DATA_VARIABLE,
    UnreadRow,
    checksum_of,
    expand,
    is_http,
    is_remote,
    json_lines,
    open_uri,
    resolve,
    size_and_tag,
    size_of,
)

SUFFIXES = {
    "warc": (
        ".warc", ".warc.gz", ".warc.zst", ".warc.lz4",
        ".warc.wet", ".warc.wet.gz",
    ),
    "parquet": (".parquet",),
    "jsonl": (".jsonl", ".jsonl.gz", ".jsonl.zst"),
}  # fmt: skip
"""What a folder or a pattern is searched for, by source. A file named by itself may have any name."""

FOLDER = "archives"
SELECTED_FOLDER = "selected"
LIST_FILE = "archives.json"
PROVENANCE_FILE = "provenance.json"  # of token shards
QUARANTINE_FILE = "quarantine/00000.jsonl"
DROPPED_FILE = "dropped/00000.jsonl"  # only where a folder has other files
SHARDS = "shards"
READER = "reader"  # the form of files that a part from outside reads; only the extraction calls it
TEXT_KNOWN = "the text: it is decoded from the tokens, and filtered, deduplicated and scanned like any other"
ADDRESSES = "the address of the page that each document comes from"
NOT_KNOWN = (
    "how the pages were fetched and extracted, and what was dropped before the shards were made",
    "whether a document was cut before it was tokenized",
)
MAX_LISTING_BYTES = 256 << 20  # after decompression; a listing of 90,000 files has 13 million bytes


def source_files(snapshot: SnapshotRecipe) -> list[dict[str, Any]]:
    """Return the name, size and checksum of each file of a snapshot, sorted by name.

    They identify the snapshot independently of where its files are stored. The list is empty for generated snapshots
    and for Common Crawl. The checksum of a remote file is empty, because computing it would mean downloading the file.
    A file that is only referenced has its URI and its ETag too, and one of a folder what is `said` of it. Raise
    DataError if a path leads to no file.
    """
    if snapshot.source in ("commoncrawl", *SOURCES):
        return []
    said = said_of_files(folder_files(snapshot.paths)) if snapshot.source == FILES else {}
    return [
        {"name": name, **_identified(location, snapshot), **({"said": said[name]} if name in said else {})}
        for name, location in located(snapshot).items()
    ]


def _identified(location: str, snapshot: SnapshotRecipe) -> dict[str, Any]:
    if snapshot.is_referenced:
        return _described(location)
    return {"bytes": size_of(location), "sha256": "" if is_remote(location) else checksum_of(location)}


def index_files(snapshot: SnapshotRecipe) -> list[dict[str, Any]]:
    """Return URI, size, ETag and checksum of each index file in `select`; empty for a snapshot without `select`."""
    if snapshot.select is None:
        return []
    return [_described(location) for location in expand(snapshot.select.index, selection.SUFFIXES)]


def _described(location: str) -> dict[str, Any]:
    return described(location, _uri_of(location))


def _uri_of(location: str) -> str:
    """Return the URI under which every machine finds a file: `data://…` if the file is in the folder PEDIGREE_DATA."""
    if is_remote(location):
        return location
    absolute, folder = os.path.abspath(location), os.environ.get(DATA_VARIABLE, "")
    if folder and absolute.startswith(f"{os.path.abspath(folder)}/"):
        return f"data://{os.path.relpath(absolute, os.path.abspath(folder))}"
    return absolute


def located(snapshot: SnapshotRecipe) -> dict[str, str]:
    """Return the location of each of the snapshot's files by file name, sorted by name.

    Raise RecipeError if two files have the same name.
    """
    found: dict[str, str] = {}
    if snapshot.source == FILES:
        places = [(file.name, file.location) for file in folder_files(snapshot.paths)]
    else:
        places = [(location.rpartition("/")[2], location) for location in _locations(snapshot)]
    for name, location in places:
        if name in found:
            raise RecipeError(
                f"snapshots.{snapshot.name}.paths: {found[name]} and {location} have the same name {name!r};"
                " documents are identified by it, so file names must differ within a snapshot"
            )
        found[name] = location
    return found


def _locations(snapshot: SnapshotRecipe) -> list[str]:
    if snapshot.source == SHARDS:
        return [*token_files.located(snapshot.paths), token_files.tokenizer_file(snapshot.tokenizer or "")]
    return expand(snapshot.paths, _suffixes(snapshot))


def _suffixes(snapshot: SnapshotRecipe) -> tuple[str, ...]:
    """Return how the names of the source's files end; empty where the name alone does not say it."""
    return snapshot.reader.reader.suffixes if snapshot.reader else SUFFIXES.get(snapshot.source, ())


def run(job: Job, work: Work) -> Outcome:
    """Collect the snapshot's files, check each one and list them."""
    snapshot = job.settings_as(SnapshotRecipe, "snapshot")
    if snapshot.is_referenced:
        return _referenced(snapshot, job, work)
    folder = work.path / FOLDER
    folder.mkdir(exist_ok=True)
    extra: list[str] = []
    if snapshot.source in SOURCES:
        asked, extra = _generate(snapshot, job, work)
    elif snapshot.source == "commoncrawl":
        asked = _fetch_crawl(snapshot, folder, work)
    else:
        asked = _bring(snapshot, job.settings.get("files", []), folder, work)
    brought = {path.name: path for path in sorted(folder.iterdir())}
    archives = brought
    if snapshot.source == SHARDS:
        archives = {name: path for name, path in brought.items() if name.endswith(token_files.SUFFIXES)}
        asked = len(archives)
        write_json(work.path / PROVENANCE_FILE, provenance(snapshot, brought))
        extra = [PROVENANCE_FILE]
    found, files = _ListedFiles(), job.settings.get("files") or []
    said = {entry["name"]: {"said": entry["said"]} for entry in files if "said" in entry}
    for name, path in archives.items():
        if found.is_readable(path, snapshot):
            entry = {"name": name, "path": f"{FOLDER}/{name}", "bytes": path.stat().st_size, "sha256": sha256_of(path)}
            found.entries.append(entry | said.get(name, {}) | _beside(name, brought, snapshot))
    paths = {place for entry in found.entries for place in (entry["path"], *entry.get("beside", ()))}
    return _listed(snapshot, work, asked, found, (*sorted(paths), *extra))


def _beside(name: str, brought: Mapping[str, Path], snapshot: SnapshotRecipe) -> dict[str, list[str]]:
    """Return the listing's field `beside` of a token file; an empty mapping for any other archive."""
    if snapshot.source != SHARDS:
        return {}
    names = [*(other for other in token_files.beside(name) if other in brought), _tokenizer_name(snapshot)]
    return {"beside": [f"{FOLDER}/{other}" for other in names]}


def _tokenizer_name(snapshot: SnapshotRecipe) -> str:
    return os.path.basename(token_files.tokenizer_file(snapshot.tokenizer or ""))


def provenance(snapshot: SnapshotRecipe, brought: Mapping[str, Path]) -> dict[str, Any]:
    """Return what is known and what is not known about documents that are decoded from token shards."""
    are_named = any(name.endswith(token_files.SIDECAR) for name in brought)
    return {
        "tokenizer_sha256": sha256_of(brought[_tokenizer_name(snapshot)]),
        "known": [TEXT_KNOWN, *([ADDRESSES] if are_named else [])],
        "not_known": [*([] if are_named else [ADDRESSES]), *NOT_KNOWN],
    }


@dataclass(kw_only=True, slots=True)
class _ListedFiles:
    """The files of a snapshot's listing, divided into readable, unreadable and dropped ones.

    It holds entries of readable files, quarantine rows of unreadable ones, and counts of dropped files by reason.
    """

    entries: list[dict[str, Any]] = field(default_factory=list)
    quarantined: list[dict[str, Any]] = field(default_factory=list)
    dropped: Counter[str] = field(default_factory=Counter)

    def is_readable(self, path: Path, snapshot: SnapshotRecipe) -> bool:
        """Whether a file has a readable record; a file without one is added to the quarantined files."""
        problem = problem_of(path, _form(snapshot), text_field=snapshot.text_field, snapshot=snapshot.name)
        if problem is not None:
            self.quarantined.append(
                {"warc_file": path.name, "warc_offset": 0, "reason": problem.reason, "detail": problem.detail}
            )
        return problem is None


def _form(snapshot: SnapshotRecipe) -> str:
    if snapshot.reader is not None:
        return READER
    return snapshot.source if snapshot.source in (*SUFFIXES, SHARDS, FILES) else "warc"


def _listed(snapshot: SnapshotRecipe, work: Work, asked: int, found: _ListedFiles, files: Iterable[str]) -> Outcome:
    """Write the listing of the readable files, `archives.json`, and the quarantined files; return the stage's outcome.

    `asked` is the number of archives requested. `files` are further files of the artifact. Raise DataError if no file
    is left to list.
    """
    left = left_out(snapshot.paths, located(snapshot).values(), _suffixes(snapshot)) if snapshot.paths else []
    if not found.entries:
        if not found.quarantined:
            raise DataError(f"snapshots.{snapshot.name}.select: no record of its {asked} archives is selected")
        first = found.quarantined[0]
        raise DataError(
            f"snapshots.{snapshot.name}: no readable file; {first['warc_file']} is {first['reason']}: {first['detail']}"
        )
    listing = {
        "snapshot": snapshot.name,
        "label": snapshot.label,
        "form": _form(snapshot),
        "text_field": snapshot.text_field,
        "url_field": snapshot.url_field,
        **({"prompt_field": snapshot.prompt_field} if snapshot.prompt_field else {}),
        "files": found.entries,
    }
    write_json(work.path / LIST_FILE, listing)
    write_lines(work.path / QUARANTINE_FILE, found.quarantined)
    if left:
        write_lines(work.path / DROPPED_FILE, ({"warc_file": path, "reason": why} for path, why in left))
    dropped = found.dropped + Counter(why for _, why in left)
    counted = "".join(f", {number} {why}" for why, number in dropped.items())
    work.progress.message(f"{len(found.entries)} archive files, {len(found.quarantined)} quarantined{counted}")
    reasons = sorted(line["reason"] for line in found.quarantined)
    return Outcome(
        files=(LIST_FILE, QUARANTINE_FILE, *([DROPPED_FILE] if left else []), *files),
        counts=Counts(
            records_in=asked + len(left),
            kept=len(found.entries),
            dropped=dict(dropped),
            quarantined={reason: reasons.count(reason) for reason in dict.fromkeys(reasons)},
        ),
        metrics={"files": len(found.entries), "bytes": sum(entry["bytes"] or 0 for entry in found.entries)},
    )


# Archives that stay where they are


def _referenced(snapshot: SnapshotRecipe, job: Job, work: Work) -> Outcome:
    """List archives without copying them: remote ones are not read, and only the first record of local ones is read."""
    asked: list[dict[str, Any]]
    if snapshot.source == "commoncrawl":
        base = snapshot.base_url.rstrip("/")
        asked = [
            {"name": path.rpartition("/")[2], "uri": f"{base}/{path}", "bytes": None, "etag": "", "sha256": ""}
            for path in _crawl_paths(snapshot, work)
        ]
    else:
        asked = job.settings.get("files") or source_files(snapshot)
    chosen, counts = _selected(snapshot, job, [entry["name"] for entry in asked])
    found, files = _ListedFiles(), []
    for entry in asked:
        name = entry["name"]
        if snapshot.select and name not in chosen:
            found.dropped["not_selected"] += 1
            continue
        location = resolve(entry["uri"])
        if not is_remote(location):
            _check_listed(location, entry)
            if not found.is_readable(Path(location), snapshot):
                continue
        place = ""
        if snapshot.select:
            place = f"{SELECTED_FOLDER}/{name}.json"
            offsets, lengths = chosen[name].in_order(name)
            gap = snapshot.select.max_gap_bytes
            write_json(work.path / place, {"offsets": offsets, "lengths": lengths, "max_gap_bytes": gap})
            files.append(place)
        found.entries.append({**entry, "selected": place})
    outcome = _listed(snapshot, work, len(asked), found, files)
    return replace(outcome, notes={"index": counts}) if counts else outcome


def _selected(
    snapshot: SnapshotRecipe, job: Job, names: list[str]
) -> tuple[Mapping[str, selection.Chosen], Mapping[str, int]]:
    """Return the selected records of the archives `names`, and counts of the index's records.

    Both are empty for a snapshot that selects no records.
    """
    if snapshot.select is None:
        return {}, {}
    index = job.settings.get("index") or index_files(snapshot)
    for entry in index:
        location = resolve(entry["uri"])
        if is_remote(location):
            found: tuple[Any, ...] = size_and_tag(location)
            is_same = found[1] == entry["etag"] and entry["bytes"] in (None, found[0])
        else:
            is_same = os.path.isfile(location) and checksum_of(location) == entry["sha256"]
        if not is_same:
            raise DataError(f"{entry['uri']}: the index changed since the job was written; run again")
    return selection.selected(snapshot.select, [entry["uri"] for entry in index], frozenset(names))


def _check_listed(location: str, entry: Mapping[str, Any]) -> None:
    """Raise DataError if a local file is gone or has another size.

    The rank that reads the file compares its checksum later.
    """
    if not os.path.isfile(location) or os.path.getsize(location) != entry["bytes"]:
        raise DataError(f"{entry['uri']}: the file changed since the job was written; run again")


# Bringing files together


def _generate(snapshot: SnapshotRecipe, job: Job, work: Work) -> tuple[int, list[str]]:
    """Let a generated source write the archives of its snapshot, and the truth of its pages into the folder `truth/`.

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
    found = located(snapshot)
    asked = {entry["name"]: entry for entry in expected} or {entry["name"]: entry for entry in source_files(snapshot)}
    if missing := sorted(asked.keys() ^ found.keys()):
        raise DataError(
            f"snapshots.{snapshot.name}.paths: {missing[0]} has come or gone since the job was written; run again"
        )
    for path in folder.iterdir():
        if path.name not in asked:
            path.unlink()
    for name, location in found.items():
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
        if not shares_blocks(original, copy):
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
    from training.data.crawl.download import Manners, fetch_all  # requests is slow to import

    base = snapshot.base_url.rstrip("/")
    chosen = _crawl_paths(snapshot, work)
    work.progress.message(f"fetching {len(chosen)} files of {snapshot.crawl} from {base}")
    fetch_all(
        [f"{base}/{path}" for path in chosen],
        [folder / path.rpartition("/")[2] for path in chosen],
        work.scratch,
        Manners(),
    )
    return len(chosen)


def _crawl_paths(snapshot: SnapshotRecipe, work: Work) -> list[str]:
    """Return the paths of the chosen WARC files of a Common Crawl snapshot, relative to Common Crawl's address."""
    from training.data.crawl.download import Manners, fetch

    listing = work.scratch / "warc.paths.gz"
    url = f"{snapshot.base_url.rstrip('/')}/crawl-data/{snapshot.crawl}/warc.paths.gz"
    fetch(url, listing, work.scratch, Manners())
    return _chosen_paths(snapshot, listing)


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
class Problem:
    """The reason why a file of a snapshot cannot be used at all."""

    reason: str
    detail: str


def problem_of(path: Path, form: str, *, text_field: str, snapshot: str) -> Problem | None:
    """Return why a file cannot be used at all; None if it has at least one readable record."""
    if path.stat().st_size == 0:
        return Problem(reason="empty", detail="0 bytes")
    if form == "warc":
        return _warc_problem(path)
    if form in (FILES, READER):
        return None
    if form == SHARDS:
        return _shard_problem(path)
    try:
        fields = _parquet_fields(path) if form == "parquet" else _first_row_fields(path)
    except DataError as error:
        return Problem(reason="unreadable", detail=str(error).replace(f"{path.parent}/", ""))
    if not fields:
        return Problem(reason="empty", detail="no rows")
    if form == "parquet" and text_field not in fields:
        raise RecipeError(
            f"snapshots.{snapshot}.text_field: {path.name} has no column {text_field!r}; it has"
            f" {', '.join(sorted(fields))}"
        )
    return None


def _warc_problem(path: Path) -> Problem | None:
    first: Damage | None = None
    for item in read_warc(path, max_content_bytes=0):
        if isinstance(item, Record):
            return None
        first = first or item
    if first is None:
        return Problem(reason="empty", detail="no records")
    return Problem(reason="unreadable", detail=f"no WARC record in it; {first.reason}: {first.detail}")


def _shard_problem(path: Path) -> Problem | None:
    try:
        token_files.open_token_file(path)
    except DataError as error:
        return Problem(reason="unreadable", detail=str(error))
    return None


def _parquet_fields(path: Path) -> list[str]:
    with open_documents(path) as parquet:
        return parquet.schema_arrow.names if parquet.metadata.num_rows else []


def _first_row_fields(path: Path) -> list[str]:
    """Return the names in the first row that can be read. Raise DataError if a file with lines has none."""
    first: UnreadRow | None = None
    with open(path, "rb") as stream:
        for row in json_lines(stream, str(path), with_unread=True):
            if not isinstance(row, UnreadRow):
                return list(row) or [""]
            first = first or row
    if first:
        raise DataError(f"line {first['line']} {first.reason}")
    return []


def read_listing(path: Path) -> dict[str, Any]:
    """Return the content of `archives.json`, the list of files in a crawl artifact at `path`."""
    try:
        return json.loads(regular_bytes(path / LIST_FILE))
    except Unsealed as error:
        raise DataError(f"{path}: {error}") from None
