"""Find documents of a snapshot that repeat an earlier one: by URL, by text, by set of n-grams, by verified similarity.

Documents are numbered in order (snapshots in the recipe's order, then file, then row). The last snapshot is the job's
own, and only its documents ("own documents") are judged. The signatures of earlier snapshots are read as arrays, one
file at a time, and only rows that share a key with an own document stay in memory. Texts are opened only for
candidates, which are documents that share a MinHash key. Memory therefore grows with the own snapshot and the repeated
documents, not with the size of the earlier snapshots.
"""

from __future__ import annotations

import logging
import mmap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from training.data.dedup import sign as signatures
from training.data.dedup.settings import DedupRecipe
from training.data.documents import open_documents, utf8_of
from training.data.words.ngrams import Hashes, jaccard, ngram_set
from training.job import Work

log = logging.getLogger(__name__)

Orders = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

KEPT, URL, EXACT, NEAR = range(4)
REASONS = ("", "duplicate_url", "exact_duplicate", "near_duplicate")
# Bytes of n-gram sets that one call compares. Their memory pages are released after each call, so that memory does not
# grow with the number of sets.
COMPARED_BYTES = 64_000_000


@dataclass(frozen=True, kw_only=True)
class Corpus:  # no slots: cached_property keeps its value in the instance
    """The document and signature files of all snapshots in order; the files of the job's own snapshot come last."""

    document_files: tuple[Path, ...]
    signature_files: tuple[Path, ...]
    num_own_files: int

    @cached_property
    def file_starts(self) -> Orders:
        """Order number of each file's first document, followed by the total number of documents."""
        sizes = [signatures.num_documents(path) for path in self.signature_files]
        return np.concatenate([[0], np.cumsum(np.array(sizes, np.int64))]).astype(np.int64)

    @property
    def first_own_file(self) -> int:
        """Index of the first document file that belongs to the job's own snapshot."""
        return len(self.document_files) - self.num_own_files

    @property
    def own_start(self) -> int:
        """Order number of the first document of the job's own snapshot."""
        return int(self.file_starts[self.first_own_file])

    @property
    def num_own(self) -> int:
        """Number of documents in the job's own snapshot."""
        return len(self) - self.own_start

    def __len__(self) -> int:
        return int(self.file_starts[-1])

    def own(self, name: str, bucket: int | None = None) -> npt.NDArray[Any]:
        """Return one signature array of the job's own snapshot, [documents of the snapshot, …]."""
        parts = [signatures.load(path, name, bucket) for path in self.signature_files[self.first_own_file :]]
        return np.concatenate(parts) if parts else np.empty(0, np.uint64)

    def earlier(self, name: str, bucket: int | None = None) -> Iterator[tuple[int, npt.NDArray[Any]]]:
        """Yield (order number of the first row, array) for each file of the earlier snapshots."""
        for number, path in enumerate(self.signature_files[: self.first_own_file]):
            yield int(self.file_starts[number]), signatures.load(path, name, bucket)

    def rows(self, orders: Orders, column: str) -> Iterator[pa.StringArray]:
        """Yield one column of the documents with the (ascending) numbers `orders`, one row group at a time.

        Files without a wanted document are not opened.
        """
        for path, start, end in zip(self.document_files, self.file_starts, self.file_starts[1:], strict=False):
            wanted = orders[slice(*np.searchsorted(orders, (start, end)))] - start
            if len(wanted):
                yield from _rows_of_file(path, wanted, column)


def _rows_of_file(path: Path, wanted: Orders, column: str) -> Iterator[pa.StringArray]:
    with open_documents(path) as parquet:
        first = 0
        for group in range(parquet.num_row_groups):
            last = first + parquet.metadata.row_group(group).num_rows
            places = wanted[slice(*np.searchsorted(wanted, (first, last)))] - first
            first = last
            if len(places):
                values = parquet.read_row_group(group, columns=[column], use_threads=False).column(0)
                yield values.combine_chunks().take(pa.array(places))


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdicts:
    """Decisions about each document of the job's snapshot, as arrays.

    `reason` is 0 for a kept document, `of` is the order number of the document that it repeats (-1 for none), and
    `similarity` is the similarity to that document.
    """

    reason: npt.NDArray[np.uint8]
    of: Orders
    similarity: npt.NDArray[np.float32]

    @staticmethod
    def keep_all(number: int) -> Verdicts:
        """Return verdicts that keep all `number` documents."""
        return Verdicts(
            reason=np.zeros(number, np.uint8), of=np.full(number, -1, np.int64), similarity=np.zeros(number, np.float32)
        )

    def remove(self, rows: Orders, reason: Any, of: Orders, similarity: Any = 1.0) -> None:
        """Mark the documents `rows` of the job's snapshot as removed; `reason` is one value for all rows or one for
        each row.
        """
        self.reason[rows], self.of[rows], self.similarity[rows] = reason, of, similarity


