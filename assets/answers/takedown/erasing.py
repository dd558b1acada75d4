"""Erase withdrawn pages from everything under a root, and prove by a scan that no words of them are left.

It follows the rebuild of `pedigree takedown` and goes through these steps. Each may be repeated, so whoever kills the
command gives it again.

1. The runs of eight words that occur only in the withdrawn text are noted by their hashes in a file, which stays until
   the proof. Text of other pages, of their raw records and of data that was not crawled does not count as withdrawn.
2. New versions are written of all files that hold the pages: of the artifacts of the corpus, also of unfinished and
   replaced ones and in the trash, and of copied archives. Every file under the root is read as it then will be. Where
   noted words would be left in a text, such as a sample that a model generated, they are masked in a new version too.
3. The new versions take their places together (training/provenance/swap.py). What fails before this leaves everything
   as it was. Suffix arrays are sorted again, and all files that were masked are read again.
4. The report is written, and the hashes are removed.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from assets.answers.gc.needed import ARTIFACT, Folder, Folders
from assets.answers.takedown.masking import texts_of_program
from assets.state.chain import CHAIN, descendants
from assets.state.tombstones import FOLDER, ROW_ASSETS, Tombstone
from training.contract.artifact import ARTIFACT_FILE, COPY_FILE
from training.contract.files.erased import erased_in
from training.contract.files.writing import is_abandoned, regular_bytes
from training.data.address_lists import AddressList
from training.data.crawl.crawl import LIST_FILE, read_listing
from training.data.crawl.warc import DOCUMENT_TYPES, Damage, read_warc
from training.data.dedup.index import remove as remove_index
from training.data.documents import decompressed, document_id, read_lines
from training.data.extract.terms import parse_list
from training.data.words.ngrams import Hashes
from training.posttrain.rows.withdrawn import source_of
from training.provenance.contents import WEIGHTS, NotRead, pieces_of
from training.provenance.erase import (
    Withdrawn,
    erase_archives,
    erase_file,
    erase_signatures,
    erase_suffixes,
)
from training.provenance.grams import count_in, is_in, runs_with_letters
from training.provenance.index import Index
from training.provenance.rows.build import texts_in
from training.provenance.rows.erase import FILES, erase_row_file, erase_row_index
from training.provenance.swap import Swap
from training.provenance.withdrawal import CRAWL, crawl_of, ids_of, pages_of_entry

TEXT_INDEX, ROW_INDEX = "text_index", "row_index"
FROM_THE_CRAWL = frozenset(descendants(CRAWL)) | {CRAWL}
# Tombstones, their lists and the reports: addresses, reasons and hashes, no text. A page's address may be its words.
OWN = re.compile(
    r"takedowns\.(jsonl|head\.json)"
    rf"|{FOLDER}/(\d{{6}}\.((found|report|grams)\.json|report\.md|grams\.npy)|[0-9a-f]{{32}}\.(txt|overwritten\.json))"
)
Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Gone:
    """The withdrawn pages of a root, by crawl. `lists` are for crawls that are in no index."""

    ids: Mapping[str, frozenset[str]]
    lists: Mapping[str, AddressList]
    rows: frozenset[str] = frozenset()  # of post-training: ids, or sources with `#` at the end

    def has_row(self, id_: str) -> bool:
        """Whether a row of post-training is withdrawn."""
        return id_ in self.rows or source_of(id_) in self.rows

    def of(self, crawls: Iterable[str]) -> Withdrawn:
        """Return the pages of some crawls."""
        own = set(crawls)
        ids = frozenset().union(*(self.ids.get(one, frozenset()) for one in own))
        known = [self.lists[one] for one in own if one in self.lists]
        return Withdrawn(ids=ids, addresses=_merged(known) if known else None)


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
    rows = frozenset(row for stone in stones for row in stone.rows)
    return Gone(ids={crawl: frozenset(own) for crawl, own in ids.items()}, lists=lists, rows=rows)


def _entries(stones: Sequence[Tombstone], crawl: str, snapshot: str, *, cluster: bool) -> Iterator[Any]:
    for stone in stones:
        yield from (one for one in stone.entries_for(crawl, snapshot) if cluster or not one.cluster)


class Eraser:
    """Erases the pages of `gone` from the folders of a root."""

    def __init__(self, root: Path, gone: Gone, say: Say) -> None:
        self.root, self.gone, self._say = root, gone, say
        every = Folders(root).all()
        self.folders = [one for one in every if one.asset in FROM_THE_CRAWL]
        self.row_folders = [one for one in every if gone.rows and one.asset in (*ROW_ASSETS, ROW_INDEX)]
        self._crawls = _Crawls(self.folders)
        self._by_name = {(one.asset, one.fingerprint): one for one in self.folders if one.kind == ARTIFACT}
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
                    ids = self._raw_ids(folder, gone)
                    own = {int(id_.rpartition("/")[2]) for id_ in ids if f"/{path.name}/" in id_}
                    with suppress(NotRead, FileNotFoundError):  # a damaged record is in no documents
                        yield from _texts_of_archive(path, read_listing(folder.path)["form"], own, of_gone=of_gone)

        for path in self.row_files() if of_gone else ():
            yield from (list(texts_in(row)) for row in read_lines(path) if self.gone.has_row(row["id"]))

    def row_files(self) -> Iterator[Path]:
        """Yield the files of rows of post-training, if some rows are withdrawn."""
        for folder in self.row_folders:
            yield from (path for name in FILES if (path := folder.path / name).exists())

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

    def erase(self, swap: Swap) -> None:
        """Write new versions of all files that hold the pages; remove temporary files of writers that have ended."""
        for path in list(self.root.rglob(".*.tmp")):
            if is_abandoned(path):
                path.unlink(missing_ok=True)
        for folder in self.folders:
            gone = self.gone.of(self._crawls.of(folder))
            if not gone:
                continue
            count = sum(erase_file(folder.path, path, gone, swap) for path in _files(folder.path))
            # An unfinished job packs texts before it writes documents, and a list of erased files may be of a command
            # that was killed before it came here.
            may_be_packed = count or folder.kind != ARTIFACT or erased_in(folder.path)
            if folder.asset == "deduplicated_documents" and may_be_packed:
                swap.then.append(partial(remove_index, folder.path))
            if folder.asset == CRAWL:
                made = erase_archives(folder.path, self._raw_ids(folder, gone), swap)
                count += made.records
                self.unreachable += made.unreachable
            elif folder.asset == "document_signatures":
                count += sum(
                    erase_signatures(folder.path, documents.path, gone, swap)
                    for one in inputs_of(folder.path) or ()
                    if one[0] == "filtered_documents" and (documents := self._by_name.get(one))
                )
            if count:
                self._say(f"{folder.asset} {folder.fingerprint[:12]}: {count:,} pages to overwrite")

        for folder in self.row_folders:
            count = sum(
                erase_row_file(folder.path, name, self.gone.has_row, swap)
                for name in FILES
                if (folder.path / name).exists()
            )
            if folder.asset == ROW_INDEX:
                count += erase_row_index(folder.path, self.gone.has_row, swap)
            if count:
                self._say(f"{folder.asset} {folder.fingerprint[:12]}: {count:,} rows to overwrite")

    def sort_suffixes(self, swaps: Callable[[], Swap]) -> None:
        """Sort the suffixes of all shards again whose tokens were overwritten."""
        for folder in self.folders:
            if folder.asset == TEXT_INDEX and (folder.path / "text_index.json").exists():
                for one in inputs_of(folder.path) or ():
                    if shards := self._by_name.get(one):
                        with swaps() as swap:
                            erase_suffixes(folder.path, shards.path, swap)
                            swap.commit()

    def erased(self, takedowns: Iterable[int]) -> list[dict[str, Any]]:
        """Return every file that these takedowns have overwritten, with the number of pages, by folder and path."""
        numbers = set(takedowns)
        return [
            {"asset": folder.asset, "folder": folder.path.name, "path": path, "pages": state.pages}
            for folder in (*self.folders, *self.row_folders)
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
            entries = json.loads(regular_bytes(folder / name))["inputs"]
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


def _texts_of_archive(path: Path, form: str, own: set[int], *, of_gone: bool) -> Iterator[list[str]]:
    """Yield the raw texts of an archive that are in no documents: its damaged pages, or all that are not its `own`.

    `own` are the offsets of records, or the numbers of rows. Of pages in other forms every text is in the documents.
    """
    if form == "warc" and (own or not of_gone):
        for one in pieces_of(path):
            if one.is_damaged and one.offset in own if of_gone else one.offset not in own:
                yield one.texts
    elif form == "jsonl" and not of_gone:
        with open(path, "rb") as stream, decompressed(stream, path.name) as lines:
            yield from ([line.decode("utf-8", "replace")] for number, line in enumerate(lines) if number not in own)


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


def only_there(eraser: Eraser, root: Path) -> tuple[Hashes, dict[str, Any]]:
    """Return the runs of eight words that occur only in the withdrawn text, sorted, and what is told of all others.

    A run without letters is nobody's text. `runs_elsewhere` is how many of its runs also stand in pages that stay, in
    this program, or in data that were not crawled, such as instructions and exams: `in_other_sources` names these.
    """
    wanted = runs_with_letters(text for texts in eraser.texts(of_gone=True) for text in texts)
    every, stays = len(wanted), np.zeros(len(wanted), np.bool_)
    for texts in chain(eraser.texts(of_gone=False), [eraser.addresses()], texts_of_program()):
        if len(wanted) and texts:
            _, seen = count_in(texts, wanted)
            stays |= is_in(wanted, seen)
    wanted = wanted[~stays]
    others, told, with_rows = np.zeros(len(wanted), np.bool_), [], set(eraser.row_files())
    for asset in CHAIN:
        for path in _files(root / asset) if asset not in FROM_THE_CRAWL and (root / asset).is_dir() else ():
            number, seen = _hits_in(path, wanted, eraser.gone if path in with_rows else None)
            if number:
                others |= is_in(wanted, seen)
                told.append({"path": str(path.relative_to(root)), "runs": number})
    wanted = wanted[~others]
    return wanted, {"runs_elsewhere": every - len(wanted), "in_other_sources": told}


def _hits_in(path: Path, wanted: Hashes, gone: Gone | None) -> tuple[int, Hashes]:
    """Return the wanted runs in a file, without those in its rows that are `gone`."""
    seen = [np.empty(0, np.uint64)]
    if gone is not None:
        texts = [text for row in read_lines(path) if not gone.has_row(row["id"]) for text in texts_in(row)]
        return count_in(texts, wanted)
    with suppress(NotRead):
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


def scan(root: Path, wanted: Hashes, paths: Iterable[Path] | None = None, swap: Swap | None = None) -> Scanned:
    """Read all files under a root, or these alone, and name the places in which one of the wanted runs stands.

    Files are read as they will be after `swap`.
    """
    found = Scanned()
    for path in files_under(root) if paths is None else paths:
        if swap is not None and swap.is_own(path):
            continue
        name, content = str(path.relative_to(root)), path if swap is None else swap.now(path)
        try:
            size = content.stat().st_size
        except FileNotFoundError:
            continue  # a temporary file
        if not path.name.endswith(WEIGHTS):
            found.files += 1
            found.bytes += size
        _count(found, _kind(path), size)
        read_as(name, content, wanted, found)
    return found


def read_as(name: str, content: Path, wanted: Hashes, found: Scanned) -> None:
    """Read a file under this name, and add to `found` where one of the wanted runs stands, or why it cannot be read."""
    try:
        for piece in pieces_of(content):
            number, _ = count_in(piece.texts, wanted)
            if number:
                found.hits.append({"path": name, "place": piece.place, "runs": number})
    except NotRead as error:
        found.not_read.append({"path": name, "why": str(error)})
    except FileNotFoundError:
        return  # a temporary file


def files_under(root: Path) -> Iterator[Path]:
    """Yield all files under a root, except the takedowns' own."""
    for place, folders, names in os.walk(root):
        folders.sort()
        paths = [path for name in sorted(names) if not (path := Path(place, name)).is_symlink() and path.is_file()]
        yield from (path for path in paths if not OWN.fullmatch(path.relative_to(root).as_posix()))


def _kind(path: Path) -> str:
    name = path.name
    if name.endswith(WEIGHTS):
        return "safetensors, the header alone read"
    return (
        ".warc" if ".warc" in name else "".join(path.suffixes[-2:]) if name.endswith((".gz", ".zst")) else path.suffix
    )


def _count(found: Scanned, kind: str, size: int) -> None:
    own = found.by_kind.setdefault(kind or "without suffix", {"files": 0, "bytes": 0})
    own["files"] += 1
    own["bytes"] += size
