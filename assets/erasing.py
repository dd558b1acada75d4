"""Erase withdrawn pages from everything under a root, and prove by a scan that no words of them are left.

It follows the rebuild of `pedigree takedown` and goes through these steps. Each may be repeated, so whoever kills the
command gives it again.

1. The runs of eight words that occur only in the withdrawn text are noted by their hashes in a file, which stays until
   the proof. Text of other pages, of their raw records and of data that was not crawled does not count as withdrawn.
2. The pages are overwritten in all artifacts of the corpus, also in unfinished and replaced ones and in the trash, and
   their raw records in copied archives.
3. Every file under the root is read. Where noted words are left in a text, such as a sample that a model generated,
   they are masked. Then these files are read again.
4. The report is written, and the hashes are removed.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from assets.chain import CHAIN, descendants
from assets.reach import ARTIFACT, Folder, Folders
from assets.tombstones import FOLDER, Tombstone
from training.artifact import ARTIFACT_FILE, COPY_FILE, commit_record, record_digest
from training.data.address_lists import AddressList
from training.data.crawl.crawl import LIST_FILE, read_listing
from training.data.crawl.warc import DOCUMENT_TYPES, Damage, read_warc
from training.data.dedup.index import remove as remove_index
from training.data.documents import ZSTD_LEVEL, compressing, decompressed, document_id
from training.data.extract.terms import parse_list
from training.data.words.ngrams import Hashes
from training.files.erased import MaskedRecord, erased_in, may_be_erased, note_masked, overwriting
from training.files.writing import is_abandoned, read_sealed, write_sealed, written
from training.provenance.contents import WEIGHTS, NotRead, pieces_of
from training.provenance.erase import (
    Withdrawn,
    erase_archives,
    erase_file,
    erase_signatures,
    erase_suffixes,
)
from training.provenance.grams import count_in, grams_of, is_in, masked
from training.provenance.index import Index
from training.provenance.withdrawal import CRAWL, crawl_of, ids_of, pages_of_entry

FROM_THE_CRAWL = frozenset(descendants(CRAWL)) | {CRAWL}
MOST_PLACES = 20
RECORDS, SEALED = (ARTIFACT_FILE, COPY_FILE), ("job.json",)  # with checksums of their own
OWN = (FOLDER, "takedowns.jsonl", "takedowns.head.json")  # tombstones and reports: addresses and reasons, no text
Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Gone:
    """The withdrawn pages of a root, by crawl. `lists` are for crawls that are in no index."""

    takedown: int
    ids: Mapping[str, frozenset[str]]
    lists: Mapping[str, AddressList]

    def of(self, crawls: Iterable[str]) -> Withdrawn:
        """Return the pages of some crawls."""
        own = set(crawls)
        ids = frozenset().union(*(self.ids.get(one, frozenset()) for one in own))
        known = [self.lists[one] for one in own if one in self.lists]
        return Withdrawn(takedown=self.takedown, ids=ids, addresses=_merged(known) if known else None)


def _merged(lists: Sequence[AddressList]) -> AddressList:
    whole = AddressList()
    for one in lists:
        whole.reasons.update(one.reasons)
    return whole


def gone_of(folders: Sequence[Folder], stones: Sequence[Tombstone], indexes: Sequence[Index], *, cluster: bool) -> Gone:
    """Return the pages that all tombstones withdraw, in every crawl under the root.

    Without `cluster`, near-duplicates of the named pages are left out, because a recipe of the root keeps them.
    """
    ids: dict[str, set[str]] = {}
    for index in indexes:
        crawl, snapshot = crawl_of(index), index.item.partition.partition("@")[2]
        entries = {one.entry for one in _entries(stones, crawl, snapshot, cluster=cluster)}
        for entry in sorted(entries):
            ids.setdefault(crawl, set()).update(ids_of(index, pages_of_entry(index, entry)))
    lists = {}
    for folder in folders:
        if folder.asset == CRAWL and folder.fingerprint not in ids:
            snapshot = folder.partition.partition("@")[2]
            entries = {one.entry for one in _entries(stones, folder.fingerprint, snapshot, cluster=cluster)}
            if entries:
                lists[folder.fingerprint] = parse_list(sorted(entries))
    return Gone(takedown=stones[-1].number, ids={crawl: frozenset(own) for crawl, own in ids.items()}, lists=lists)


def _entries(stones: Sequence[Tombstone], crawl: str, snapshot: str, *, cluster: bool) -> Iterator[Any]:
    for stone in stones:
        yield from (one for one in stone.entries_for(crawl, snapshot) if cluster or not one.cluster)


class Eraser:
    """Erases the pages of `gone` from the folders of a root."""

    def __init__(self, root: Path, gone: Gone, say: Say) -> None:
        self.root, self.gone, self._say = root, gone, say
        self.folders = [one for one in Folders(root).all() if one.asset in FROM_THE_CRAWL]
        self._crawls = _Crawls(self.folders)
        self.unreachable: list[str] = []

    def texts(self, *, of_gone: bool) -> Iterator[list[str]]:
        """Yield texts of the withdrawn pages, or of all others, from the documents and raw records under the root."""
        for folder in self.folders:
            gone = self.gone.of(self._crawls.of(folder))
            for path in _files(folder.path):
                if path.suffix == ".parquet" and path.parent.name in ("documents", "dropped"):
                    yield from _texts_of_rows(path, gone, of_gone=of_gone)
                elif path.parent.name == "truth":
                    yield from _texts_of_lines(path, gone, of_gone=of_gone)
                elif folder.asset == CRAWL and path.parent.name == "archives":
                    own = {
                        int(id_.rpartition("/")[2]) for id_ in self._raw_ids(folder, gone) if f"/{path.name}/" in id_
                    }
                    if of_gone and not own:
                        continue
                    with suppress(NotRead):  # a damaged record is in no documents
                        yield from (
                            one.texts
                            for one in pieces_of(path)
                            if (one.is_damaged and one.offset in own if of_gone else one.offset not in own)
                        )

    def addresses(self) -> list[str]:
        """Return the addresses of the withdrawn pages; their words stay."""
        found: set[str] = set()
        for folder in self.folders:
            gone = self.gone.of(self._crawls.of(folder))
            for path in _files(folder.path) if gone and folder.asset == "extracted_documents" else ():
                if path.suffix == ".parquet":
                    rows = pq.read_table(path, columns=["id", "url"])
                    found |= set(rows.filter(pa.array(gone.among(rows)))["url"].to_pylist())
        return sorted(found)

    def erase(self) -> None:
        """Overwrite the pages everywhere, and remove temporary files of writers that have ended."""
        for path in list(self.root.rglob(".*.tmp")):
            if is_abandoned(path):
                path.unlink(missing_ok=True)
        by_name = {(one.asset, one.fingerprint): one for one in self.folders if one.kind == ARTIFACT}
        for folder in self.folders:
            gone = self.gone.of(self._crawls.of(folder))
            if not gone:
                continue
            count = sum(erase_file(folder.path, path, gone) for path in _files(folder.path))
            # An unfinished job packs texts before it writes documents, and a list of erased files may be of a command
            # that was killed before it came here.
            may_be_packed = count or folder.kind != ARTIFACT or erased_in(folder.path)
            if folder.asset == "deduplicated_documents" and may_be_packed:
                remove_index(folder.path)
            if folder.asset == CRAWL:
                made = erase_archives(folder.path, gone, self._raw_ids(folder, gone))
                count += made.records
                self.unreachable += made.unreachable
            elif folder.asset == "document_signatures":
                count += sum(
                    erase_signatures(folder.path, by_name["filtered_documents", name].path, gone)
                    for asset, name in inputs_of(folder.path) or ()
                    if asset == "filtered_documents" and (asset, name) in by_name
                )
            if count:
                self._say(f"{folder.asset} {folder.fingerprint[:12]}: {count:,} pages overwritten")
        for folder in self.folders:  # after all shards
            if folder.asset == "text_index" and (folder.path / "text_index.json").exists():
                for one in inputs_of(folder.path) or ():
                    if shards := by_name.get(one):
                        erase_suffixes(folder.path, shards.path, self.gone.takedown)

    def erased(self, takedowns: Iterable[int]) -> list[dict[str, Any]]:
        """Return every file that these takedowns have overwritten, with the number of pages, by folder and path."""
        numbers = set(takedowns)
        return [
            {"asset": folder.asset, "folder": folder.path.name, "path": path, "pages": state.pages}
            for folder in self.folders
            for path, states in erased_in(folder.path).items()
            for state in states
            if state.takedown in numbers
        ]

    def _raw_ids(self, folder: Folder, gone: Withdrawn) -> frozenset[str]:
        """Return the ids of the raw records to overwrite; archives in no index are searched by their headers."""
        if gone.addresses is None or not (folder.path / LIST_FILE).exists():
            return gone.ids
        listing, found = read_listing(folder.path), set(gone.ids)
        for entry in listing["files"]:
            if "uri" in entry or listing["form"] != "warc":
                self.unreachable.append(f"{entry['name']}: an archive of {folder.partition} that is in no index")
                continue
            for record in read_warc(folder.path / entry["path"], max_content_bytes=0):
                if isinstance(record, Damage):
                    url = record.url
                elif record.type in DOCUMENT_TYPES:
                    url = record.target_uri
                else:
                    continue
                id_ = document_id(listing["snapshot"], entry["name"], record.offset)
                if gone.addresses.find(url, id_) is not None:
                    found.add(id_)
        return frozenset(found)


class _Crawls:
    """Finds the crawls from which a folder's artifact was made, by the inputs in records and jobs."""

    def __init__(self, folders: Sequence[Folder]) -> None:
        self._by_name: dict[tuple[str, str], list[Folder]] = {}
        for one in folders:
            self._by_name.setdefault((one.asset, one.fingerprint), []).append(one)
        self._all = frozenset(one.fingerprint for one in folders if one.asset == CRAWL)
        self._known: dict[Path, frozenset[str]] = {}

    def of(self, folder: Folder) -> frozenset[str]:
        """Return the fingerprints of the crawls; all of them if an input is not there any more, or nobody knows it."""
        if folder.asset == CRAWL:
            return frozenset({folder.fingerprint})
        if folder.path not in self._known:
            self._known[folder.path] = frozenset()  # ends a circle, which only damage can make
            inputs = inputs_of(folder.path)
            above = [self._by_name.get(one) for one in inputs or ()]
            if inputs is None or None in above:
                self._known[folder.path] = self._all
            else:
                own = [self.of(one) for some in above for one in some or ()]
                self._known[folder.path] = frozenset().union(*own)
        return self._known[folder.path]