def find_duplicates(corpus: Corpus, recipe: DedupRecipe, work: Work) -> Verdicts:
    """Return, for every document of the job's snapshot, whether it is removed, why, and which document it repeats.

    If several reasons apply, the first of these is recorded: URL, text, n-grams, similarity.
    """
    verdicts = Verdicts.keep_all(corpus.num_own)
    own_orders = np.arange(corpus.own_start, len(corpus))
    first_set = _first_with_equal(corpus, "ngrams")
    askers = np.flatnonzero((first_set == own_orders) & (corpus.own("count") > 0))
    _enter_near(verdicts, corpus, recipe, askers, work)
    # The strongest reason is entered last and overwrites the weaker ones.
    for reason, first in ((NEAR, first_set), (EXACT, _first_with_equal(corpus, "text"))):
        rows = np.flatnonzero(first < own_orders)
        verdicts.remove(rows, reason, first[rows])
    if recipe.urls:
        first = _first_with_equal(corpus, "url")
        rows = np.flatnonzero(first < own_orders)
        verdicts.remove(rows, URL, first[rows])
    return verdicts


def _first_with_equal(corpus: Corpus, name: str) -> Orders:
    """For each document of the job's snapshot, the smallest order number of a document with the same key.

    `name` is the signature array that holds the keys. A key of zeros stands for no key and equals no other.
    """
    own = corpus.own(name).reshape(-1, 2)
    first = np.arange(corpus.own_start, len(corpus))
    asking = np.flatnonzero(own.any(axis=1))
    keys, orders = join(own[asking, 0], first[asking], corpus.earlier(name), lambda keys: keys[:, 0])
    members, _ = shared(keys, orders)
    if not len(members):
        return first
    pairs = _rows_at(corpus, members, own, name)
    by = np.lexsort((members, pairs[:, 1], pairs[:, 0]))
    members, pairs = members[by], pairs[by]
    begins = np.concatenate([[True], (pairs[1:] != pairs[:-1]).any(axis=1)])
    least = members[begins][np.cumsum(begins) - 1]
    mine = members >= corpus.own_start
    first[members[mine] - corpus.own_start] = least[mine]
    return first


def _rows_at(corpus: Corpus, orders: Orders, own: npt.NDArray[Any], name: str) -> npt.NDArray[Any]:
    """Return the rows of a signature array for the documents `orders`, which may be in any order."""
    rows = np.empty((len(orders), *own.shape[1:]), own.dtype)
    mine = orders >= corpus.own_start
    rows[mine] = own[orders[mine] - corpus.own_start]
    if not mine.all():
        for start, chunk in corpus.earlier(name):
            here = (orders >= start) & (orders < min(start + len(chunk), corpus.own_start))
            rows[here] = chunk[orders[here] - start]
    return rows


def join(
    own_keys: Hashes,
    own_orders: Orders,
    earlier: Iterator[tuple[int, npt.NDArray[Any]]],
    key_of: Callable[[npt.NDArray[Any]], Hashes] = lambda keys: keys,
) -> tuple[Hashes, Orders]:
    """Return keys and order numbers of the job's documents, and of earlier documents with one of the keys."""
    keys, orders = [own_keys], [own_orders]
    search = None  # made for the first earlier file: a corpus of one snapshot needs none
    for start, rows in earlier if len(own_keys) else ():
        search = search or _search(own_keys)
        chunk = key_of(rows)
        hits = search(chunk)
        keys.append(chunk[hits])
        orders.append(hits + start)
    return (np.concatenate(keys), np.concatenate(orders)) if len(keys) > 1 else (own_keys, own_orders)


def _search(wanted: Hashes) -> Callable[[Hashes], Orders]:
    """Return a function that finds the indices at which an array of keys has one of the wanted keys."""
    ordered = np.sort(wanted)
    # A table indexed by the keys' highest bits, with at least eight one-byte entries per wanted key, rules out most
    # other keys without a binary search.
    bits = max(10, int(len(wanted) * 8).bit_length())
    shift = np.uint64(64 - bits)
    present = np.zeros(1 << bits, np.bool_)
    present[wanted >> shift] = True

    def places(keys: Hashes) -> Orders:
        maybe = np.flatnonzero(present[keys >> shift])
        place = np.searchsorted(ordered, keys[maybe])
        place[place == len(ordered)] = 0
        return maybe[ordered[place] == keys[maybe]]

    return places


