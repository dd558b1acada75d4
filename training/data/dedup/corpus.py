"""Divide the work of deduplication: documents into groups of whole files, and keys into ranges.

An *order number* packs three places: of a snapshot among the inputs, of a file in the snapshot, and of a row in the
file. Order numbers ascend as ids do, and no process has to count the documents of others.

Groups and ranges follow from the manifests alone. A group is a run of a snapshot's files with at least GROUP_BYTES, so
that small files share a rank, and at least a MOST_GROUPS-th of the snapshot, because ranks that exchange data write a
slice for each pair of groups. The groups of a snapshot depend on no other snapshot. The ranges are equal parts of the
values that a key can have, because keys are hashes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from training.contract.job import DataError, InputArtifact, Job
from training.data.dedup import index as snapshot_index
from training.data.dedup import sign as signatures
from training.data.documents import Files, document_files, open_documents

Orders = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

GROUP_BYTES = 64_000_000  # of document files, compressed
MOST_GROUPS = 1 << 12  # of a snapshot
RANGE_BYTES = 256_000_000  # of keys with what goes with them
KEY_BYTES = 4  # about so many bytes of them for each byte of the signatures
MOST_RANGES = 1 << 12
ROW_BITS, FILE_BITS = 32, 20
ROWS = (1 << ROW_BITS) - 1


@dataclass(frozen=True, kw_only=True)
class Group:  # no slots: cached_property keeps its value in the instance
    """Consecutive files of one snapshot that a rank processes together.

    `snapshot` and `first_file` are the places of the snapshot and the file.
    """

    snapshot: int
    first_file: int
    documents: Files
    signatures: Files
    index_key: str
    index: Path | None  # the index that an earlier job made of an earlier snapshot; None: there is none

    @property
    def name(self) -> str:
        """The name of the group in an index: which files it consists of."""
        return f"{self.first_file:05d}-{self.first_file + len(self.documents):05d}"

    @property
    def start(self) -> int:
        """The lowest possible order number of a document of the group."""
        return order_of(self.snapshot, self.first_file)

    @property
    def end(self) -> int:
        """The lowest order number above all those of the group's documents."""
        return order_of(self.snapshot, self.first_file + len(self.documents))

    @cached_property
    def file_starts(self) -> Orders:
        """Number of the group's documents before each of its files, followed by the number of all of them."""
        sizes = [signatures.num_documents(path) for path in self.signatures]
        return np.concatenate([[0], np.cumsum(np.array(sizes, np.int64))]).astype(np.int64)

    def __len__(self) -> int:
        return int(self.file_starts[-1])

    @property
    def orders(self) -> Orders:
        """Order numbers of all documents of the group."""
        sizes = np.diff(self.file_starts)
        return np.concatenate(
            [np.empty(0, np.int64)]
            + [np.arange(size) + order_of(self.snapshot, self.first_file + file) for file, size in enumerate(sizes)]
        )

    def rows_of(self, orders: Orders) -> Orders:
        """Return row numbers, counted from the first document of the group, for documents given by order number."""
        return self.rows_in(self.file_starts, orders)

    def rows_in(self, file_starts: Orders, orders: Orders) -> Orders:
        """Return the rows like `rows_of`, given the number of documents before each file."""
        return file_starts[(orders - self.start) >> ROW_BITS] + (orders & ROWS)

    def keys(self, name: str, bucket: int | None = None) -> npt.NDArray[Any]:
        """Return one signature array of the group, [documents of the group, …]."""
        parts = [arrays[name] if bucket is None else arrays[name][bucket] for arrays in self._signed]
        return np.concatenate(parts) if parts else np.empty(0, np.uint64)

    @cached_property
    def _signed(self) -> list[dict[str, npt.NDArray[Any]]]:
        # Each file is opened once: with 16 arrays a file, checking and opening took more time than the bytes.
        return [signatures.load(path) for path in self.signatures]

    def column(self, orders: Orders, column: str) -> Iterator[pa.Array]:
        """Yield one column of the documents with these (ascending) order numbers, one row group at a time.

        Files without a wanted document are not opened.
        """
        for file in range(len(self.documents)):
            first = order_of(self.snapshot, self.first_file + file)
            wanted = orders[slice(*np.searchsorted(orders, (first, first + ROWS)))] - first
            if len(wanted):
                yield from _rows_of_file(self.documents[file], wanted, column)