def inputs_of(folder: Path) -> list[tuple[str, str]] | None:
    """Return asset and fingerprint of the inputs that came from a crawl, by a folder's record or its job.

    None if neither can be read.
    """
    for name in (ARTIFACT_FILE, COPY_FILE, "job.json"):
        with suppress(OSError, ValueError, KeyError, TypeError):
            entries = json.loads((folder / name).read_text("utf-8"))["inputs"]
            return [(one["asset"], one["fingerprint"]) for one in entries if one["asset"] in FROM_THE_CRAWL]
    return None


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())


def _texts_of_rows(path: Path, gone: Withdrawn, *, of_gone: bool) -> Iterator[list[str]]:
    with pq.ParquetFile(path) as parquet:
        names = parquet.schema_arrow.names
        columns = [name for name in ("id", "url", "text", "title") if name in names]
        if not {"id", "text"} <= set(columns) or (of_gone and not gone):
            return
        for number in range(parquet.num_row_groups):
            rows = parquet.read_row_group(number, columns=columns, use_threads=False)
            own = gone.among(rows) if gone else np.zeros(len(rows), np.bool_)
            rows = rows.filter(pa.array(own == of_gone))
            for name in ("text", "title"):
                if name in columns and len(rows):
                    yield [text for text in rows[name].to_pylist() if text]