def shared(keys: Hashes, orders: Orders) -> tuple[Orders, Flags]:
    """Return the documents that share a key with another document, and flags that mark where each key's run begins.

    The documents are grouped by key and ascend within each run.
    """
    by = np.argsort(keys)
    ordered = keys[by]
    same = ordered[1:] == ordered[:-1]
    in_run = np.zeros(len(keys), np.bool_)
    in_run[1:] |= same
    in_run[:-1] |= same
    members, run_keys = orders[by[in_run]], ordered[in_run]
    del by, ordered
    by = np.lexsort((members, run_keys))  # the first sort leaves equal keys in any order
    members, run_keys = members[by], run_keys[by]
    begins = np.ones(len(members), np.bool_)
    begins[1:] = run_keys[1:] != run_keys[:-1]
    return members, begins


# Near-duplicates


def _enter_near(verdicts: Verdicts, corpus: Corpus, recipe: DedupRecipe, askers: Orders, work: Work) -> None:
    """Enter the first verified near-duplicate of each own document in `askers` (row numbers) that has one.

    Of documents with equal sets of n-grams, only the first takes part on either side of a comparison. A page repeated a
    million times therefore counts as one document here; whatever is similar to one of its copies is similar to all.
    """
    runs = [_candidates(corpus, bucket, askers) for bucket in range(recipe.buckets)]
    runs = _only_first_of_equal_sets(corpus, runs)
    opened = np.unique(np.concatenate([members for members, _ in runs], dtype=np.int64))
    with NgramStore(work.scratch / "ngrams.bin", corpus, opened, recipe.ngram_words) as store:
        best, similarity, tried = _compare(corpus, runs, opened, store, recipe.min_similarity, work)
    rows = np.flatnonzero(best != np.arange(len(opened)))
    verdicts.remove(opened[rows] - corpus.own_start, NEAR, opened[best[rows]], similarity[rows])
    log.info("%d texts opened, %d pairs verified, %d near-duplicates", len(opened), tried, len(rows))


Runs = tuple[npt.NDArray[np.integer[Any]], Flags]


def _candidates(corpus: Corpus, bucket: int, askers: Orders) -> Runs:
    """Return runs of documents that share a MinHash key in one bucket and include a document of the job's snapshot."""
    keys, orders = join(corpus.own("bands", bucket)[askers], askers + corpus.own_start, corpus.earlier("bands", bucket))
    members, begins = shared(keys, orders)
    # Most corpora have fewer than 2^32 documents, so that 4 bytes per order number suffice: half the memory.
    return members.astype(np.uint32 if len(corpus) < 1 << 32 else np.int64), begins


def _only_first_of_equal_sets(corpus: Corpus, runs: list[Runs]) -> list[Runs]:
    """Drop earlier documents from the runs if a still earlier document has the same set of n-grams.

    Documents with equal sets have equal keys, so either all or none of them are in the runs. Runs that are left with
    one document are dropped.
    """
    own_start = corpus.own_start
    earlier = np.unique(np.concatenate([members[members < own_start] for members, _ in runs], dtype=np.int64))
    if not len(earlier):
        return runs
    pairs = _rows_at(corpus, earlier, np.empty((0, 2), np.uint64), "ngrams")
    by = np.lexsort((earlier, pairs[:, 1], pairs[:, 0]))
    repeats = np.concatenate([[False], (pairs[by][1:] == pairs[by][:-1]).all(axis=1)])
    repeated = np.sort(earlier[by[repeats]])
    return [_without(members, begins, repeated) for members, begins in runs]


def _without(members: Any, begins: Flags, gone: Orders) -> Runs:
    kept = ~np.isin(members, gone, assume_unique=False)
    run = np.cumsum(begins)[kept]
    members = members[kept]
    sizes = np.bincount(run, minlength=1)
    large = sizes[run] > 1
    run, members = run[large], members[large]
    begins = np.ones(len(run), np.bool_)
    begins[1:] = run[1:] != run[:-1]
    return members, begins


def _compare(
    corpus: Corpus, runs: list[Runs], opened: Orders, store: NgramStore, min_similarity: float, work: Work
) -> tuple[Orders, npt.NDArray[np.float64], int]:
    """For each document whose text was opened, return the first similar document (itself if there is none) and their
    similarity; also return the number of pairs compared.
    """
    best, similarity = np.arange(len(opened)), np.zeros(len(opened))
    own_from = int(np.searchsorted(opened, corpus.own_start))
    compare = _compiled_comparison() if store.compiled else first_similar
    tried = 0
    for number, (members, begins) in enumerate(runs):
        rows = np.searchsorted(opened, members)
        for start, end in store.portions(rows, begins):
            tried += compare(
                rows[start:end],
                begins[start:end],
                own_from,
                store.values,
                store.starts,
                min_similarity,
                best,
                similarity,
            )
            store.forget()
        work.progress.log(step=number + 1, verified_pairs=tried)
    return best, similarity, tried