def order_of(snapshot: int, file: int) -> int:
    """Return the order number of a file's first document."""
    return (snapshot << FILE_BITS | file) << ROW_BITS


def _rows_of_file(path: Path, wanted: Orders, column: str) -> Iterator[pa.Array]:
    with open_documents(path) as parquet:
        first = 0
        for group in range(parquet.num_row_groups):
            last = first + parquet.metadata.row_group(group).num_rows
            places = wanted[slice(*np.searchsorted(wanted, (first, last)))] - first
            first = last
            if len(places):
                values = parquet.read_row_group(group, columns=[column], use_threads=False).column(0)
                yield values.combine_chunks().take(pa.array(places))


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """All snapshots in groups, in order; those of the job's own snapshot come last."""

    groups: tuple[Group, ...]
    num_own: int  # groups of the job's own snapshot
    num_ranges: int  # a power of two

    @property
    def own(self) -> range:
        """Numbers of the groups of the job's own snapshot."""
        return range(len(self.groups) - self.num_own, len(self.groups))

    @property
    def earlier(self) -> range:
        """Numbers of the groups of earlier snapshots."""
        return range(len(self.groups) - self.num_own)

    @cached_property
    def starts(self) -> Orders:
        """The least order number of each group."""
        return np.array([group.start for group in self.groups], np.int64)

    @property
    def own_start(self) -> int:
        """The least order number of the job's own snapshot.

        If the snapshot is empty, this is a number after all others.
        """
        return self.groups[self.own.start].start if self.num_own else np.iinfo(np.int64).max

    def groups_of(self, orders: Orders) -> Orders:
        """Return the number of the group that each document is in, for documents given by order number."""
        return np.searchsorted(self.starts, orders, "right") - 1


def corpus_of(job: Job) -> Corpus:
    """Return the corpus that a job's inputs describe.

    Raise DataError if the documents and signatures are not those of the same snapshots.
    """
    filtered, signed = job.inputs_of("filtered_documents"), job.inputs_of("document_signatures")
    if not filtered or [item.partition for item in filtered] != [item.partition for item in signed]:
        raise DataError(
            f"dedup of {job.partition}: filtered_documents of {[item.partition for item in filtered]} but"
            f" document_signatures of {[item.partition for item in signed]}; both are wanted for the same snapshots"
        )
    if filtered[-1].partition.partition("@")[2] != job.snapshot:
        raise DataError(f"dedup of {job.partition}: the last input is {filtered[-1].partition}, not the own snapshot")
    documents = [document_files(item) for item in filtered]
    signed_files = [document_files(item, signatures.FOLDER) for item in signed]
    counted = sum(map(len, documents)), sum(map(len, signed_files))
    if list(map(len, documents)) != list(map(len, signed_files)):
        raise DataError(f"dedup of {job.partition}: {counted[0]} document files, {counted[1]} signature files")
    keys = list(map(snapshot_index.key_of, filtered, signed))
    found = {key: folder for key, folder in snapshot_index.folders(job).items() if key != keys[-1]}
    groups = [
        list(_groups(place, *files, key, found.get(key)))
        for place, (files, key) in enumerate(zip(zip(documents, signed_files, strict=True), keys, strict=True))
    ]
    return Corpus(
        groups=tuple(group for of_snapshot in groups for group in of_snapshot),
        num_own=len(groups[-1]),
        num_ranges=_num_ranges(sum(map(_num_bytes, signed))),
    )


def _groups(snapshot: int, documents: Files, signed: Files, key: str, index: Path | None) -> Iterator[Group]:
    listed = documents.item.files()
    group_bytes = max(GROUP_BYTES, sum(listed[name]["bytes"] for name in documents.names) // MOST_GROUPS)
    first, size = 0, 0
    for file, name in enumerate(documents.names):
        size += listed[name]["bytes"]
        if size >= group_bytes or file == len(documents) - 1:
            files = slice(first, file + 1)
            yield Group(
                snapshot=snapshot,
                first_file=first,
                documents=documents[files],
                signatures=signed[files],
                index_key=key,
                index=index,
            )
            first, size = file + 1, 0


def _num_bytes(item: InputArtifact) -> int:
    return sum(entry["bytes"] for entry in item.files().values())


def _num_ranges(signature_bytes: int) -> int:
    wanted = signature_bytes * KEY_BYTES // RANGE_BYTES
    return min(1 << wanted.bit_length(), MOST_RANGES) if wanted else 1