def _texts_of_lines(path: Path, gone: Withdrawn, *, of_gone: bool) -> Iterator[list[str]]:
    with open(path, "rb") as stream, decompressed(stream, path.name) as lines:
        for line in lines:
            row = json.loads(line)
            id_ = document_id(row["snapshot"], row["warc_file"], row["warc_offset"])
            is_gone = bool(gone) and gone.has({"id": id_, "url": row.get("url")})
            if is_gone == of_gone:
                yield [value for name, value in row.items() if name in ("text", "title") and value]


# The words that occur only there


def grams_file(root: Path, takedown: int) -> Path:
    """Return the file with the hashes of the words that occur only in withdrawn text; it is removed after the proof."""
    return root / FOLDER / f"{takedown:06d}.grams.npy"


def only_there(eraser: Eraser, root: Path) -> tuple[Hashes, list[dict[str, Any]]]:
    """Return the runs of eight words that occur only in the withdrawn text, sorted, and other sources that have some.

    Other sources are data that were not crawled, such as instructions and exams; their rows are named, and what stands
    in them counts as occurring elsewhere.
    """
    found = [np.empty(0, np.uint64), *(grams_of(texts)[0] for texts in eraser.texts(of_gone=True) if texts)]
    wanted = np.unique(np.concatenate(found))
    stays = np.zeros(len(wanted), np.bool_)
    for texts in (*eraser.texts(of_gone=False), eraser.addresses()):
        if len(wanted) and texts:
            _, seen = count_in(texts, wanted)
            stays |= is_in(wanted, seen)
    wanted = wanted[~stays]
    others, told = np.zeros(len(wanted), np.bool_), []
    for asset in CHAIN:
        for path in _files(root / asset) if asset not in FROM_THE_CRAWL and (root / asset).is_dir() else ():
            number, seen = _hits_in(path, wanted)
            if number:
                others |= is_in(wanted, seen)
                told.append({"path": str(path.relative_to(root)), "runs": number})
    return wanted[~others], told