def _compiled_comparison() -> Callable[..., int]:
    from training.data.dedup import minhash

    return minhash.first_similar


def first_similar(
    rows: Orders,
    begins: Flags,
    own_from: int,
    sets: Hashes,
    starts: Orders,
    min_similarity: float,
    best: Orders,
    similarity: npt.NDArray[np.float64],
) -> int:
    """Compare rows that share a key and find each row's first similar row; plain Python version of
    `minhash.first_similar`.
    """
    tried, begin = 0, 0
    bounds = starts.tolist()
    for position, row in enumerate(rows.tolist()):
        if begins[position]:
            begin = position
        if row < own_from:
            continue
        mine = np.sort(sets[bounds[row] : bounds[row + 1]])
        for other in rows[begin:position].tolist():
            if other >= best[row]:
                break
            theirs = np.sort(sets[bounds[other] : bounds[other + 1]])
            if min(len(mine), len(theirs)) / max(len(mine), len(theirs)) < min_similarity:
                continue  # |A∩B| / |A∪B| ≤ min / max
            tried += 1
            found = jaccard(mine, theirs)
            if found >= min_similarity:
                best[row], similarity[row] = other, found
                break
    return tried


class NgramStore:
    """The n-gram sets of the opened documents, concatenated in one private memory-mapped file."""

    def __init__(self, path: Path, corpus: Corpus, opened: Orders, ngram_words: int) -> None:
        self._path = path
        self.compiled = _num_bytes(corpus, opened) >= signatures.COMPILED_FROM_BYTES
        sizes = [np.zeros(1, np.int64)]
        with open(path, "wb") as stream:
            for texts in corpus.rows(opened, "text"):
                values, starts = (_sets_compiled if self.compiled else _sets_plainly)(texts, ngram_words)
                stream.write(values.data)
                sizes.append(np.diff(starts))
        self.starts = np.cumsum(np.concatenate(sizes))
        self._map: mmap.mmap | None = None
        self.values: Hashes = np.empty(0, np.uint64)
        if self.starts[-1]:
            with open(path, "rb") as stream:
                self._map = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
            self.values = np.frombuffer(self._map, np.uint64)

    def __enter__(self) -> NgramStore:
        return self

    def __exit__(self, *_: object) -> None:
        del self.values
        if self._map is not None:
            self._map.close()
        self._path.unlink()

    def portions(self, rows: Orders, begins: Flags) -> Iterator[tuple[int, int]]:
        """Yield (start, end) slices of `rows`, cut between runs; each compares about COMPARED_BYTES of n-gram sets."""
        if not len(rows):
            return
        read = np.cumsum(8 * (self.starts[rows + 1] - self.starts[rows])) // COMPARED_BYTES
        cuts = np.flatnonzero(begins)
        cuts = cuts[np.concatenate([[True], read[cuts[1:]] != read[cuts[:-1]]])]
        yield from zip(cuts.tolist(), [*cuts[1:].tolist(), len(rows)], strict=True)

    def forget(self) -> None:
        """Release the memory pages read so far to the operating system."""
        if self._map is not None:
            self._map.madvise(mmap.MADV_DONTNEED)


def _num_bytes(corpus: Corpus, opened: Orders) -> int:
    """Estimated text bytes of the opened documents, from the mean text size in each file."""
    total = 0.0
    for path, start, end in zip(corpus.document_files, corpus.file_starts, corpus.file_starts[1:], strict=False):
        wanted = np.diff(np.searchsorted(opened, (start, end)))[0]
        if wanted:
            with open_documents(path) as parquet:
                total += signatures.num_text_bytes(parquet) * wanted / (end - start)
    return int(total)


def _sets_compiled(texts: pa.StringArray, ngram_words: int) -> tuple[Hashes, Orders]:
    from training.data.dedup import minhash

    return minhash.ngram_sets(*utf8_of(texts), ngram_words)


def _sets_plainly(texts: pa.StringArray, ngram_words: int) -> tuple[Hashes, Orders]:
    sets = [ngram_set(text, ngram_words) for text in texts.to_pylist()]
    starts = np.cumsum([0, *map(len, sets)])
    return np.concatenate([np.empty(0, np.uint64), *sets]), starts
