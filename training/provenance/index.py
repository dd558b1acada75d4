"""Open provenance indexes, and find pages in them by id, URL, domain and by what they repeat.

An index says which places may hold a page. `Index.rows` reads them, so an answer never rests on a hash alone.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from training.contract.job import InputArtifact, RefusedInput
from training.data.documents import document_id, read_lines
from training.data.urls import Key, key_of
from training.order.documents import mapped
from training.provenance import layout
from training.provenance.file_verification import sound
from training.provenance.layout import HOSTS_IN_BLOCK, KEPT_KIND, KINDS, QUARANTINED, hash_of

AT_ONCE = 1 << 20  # entries of an array
COMMON = ("id", "url", "warc_file", "warc_offset")  # columns of every place
FACTS = (
    "reason",
    "duplicate_of",
    "similarity",
    "survivor",
    "benchmark",
    "item",
    "part",
    "span",
    "value",
    "limit",
    "redactions",
    "detail",
)


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a page: the kind of file, the rank, the rank's shard, and the row in the file."""

    kind: int
    rank: int
    part: int
    row: int


class Index:
    """The pages of one snapshot. `inputs` are the artifacts that the index was made from, by asset."""

    def __init__(self, item: InputArtifact, inputs: Mapping[str, InputArtifact], folder: Path) -> None:
        self.item, self.inputs = item, inputs
        self._files: dict[int, list[str]] = {}  # the files of a kind, in the order of ranks
        arrays = mapped(folder, *(name for name in layout.FILES if name.endswith(".npy")))
        self._arrays = dict(zip([name for name in layout.FILES if name.endswith(".npy")], arrays, strict=True))
        hosts = folder / layout.HOSTS_FILE
        self._hosts = np.memmap(hosts, np.uint8, "r") if hosts.stat().st_size else np.empty(0, np.uint8)
        self.reasons: list[str] = json.loads((folder / layout.REASON_LIST_FILE).read_text("utf-8"))
        self.places = self._arrays[layout.PLACES_FILE]
        self._check()

    def _check(self) -> None:
        """Raise RefusedInput if the arrays do not fit together."""
        lengths = {len(self._arrays[name]) for name in (layout.REASONS_FILE, layout.IDS_FILE, layout.URL_PAGES_FILE)}
        lengths |= {int(self._arrays[layout.HOST_PAGES_FILE].sum())}
        if len(lengths) > 1:
            raise self.item.refused(f"its arrays have {' and '.join(map(str, sorted(lengths)))} pages")

    def __len__(self) -> int:
        return len(self._arrays[layout.REASONS_FILE])

    # Finding

    def pages_of_id(self, id_: str) -> np.ndarray:
        """Return the pages that may have this id: their ids have the same hash."""
        return self._with_hash(layout.IDS_FILE, layout.ID_PAGES_FILE, hash_of(id_))

    def pages_of_ids(self, ids: Collection[str]) -> np.ndarray:
        """Return the pages that may have one of these ids, without repeats."""
        hashes = np.array(sorted({hash_of(one) for one in ids}), np.uint32)
        return self._with_any_hash(layout.IDS_FILE, layout.ID_PAGES_FILE, hashes)

    def id_hashes(self, pages: np.ndarray) -> np.ndarray:
        """Return the hashes of the ids of these pages, uint32, without reading a page. Pages are sorted, each once."""
        own, numbers = self._arrays[layout.IDS_FILE], self._arrays[layout.ID_PAGES_FILE]
        is_asked = np.zeros(len(self), bool)
        is_asked[pages] = True
        places = [at + np.flatnonzero(is_asked[numbers[at : at + AT_ONCE]]) for at in range(0, len(numbers), AT_ONCE)]
        found = np.concatenate(places) if places else np.empty(0, np.int64)
        return own[found][np.argsort(numbers[found])]

    def have_copies(self, hashes: np.ndarray) -> np.ndarray:
        """Return which of the hashes of ids stand for a document of which a page of this snapshot may be a copy."""
        own = self._arrays[layout.KEPT_FILE]
        return np.searchsorted(own, hashes, "left") < np.searchsorted(own, hashes, "right")

    def copies_of_any(self, hashes: np.ndarray) -> np.ndarray:
        """Return the pages that may be dropped copies of documents whose ids have these hashes, without repeats."""
        return self._with_any_hash(layout.KEPT_FILE, layout.COPIES_FILE, hashes)

    def _with_any_hash(self, hashes: str, pages: str, wanted: np.ndarray) -> np.ndarray:
        own = self._arrays[hashes]
        low, high = np.searchsorted(own, wanted, "left"), np.searchsorted(own, wanted, "right")
        counts = high - low
        places = np.arange(counts.sum()) + np.repeat(low - np.cumsum(counts) + counts, counts)
        return np.unique(self._arrays[pages][places]).astype(np.int64)

    def _with_hash(self, hashes: str, pages: str, wanted: int, start: int = 0, stop: int | None = None) -> np.ndarray:
        own = self._arrays[hashes][start:stop]
        key = np.array(wanted, own.dtype)
        low, high = np.searchsorted(own, key, "left"), np.searchsorted(own, key, "right")
        return np.array(self._arrays[pages][start + low : start + high], dtype=np.int64)

    def pages_of_key(self, key: Key) -> np.ndarray:
        """Return the pages that may have the key of a URL: pages of its host with the same hash."""
        start, stop = self._pages_between(key.host)
        return self._with_hash(layout.URLS_FILE, layout.URL_PAGES_FILE, hash_of(key.rest), start, stop)

    def pages_of_host(self, turned: str) -> np.ndarray:
        """Return the pages of the host with this reversed name, without hosts below it."""
        start, stop = self._pages_between(turned)
        return np.array(self._arrays[layout.URL_PAGES_FILE][start:stop], dtype=np.int64)

    def _pages_between(self, turned: str) -> tuple[int, int]:
        host = self._first_host(turned)
        if host >= self.num_hosts or self._host(host) != turned:
            return 0, 0
        return self._first_page(host), self._first_page(host + 1)

    def hosts_of_domain(self, turned: str) -> list[tuple[int, int]]:
        """Return the ranges of hosts that belong to a domain: the domain itself, and all hosts below it.

        `turned` is the reversed domain.
        """
        own = self._first_host(turned)
        itself = [(own, own + 1)] if own < self.num_hosts and self._host(own) == turned else []
        below = self._first_host(turned + ","), self._first_host(turned + "-")  # "-" follows "," in ASCII
        return [*itself, *([below] if below[0] < below[1] else [])]

    @property
    def num_hosts(self) -> int:
        """The number of hosts."""
        return len(self._arrays[layout.HOST_PAGES_FILE])

    def pages_of_hosts(self, first: int, stop: int) -> np.ndarray:
        """Return the pages of the hosts from `first` to before `stop`, by host and URL."""
        start, end = self._first_page(first), self._first_page(stop)
        return np.array(self._arrays[layout.URL_PAGES_FILE][start:end], dtype=np.int64)

    def named_hosts(self, first: int, stop: int) -> list[tuple[str, int]]:
        """Return the reversed names of hosts and their numbers of pages."""
        counts = self._arrays[layout.HOST_PAGES_FILE][first:stop].tolist()
        return [(self._host(first + number), count) for number, count in enumerate(counts)]

    def _first_page(self, host: int) -> int:
        """Return the first page of a host, in the order of URLs.

        For the number after the last host, the result is the number of all pages.
        """
        if host >= self.num_hosts:
            return len(self)
        block = host // HOSTS_IN_BLOCK
        counts = self._arrays[layout.HOST_PAGES_FILE][block * HOSTS_IN_BLOCK : host]
        return int(self._arrays[layout.HOST_BLOCKS_FILE][1, block]) + int(counts.sum(dtype=np.int64))

    def _first_host(self, turned: str) -> int:
        """Return the number of the first host that is not before `turned` in the sorted list."""
        wanted, low, high = turned.encode(), 0, self._arrays[layout.HOST_BLOCKS_FILE].shape[1]
        while low < high:  # the first block that begins after `wanted`
            middle = (low + high) // 2
            if next(self._block(middle)) <= wanted:
                low = middle + 1
            else:
                high = middle
        if low == 0:
            return 0
        for number, name in enumerate(self._block(low - 1), (low - 1) * HOSTS_IN_BLOCK):
            if name >= wanted:
                return number
        return min(low * HOSTS_IN_BLOCK, self.num_hosts)

    def _host(self, number: int) -> str:
        block = self._block(number // HOSTS_IN_BLOCK)
        for _ in range(number % HOSTS_IN_BLOCK):
            next(block)
        return next(block).decode()

    def _block(self, block: int) -> Iterator[bytes]:
        """Yield the names in a block of hosts."""
        at = int(self._arrays[layout.HOST_BLOCKS_FILE][0, block])
        sizes = self._arrays[layout.HOST_SIZES_FILE][:, block * HOSTS_IN_BLOCK : (block + 1) * HOSTS_IN_BLOCK]
        name = b""
        for shared, own in sizes.T.tolist():
            name = name[:shared] + self._hosts[at : at + own].tobytes()
            at += own
            yield name

    # What became of pages

    def where(self, pages: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the column of `places` in which each page is, and its row in that file, int64."""
        own = np.searchsorted(self.places[layout.FIRST], pages, side="right") - 1
        return own, pages - self.places[layout.FIRST][own]

    def places_of(self, pages: np.ndarray) -> list[Place]:
        """Return the places of these pages."""
        own, rows = self.where(pages)
        _, *fields = self.places[:, own]
        return [Place(*place) for place in zip(*(field.tolist() for field in (*fields, rows)), strict=True)]

    def kinds_of(self, pages: np.ndarray) -> np.ndarray:
        """Return, for each page, the number of its kind of place (layout.KINDS), int64."""
        return self.places[layout.KIND][self.where(pages)[0]]

    def outcomes(self, pages: np.ndarray) -> dict[tuple[int, str], int]:
        """Count these pages by kind of place and reason."""
        kinds = self.kinds_of(pages)
        pairs, counts = np.unique(
            np.stack([kinds, self._arrays[layout.REASONS_FILE][pages].astype(np.int64)]), axis=1, return_counts=True
        )
        return {
            (kind, self.reasons[reason]): count
            for (kind, reason), count in zip(pairs.T.tolist(), counts.tolist(), strict=True)
        }

    def are_withdrawn(self, pages: np.ndarray) -> np.ndarray:
        """Return whether each page was dropped by a takedown list before it was read, bool."""
        own = [number for number, reason in enumerate(self.reasons) if reason.partition(":")[0] == "takedown"]
        return np.isin(self._arrays[layout.REASONS_FILE][pages], own)

    def rows(
        self,
        pages: np.ndarray,
        wanted: Callable[[Mapping[str, Any]], bool] | None = None,
        columns: Sequence[str] = (),
    ) -> list[FoundPage]:
        """Read these pages from their places, in the order given; with `columns`, no more than these are read.

        Pages whose row is not `wanted` are left out, because a hash also finds pages with another id or URL.
        """
        places = self.places_of(pages)
        files: dict[tuple[int, int, int], list[int]] = {}
        for number, place in enumerate(places):
            files.setdefault((place.kind, place.rank, place.part), []).append(number)
        found: dict[int, FoundPage] = {}
        for numbers in files.values():
            read = self._read([places[number] for number in numbers], columns)
            for number, row in zip(numbers, read, strict=True):
                if wanted is None or wanted(row):
                    found[number] = FoundPage(self, int(pages[number]), places[number], row)
        return [found[number] for number in sorted(found)]

    def file_of(self, place: Place) -> str:
        """Return the name of the file in its artifact."""
        if place.kind == KEPT_KIND:
            return layout.shard_of(place.rank, place.part)
        if place.kind not in self._files:
            self._files[place.kind] = layout.files_of(self.inputs[KINDS[place.kind].asset], place.kind)
        return self._files[place.kind][place.rank]

    def _read(self, places: Sequence[Place], columns: Sequence[str]) -> list[dict[str, Any]]:
        kind, item = KINDS[places[0].kind], self.inputs[KINDS[places[0].kind].asset]
        path = sound(item, self.file_of(places[0]))
        if kind.outcome == QUARANTINED:
            lines = list(read_lines(path))
            snapshot = item.partition.partition("@")[2]
            chosen = [lines[place.row] for place in places]
            return [{**row, "id": document_id(snapshot, row["warc_file"], row["warc_offset"])} for row in chosen]
        more = ("source", "tokens", "sha256") if places[0].kind == KEPT_KIND else FACTS
        return read_rows(path, [place.row for place in places], columns or (*COMMON, *more))


@dataclass(frozen=True, slots=True)
class FoundPage:
    """A page that was found: its index, its number in the index, its place, and the row read from there."""

    index: Index
    page: int
    place: Place
    row: dict[str, Any]


class RowGroups:
    """Row groups of parquet files, read when they are needed; those used last stay in memory, up to `most_bytes`."""

    def __init__(self, columns: Sequence[str], *, most_bytes: int = 0) -> None:
        self.columns, self.most_bytes = columns, most_bytes
        self._starts: dict[Path, np.ndarray] = {}
        self._tables: dict[tuple[Path, int], pa.Table] = {}  # the one used last comes last
        self.kept_bytes = 0
        self._lock = Lock()  # several threads may read

    def __contains__(self, path: Path) -> bool:
        """Whether something of a file was read before."""
        return path in self._starts

    def rows(self, path: Path, rows: Sequence[int]) -> list[dict[str, Any]]:
        """Return rows of a file by number, with those of the columns that the file has."""
        return rows_of(self.table(path, rows)) if rows else []

    def table(self, path: Path, rows: Sequence[int]) -> pa.Table:
        """Return rows of a file by number, at least one, as a table with those of the columns that the file has."""
        wanted = np.array(rows)
        groups = self._groups_of(path, wanted)
        tables, places = [], []
        for group, table in self._read(path, np.unique(groups).tolist()):
            own = np.flatnonzero(groups == group)
            tables.append(table.take(_numbers(wanted[own] - self._starts[path][group])))
            places.append(own)
        return in_order(tables, places)

    def _groups_of(self, path: Path, rows: np.ndarray) -> np.ndarray:
        if path not in self._starts:
            metadata = pq.read_metadata(path)
            sizes = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
            self._starts[path] = np.cumsum([0, *sizes])
        return np.searchsorted(self._starts[path], rows, side="right") - 1

    def _read(self, path: Path, groups: Sequence[int]) -> Iterator[tuple[int, pa.Table]]:
        """Yield row groups of a file in order. The file is opened if one of them is not in memory."""
        with ExitStack() as stack:
            parquet: pq.ParquetFile | None = None
            for group in groups:
                with self._lock:
                    table = self._tables.pop((path, group), None)
                    self.kept_bytes -= table.nbytes if table is not None else 0
                if table is None:
                    if parquet is None:
                        parquet = stack.enter_context(pq.ParquetFile(path, memory_map=True))
                    names = [name for name in self.columns if name in parquet.schema_arrow.names]
                    table = parquet.read_row_group(group, columns=names, use_threads=False)
                with self._lock:
                    self._tables[path, group] = table
                    self.kept_bytes += table.nbytes
                    while self.kept_bytes > self.most_bytes:
                        self.kept_bytes -= self._tables.pop(next(iter(self._tables))).nbytes
                yield group, table


def _numbers(own: np.ndarray) -> pa.Array:
    """Return numbers as an array of pyarrow. `pyarrow.array` imports pandas, which takes longer than a question."""
    return pa.Array.from_buffers(pa.int64(), len(own), [None, pa.py_buffer(own.astype(np.int64))])


def in_order(tables: Sequence[pa.Table], places: Sequence[Sequence[int] | np.ndarray]) -> pa.Table:
    """Return tables of equal columns as one, in which the rows of each are at the places given for it."""
    if len(tables) == 1 and np.array_equal(places[0], np.arange(len(tables[0]))):
        return tables[0]
    at = np.argsort(np.concatenate(places))
    return pa.concat_tables(tables).combine_chunks().take(_numbers(at))


def rows_of(table: pa.Table) -> list[dict[str, Any]]:
    """Return the rows of a table."""
    names, columns = table.column_names, [column.to_pylist() for column in table.columns]
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def read_rows(path: Path, rows: Sequence[int], columns: Sequence[str]) -> list[dict[str, Any]]:
    """Read rows of a parquet file by number, and those of `columns` that the file has.

    Only the row groups with these rows are read.
    """
    return RowGroups(columns).rows(path, rows)


def find_id(indexes: Sequence[Index], id_: str) -> list[FoundPage]:
    """Return the page with an id, in a list that is empty if no index has it."""
    return [found for index in indexes for found in index.rows(index.pages_of_id(id_), lambda row: row["id"] == id_)]


def find_url(indexes: Sequence[Index], url: str) -> list[FoundPage]:
    """Return the pages of all snapshots whose URL has the same key."""
    key = key_of(url)
    return [
        found
        for index in indexes
        for found in index.rows(index.pages_of_key(key), lambda row: key_of(row["url"]) == key)
    ]


def check_index(item: InputArtifact, made_of: Mapping[str, InputArtifact]) -> None:
    """Raise RefusedInput unless an index was made from exactly these artifacts."""
    for entry in item.record()["inputs"]:
        own = made_of.get(entry["asset"])
        if own is None or own.digest != entry["digest"]:
            is_of = f"digest {own.digest[:12]}" if own else "none"
            raise RefusedInput(
                f"{item.where}: the index is of {entry['asset']} with digest {entry['digest'][:12]}, the model was made"
                f" from {is_of}; `pedigree run RECIPE --until provenance_index` makes the right one"
            )