def _hits_in(path: Path, wanted: Hashes) -> tuple[int, Hashes]:
    seen = [np.empty(0, np.uint64)]
    with suppress(NotRead):
        if not path.name.endswith(WEIGHTS):
            seen += [count_in(one.texts, wanted)[1] for one in pieces_of(path)]
    every = np.unique(np.concatenate(seen))
    return len(every), every


# The scan


@dataclass(kw_only=True)
class Scanned:
    """What the scan of a root has read and found."""

    files: int = 0
    bytes: int = 0
    by_kind: dict[str, dict[str, int]] = field(default_factory=dict)
    hits: list[dict[str, Any]] = field(default_factory=list)  # path, place, runs
    not_read: list[dict[str, Any]] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """Return the result as plain data."""
        return {
            "files": self.files,
            "bytes": self.bytes,
            "by_kind": self.by_kind,
            "hits": self.hits,
            "not_read": self.not_read,
        }


def scan(root: Path, wanted: Hashes, paths: Iterable[Path] | None = None) -> Scanned:
    """Read all files under a root, or these alone, and name the places in which one of the wanted runs stands."""
    found = Scanned()
    for path in files_under(root) if paths is None else paths:
        name = str(path.relative_to(root))
        try:
            size = path.stat().st_size
        except FileNotFoundError:
            continue  # a temporary file
        if path.name.endswith(WEIGHTS):
            _count(found, "safetensors, not read", size)
            continue
        found.files += 1
        found.bytes += size
        _count(found, _kind(path), size)
        try:
            for piece in pieces_of(path):
                number, _ = count_in(piece.texts, wanted)
                if number:
                    found.hits.append({"path": name, "place": piece.place, "runs": number})
        except NotRead as error:
            found.not_read.append({"path": name, "why": str(error)})
        except FileNotFoundError:
            continue
    return found


def files_under(root: Path) -> Iterator[Path]:
    """Yield all files under a root, except the takedowns' own."""
    for place, folders, names in os.walk(root):
        if Path(place) == root:
            folders[:] = [one for one in folders if one != FOLDER]
            names = [one for one in names if one not in OWN]
        folders.sort()
        yield from (path for name in sorted(names) if not (path := Path(place, name)).is_symlink() and path.is_file())


def _kind(path: Path) -> str:
    name = path.name
    return (
        ".warc" if ".warc" in name else "".join(path.suffixes[-2:]) if name.endswith((".gz", ".zst")) else path.suffix
    )


def _count(found: Scanned, kind: str, size: int) -> None:
    own = found.by_kind.setdefault(kind or "without suffix", {"files": 0, "bytes": 0})
    own["files"] += 1
    own["bytes"] += size


# What is left in other texts


def mask(root: Path, hits: Iterable[Mapping[str, Any]], wanted: Hashes, takedown: int) -> list[str]:
    """Mask the wanted runs in the files of these hits; return the files that were changed."""
    changed = []
    for name in sorted({one["path"] for one in hits}):
        path = root / name
        if path.suffix == ".bin":
            continue
        with suppress(sqlite3.Error, pa.ArrowException, UnicodeDecodeError, OSError):
            if _masked_file(root, path, wanted, takedown):
                changed.append(name)
    return changed


