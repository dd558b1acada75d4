"""Stage `provenance`: an index of every page of a snapshot, by id, by URL and host, and by the page that it repeats.

A rank reads ids, URLs and reasons of one archive's pages in all places in which they ended (`training.provenance.
layout`), and sorts them. `finish` merges the ranks in pieces of about AT_ONCE pages, so memory grows neither with the
pages nor with the ranks. The account compares the pages with the documents that the extraction kept, so a page that a
stage lost, or an artifact of other documents, fails the gate.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from training.contract.artifact import SCRATCH_FOLDER, write_json, written
from training.contract.job import Counts, DataError, InputArtifact, Job, Outcome, Share, Work
from training.data.documents import bytes_of, count_documents, document_files, document_id, read_lines
from training.data.urls import key_of
from training.provenance import layout
from training.provenance.layout import DUPLICATE_KIND, HOSTS_IN_BLOCK, KEPT_KIND, KINDS, QUARANTINED, hash_of, page_type

AT_ONCE = 1 << 19  # pages that are merged at once
READ_AT_ONCE = 1 << 15  # rows of a place
MOST_REASONS = 1 << 16
TOO_MANY_REASONS = f"more than {MOST_REASONS:,} different reasons to drop a page; use fewer in takedown lists"
SAMPLED = 64  # hosts for each piece, by which pieces are cut

Ints = npt.NDArray[Any]
Pair = tuple[Ints, Ints]


def num_ranks(job: Job) -> int:
    """Return the number of ranks: one for each file of extracted documents."""
    return len(document_files(job.input_of("extracted_documents")))


@dataclass(slots=True)
class _Pages:
    """Columns about the pages of one rank, in the order of the files in which they ended."""

    places: list[list[int]] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    hosts: list[str] = field(default_factory=list)
    urls: list[int] = field(default_factory=list)
    reasons: list[int] = field(default_factory=list)
    reason_list: dict[str, int] = field(default_factory=dict)
    kept: list[int] = field(default_factory=list)
    copies: list[int] = field(default_factory=list)

    def add(self, rows: Iterable[dict[str, Any]]) -> None:
        for row in rows:
            if (repeated := row.get("duplicate_of")) is not None:
                self.kept.append(hash_of(repeated))
                self.copies.append(len(self.ids))
            self.ids.append(hash_of(row["id"]))
            host, rest = key_of(row["url"])
            self.hosts.append(host)
            self.urls.append(hash_of(rest))
            self.reasons.append(self.reason_list.setdefault(row.get("reason", ""), len(self.reason_list)))


def run_rank(job: Job, work: Work, rank: int) -> dict[str, Any]:
    """Sort the pages of one archive by id and by URL, and list the files in which they ended.

    Everything is written to scratch files.
    """
    pages = _Pages()
    went_on = 0
    for kind, part, item, name in _places(job, rank, _names(job)):
        first = len(pages.ids)
        for rows in _rows(item.file(name), kind, job.snapshot):
            pages.add(rows)
        if len(pages.ids) > first:
            pages.places.append([first, kind, part])
        went_on += (len(pages.ids) - first) * (KINDS[kind].asset != "extracted_documents")
    names = [f"{SCRATCH_FOLDER}/{name}-{rank:05d}" for name in ("ids", "urls", "copies", "reasons")]
    if len(pages.reason_list) > MOST_REASONS:
        raise DataError(f"{job.partition}: {TOO_MANY_REASONS}")
    _save(work.path / names[0], _sorted(pages.ids, range(len(pages.ids))))
    _save_urls(work.path / names[1], pages)
    _save(work.path / names[2], _sorted(pages.kept, pages.copies))
    _save(work.path / names[3], np.array(pages.reasons, dtype="<u2"))
    kept = count_documents(document_files(job.input_of("extracted_documents"))[rank])
    return {
        "files": names,
        "counts": Counts(records_in=kept, kept=went_on).as_json(),
        "pages": len(pages.ids),
        "duplicates": len(pages.copies),
        "places": pages.places,
        "reasons": list(pages.reason_list),
    }


def rank_shares(job: Job) -> list[Share]:
    """Return what each rank reads: every file in which pages of one archive ended, and its document file."""
    documents, names = document_files(job.input_of("extracted_documents")), _names(job)
    shares = []
    for rank, document in enumerate(documents.names):
        places = [(item, name) for _, _, item, name in _places(job, rank, names)]
        shares.append(Share(files=((documents.item, document), *places)))
    return shares


def _names(job: Job) -> list[list[str]]:
    """Return the files of every kind, in the order of ranks."""
    return [layout.files_of(job.input_of(kind.asset), number) for number, kind in enumerate(KINDS)]


def _places(job: Job, rank: int, names: Sequence[Sequence[str]]) -> Iterator[tuple[int, int, InputArtifact, str]]:
    """Yield kind, part, artifact and name of every file in which pages of a rank may have ended."""
    for number, kind in enumerate(KINDS):
        item = job.input_of(kind.asset)
        if number == KEPT_KIND:
            listed, part = item.files(), 0
            while (name := layout.shard_of(rank, part)) in listed:
                yield number, part, item, name
                part += 1
        elif rank < len(names[number]):
            yield number, 0, item, names[number][rank]
        else:
            raise DataError(
                f"{item.where}: {len(names[number])} files in {kind.folder}, and none for rank {rank}; it was made from"
                " other documents. Run again from this asset on"
            )


def _rows(path: Path, kind: int, snapshot: str) -> Iterator[list[dict[str, Any]]]:
    """Yield the rows of one file with id and URL, and for dropped pages the reason."""
    if KINDS[kind].outcome == QUARANTINED:
        yield [{**row, "id": document_id(snapshot, row["warc_file"], row["warc_offset"])} for row in read_lines(path)]
        return
    columns = ["id", "url", *(["reason"] if kind != KEPT_KIND else [])]
    columns += ["duplicate_of"] if kind == DUPLICATE_KIND else []
    with pq.ParquetFile(path, memory_map=True) as parquet:
        for batch in parquet.iter_batches(READ_AT_ONCE, columns=columns, use_threads=False):
            yield batch.to_pylist()


def _sorted(hashes: Sequence[int], pages: Sequence[int]) -> Ints:
    """Return the hashes in ascending order with the page of each, uint32 [2, number].

    Equal hashes are sorted by page.
    """
    pair = np.array([hashes, pages], dtype="<u4").reshape(2, -1)
    return pair[:, np.argsort(pair[0], kind="stable")]


def _save(path: Path, array: Ints) -> None:
    with written(path) as stream:
        np.save(stream, np.ascontiguousarray(array), allow_pickle=False)


def _save_urls(path: Path, pages: _Pages) -> None:
    table = pa.table(
        {
            "host": pa.array(pages.hosts, pa.string()),
            "url": pa.array(pages.urls, pa.uint32()),
            "page": pa.array(range(len(pages.urls)), pa.uint32()),
        }
    )
    options = pa.ipc.IpcWriteOptions(compression="lz4")
    with written(path) as stream, pa.ipc.new_file(stream, table.schema, options=options) as writer:
        writer.write_table(_in_order(table))


def _in_order(table: pa.Table) -> pa.Table:
    """Return the pages sorted by host, hash of the URL, and number."""
    keys = [(name, "ascending") for name in ("host", "url", "page")]
    return table.take(pc.sort_indices(table, sort_keys=keys)).combine_chunks()


def finish(job: Job, work: Work, ranks: list[dict[str, Any]]) -> Outcome:
    """Merge the ranks into the files of the index."""
    bases = np.cumsum([0, *(rank["pages"] for rank in ranks)]).astype(np.int64)
    pages = int(bases[-1])
    number = page_type(pages)
    _write_places(work.path, ranks, bases)
    reasons = _write_reasons(work, ranks, pages)
    pieces = -(-pages // AT_ONCE)
    _write_pairs(work, "ids", bases, pieces, (layout.IDS_FILE, layout.ID_PAGES_FILE), pages, number)
    copies = sum(rank["duplicates"] for rank in ranks)
    _write_pairs(work, "copies", bases, -(-copies // AT_ONCE), (layout.KEPT_FILE, layout.COPIES_FILE), copies, number)
    hosts = _write_urls(work, bases, pieces, number)
    size = sum((work.path / name).stat().st_size for name in layout.FILES)
    work.progress.message(f"{pages} pages of {hosts} hosts, {size / max(pages, 1):.1f} bytes each")
    return Outcome(
        files=layout.FILES,
        counts=Counts.total([rank["counts"] for rank in ranks]),
        metrics={"pages": pages, "hosts": hosts, "duplicates": copies, "reasons": reasons, "bytes": size},
    )


def _write_places(folder: Path, ranks: Sequence[dict[str, Any]], bases: Ints) -> None:
    rows = [
        [first + int(base), kind, rank, part]
        for rank, (result, base) in enumerate(zip(ranks, bases[:-1], strict=True))
        for first, kind, part in result["places"]
    ]
    table = np.array(rows, dtype="<i8").reshape(-1, layout.PLACE_FIELDS)
    _save(folder / layout.PLACES_FILE, table.T)


def _write_reasons(work: Work, ranks: Sequence[dict[str, Any]], pages: int) -> int:
    """Write the number of every page's reason, and return how many reasons there are.

    The number 0 means that the page has no reason.
    """
    known = ["", *sorted({reason for rank in ranks for reason in rank["reasons"]} - {""})]
    if len(known) > 1 << 16:
        raise DataError(
            f"{len(known)} different reasons; at most 65,536 can be indexed. Shorten those of takedown lists"
        )
    numbers = {reason: number for number, reason in enumerate(known)}
    write_json(work.path / layout.REASON_LIST_FILE, known)
    with _array(work.path / layout.REASONS_FILE, np.dtype("<u2"), pages) as write:
        for rank, result in enumerate(ranks):
            codes = np.array([numbers[reason] for reason in result["reasons"]], dtype="<u2")
            own = np.load(work.scratch / f"reasons-{rank:05d}", allow_pickle=False)
            write(codes[own] if len(own) else own.astype("<u2"))
    return len(known) - 1


class _array:
    """Open a file of one array, to which its parts are written one after the other.

    The `with` block gets the function that writes a part.
    """

    def __init__(self, path: Path, dtype: np.dtype, count: int) -> None:
        self.path, self.dtype, self.count = path, dtype, count
        self._stack = ExitStack()

    def __enter__(self) -> Callable[[Ints], None]:
        stream: IO[bytes] = self._stack.enter_context(written(self.path))
        header = {"descr": np.lib.format.dtype_to_descr(self.dtype), "fortran_order": False, "shape": (self.count,)}
        np.lib.format.write_array_header_1_0(stream, header)
        return lambda part: stream.write(np.ascontiguousarray(part.astype(self.dtype)).data)  # pyrefly: ignore[bad-return]

    def __exit__(self, *raised: Any) -> None:
        self._stack.__exit__(*raised)


def _write_pairs(
    work: Work, name: str, bases: Ints, pieces: int, files: tuple[str, str], count: int, number: np.dtype
) -> None:
    """Merge the sorted (hash, page) pairs of all ranks, and write hashes and pages in order.

    One range of hashes is merged at a time.
    """
    bounds = [(piece << 32) // max(pieces, 1) for piece in range(pieces + 1)]
    with (
        _array(work.path / files[0], np.dtype("<u4"), count) as hashes,
        _array(work.path / files[1], number, count) as pages,
    ):
        for low, high in pairwise(bounds):
            own = list(_between(work, name, bases, low, high))
            found = np.concatenate([one for one, _ in own])
            order = np.argsort(found, kind="stable")
            hashes(found[order])
            pages(np.concatenate([one for _, one in own])[order])


def _between(work: Work, name: str, bases: Ints, low: int, high: int) -> Iterator[Pair]:
    """Yield, for each rank, its hashes from `low` to before `high`, and their pages in the snapshot."""
    for rank, base in enumerate(bases[:-1]):
        own = np.load(work.scratch / f"{name}-{rank:05d}", mmap_mode="r", allow_pickle=False)
        start, stop = np.searchsorted(own[0], [low, high]) if high < 1 << 32 else (np.searchsorted(own[0], low), None)
        yield own[0, start:stop], own[1, start:stop].astype(np.int64) + base


# Hosts and URLs


def _write_urls(work: Work, bases: Ints, pieces: int, number: np.dtype) -> int:
    """Write the pages by host and URL, and the hosts; return the number of hosts."""
    pages = int(bases[-1])
    hosts = _Hosts(work.path)
    with (
        hosts,
        _array(work.path / layout.URLS_FILE, np.dtype("<u4"), pages) as urls,
        _array(work.path / layout.URL_PAGES_FILE, number, pages) as url_pages,
    ):
        for low, high in _cuts(work, len(bases) - 1, pieces):
            table = _in_order(pa.concat_tables(list(_of_hosts(work, bases, low, high))).combine_chunks())
            urls(table["url"].to_numpy())
            url_pages(table["page"].to_numpy())
            hosts.add(table["host"].combine_chunks())
    hosts.write()
    return hosts.number


def _cuts(work: Work, ranks: int, pieces: int) -> Iterator[tuple[str, str | None]]:
    """Yield (first, end) for ranges of hosts with about equally many pages; `end` is the next range's first host.

    The first range begins with "", and `end` of the last one is None.
    """
    sampled: list[str] = []
    for rank in range(ranks if pieces > 1 else 0):
        with pa.memory_map(str(work.scratch / f"urls-{rank:05d}")) as source:
            hosts = pa.ipc.open_file(source).read_all()["host"]
            step = max(1, len(hosts) * ranks // (pieces * SAMPLED))
            sampled += hosts.take(pa.array(range(rank % step, len(hosts), step), pa.int64())).to_pylist()
    sampled.sort()
    inner = sorted({sampled[len(sampled) * piece // pieces] for piece in range(1, pieces)} if sampled else set())
    yield from zip(["", *inner], [*inner, None], strict=True)


def _of_hosts(work: Work, bases: Ints, low: str, high: str | None) -> Iterator[pa.Table]:
    """Yield, for each rank, its pages of the hosts from `low` to before `high`, with their numbers in the snapshot."""
    for rank, base in enumerate(bases[:-1].tolist()):
        with pa.memory_map(str(work.scratch / f"urls-{rank:05d}")) as source:
            table = pa.ipc.open_file(source).read_all()
            hosts = table["host"]
            places = range(len(hosts))
            start = bisect.bisect_left(places, low, key=lambda place, hosts=hosts: hosts[place].as_py())
            stop = len(hosts)
            if high is not None:
                stop = bisect.bisect_left(places, high, key=lambda place, hosts=hosts: hosts[place].as_py())
            own = table.take(pa.array(np.arange(start, stop)))  # a slice would keep the whole part in memory
            numbers = pc.add(own["page"].cast(pa.uint64()), pa.scalar(base, pa.uint64()))
            yield pa.table({"host": own["host"].cast(pa.large_string()), "url": own["url"], "page": numbers})


class _Hosts:
    """Writes the list of hosts. They must be added in ascending order.

    The names are written as they are given, and the columns about them at the end.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.number = 0
        self._bytes = self._pages = 0
        self._last = pa.array([""], pa.large_string())
        self._stack = ExitStack()
        self._sizes: list[Ints] = []
        self._counts: list[Ints] = []
        self._blocks: list[Ints] = []

    def __enter__(self) -> _Hosts:
        self._stream = self._stack.enter_context(written(self.folder / layout.HOSTS_FILE))
        return self

    def __exit__(self, *raised: Any) -> None:
        self._stack.__exit__(*raised)

    def add(self, hosts: pa.LargeStringArray) -> None:
        """Add the hosts of a piece, one for each page, in order; none of them was in an earlier piece."""
        if not len(hosts):
            return
        differs = pc.not_equal(hosts[1:], hosts[:-1]).to_numpy(zero_copy_only=False)
        firsts = np.concatenate([[0], np.flatnonzero(differs) + 1])
        names = pa.concat_arrays([self._last, hosts.take(pa.array(firsts))])
        self._last = names[-1:]
        data, offsets = bytes_of(names)
        shared = _shared(data, offsets)[1:]
        offsets = offsets[1:]
        begins = (self.number + np.arange(len(firsts))) % HOSTS_IN_BLOCK == 0
        shared[begins] = 0
        own = np.diff(offsets) - shared
        is_own = np.repeat(offsets[:-1] + shared, np.diff(offsets)) <= np.arange(offsets[0], offsets[-1])
        self._stream.write(data[offsets[0] : offsets[-1]][is_own].data)
        ends = np.cumsum(own)
        places = np.stack([self._bytes + ends - own, self._pages + firsts])
        self._blocks.append(places[:, begins])
        self._sizes.append(np.stack([shared, own]).astype(np.uint8))
        self._counts.append(np.diff(np.append(firsts, len(hosts))).astype("<u4"))
        self.number += len(firsts)
        self._bytes += int(ends[-1])
        self._pages += len(hosts)

    def write(self) -> None:
        """Write the columns about the hosts."""
        for name, parts, empty in (
            (layout.HOST_SIZES_FILE, self._sizes, np.empty((2, 0), np.uint8)),
            (layout.HOST_PAGES_FILE, self._counts, np.empty(0, "<u4")),
            (layout.HOST_BLOCKS_FILE, self._blocks, np.empty((2, 0), "<i8")),
        ):
            _save(self.folder / name, np.concatenate(parts, axis=-1) if parts else empty)


def _shared(data: npt.NDArray[np.uint8], offsets: Ints) -> Ints:
    """Return how many leading bytes each text shares with the text before it, int64.

    The first text shares 0.
    """
    shared = np.zeros(len(offsets) - 1, dtype=np.int64)
    lengths = np.diff(offsets)
    left = np.arange(1, len(lengths))
    most = np.minimum(lengths[left], lengths[left - 1])
    at = 0
    while len(left):
        is_equal = most > at
        left, most = left[is_equal], most[is_equal]
        is_equal = data[offsets[left] + at] == data[offsets[left - 1] + at]
        left, most = left[is_equal], most[is_equal]
        at += 1
        shared[left] = at
    return shared