def _masked_file(root: Path, path: Path, wanted: Hashes, takedown: int) -> bool:
    if path.name in (*RECORDS, *SEALED):
        return _mask_sealed(path, wanted, takedown)
    with open(path, "rb") as stream:
        if stream.read(16) == b"SQLite format 3\x00":
            return _mask_sqlite(path, wanted)
    folder = next((one for one in path.parents if (one / ARTIFACT_FILE).exists() and root in one.parents), None)
    if folder is not None and not may_be_erased(path.relative_to(folder).as_posix()):
        return False
    if path.suffix == ".parquet":
        content: Any = _masked_rows(path, wanted)
    else:
        with open(path, "rb") as stream, decompressed(stream, path.name) as plain:
            content = masked(plain.read().decode("utf-8"), wanted)
    if folder is None:
        with written(path) as out:
            _write(out, path.name, content)
    else:
        name = path.relative_to(folder).as_posix()
        with overwriting(folder, name, takedown=takedown, is_input=True) as new:
            _write(new.stream, path.name, content)
    return True


def _mask_sealed(path: Path, wanted: Hashes, takedown: int) -> bool:
    """Mask the texts in a record or a job, such as the pages that a gate shows; write its checksum again.

    The record says that it replaces the one before, so that references to that one still hold. For whoever does not
    believe it, the takedown notes both digests beside it.
    """
    fields = read_sealed(path)
    clean = _clean_within(fields, wanted)
    if clean == fields:
        return False  # both a record and its copy were written again
    clean.pop("checksum")
    if path.name in RECORDS:
        before = clean.pop("record_digest", None) or record_digest(fields)
        clean |= {"replaces": sorted({*clean.get("replaces", ()), before})}
        note_masked(path.parent, MaskedRecord(takedown=takedown, before=before, after=record_digest(clean)))
        commit_record(path.parent, clean)
    else:
        write_sealed(path, clean)
    return True


def _clean_within(value: Any, wanted: Hashes) -> Any:
    if isinstance(value, dict):
        return {name: _clean_within(one, wanted) for name, one in value.items()}
    if isinstance(value, list):
        return [_clean_within(one, wanted) for one in value]
    return _clean(value, wanted) if isinstance(value, str) else value


def _write(out: IO[bytes], name: str, content: str | pa.Table) -> None:
    if isinstance(content, pa.Table):
        pq.write_table(content, out, compression="zstd", compression_level=ZSTD_LEVEL)
    else:
        with compressing(out, name) as stream:
            stream.write(content.encode("utf-8"))


def _masked_rows(path: Path, wanted: Hashes) -> pa.Table:
    rows = pq.read_table(path)
    for place, one in enumerate(rows.schema):
        if pa.types.is_string(one.type):
            values = [None if text is None else masked(text, wanted) for text in rows[one.name].to_pylist()]
            rows = rows.set_column(place, one, pa.array(values, one.type))
        elif pa.types.is_list(one.type) and pa.types.is_string(one.type.value_type):
            lists = [
                None if some is None else [masked(text, wanted) for text in some] for some in rows[one.name].to_pylist()
            ]
            rows = rows.set_column(place, one, pa.array(lists, one.type))
    return rows


def _mask_sqlite(path: Path, wanted: Hashes) -> bool:
    """Mask texts in the tables of a database, and write the file again so that removed rows do not stay in it."""
    with closing(sqlite3.connect(path, timeout=60)) as database:
        database.execute("PRAGMA secure_delete = ON")
        tables = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        for table in tables:
            columns = [row[1] for row in database.execute(f'PRAGMA table_info("{table}")')]
            for column in columns:
                some = database.execute(f'SELECT rowid, "{column}" FROM "{table}" WHERE typeof("{column}") = \'text\'')
                changes = [(clean, row) for row, text in some.fetchall() if (clean := _clean(text, wanted)) != text]
                database.executemany(f'UPDATE "{table}" SET "{column}" = ? WHERE rowid = ?', changes)
        database.commit()
        database.execute("VACUUM")
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return True


def _clean(text: str, wanted: Hashes) -> str:
    return masked(text, wanted) if count_in([text], wanted)[0] else text
