"""Stage `dedup`: exact and near-duplicate removal that a newer snapshot never changes.

The rule: a document is removed if and only if an earlier document (recipe order of snapshots, then WARC file, then
offset) has exactly its text, or is a verified near-duplicate of it: the Jaccard similarity of their sets of word
n-grams is at least `min_similarity`. Whether that earlier document was itself removed does not matter, so every
snapshot's result depends on it and older ones alone. Candidates share a MinHash key (training.data.signatures); every
candidate pair is verified on the n-grams of its texts, and only candidates' texts are opened.

`duplicate_of` is the first document with the same text, else the first with the same n-grams, else the first verified
near-duplicate.
"""

from __future__ import annotations

import heapq
import logging
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from training.data import signatures
from training.data.documents import DocumentWriter, document_files, extra_columns, read_documents
from training.data.ngrams import Hashes, jaccard, ngram_set
from training.job import Counts, DataError, Gate, Job, Outcome, Work
from training.recipe import DedupRecipe

log = logging.getLogger(__name__)

EXACT, NEAR = "exact_duplicate", "near_duplicate"
SAMPLE_PAIRS = 20
PROGRESS_DOCUMENTS = 1000

Orders = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, slots=True)
class Duplicate:
    """Why a document goes: the earlier document (by order number) it repeats."""

    of: int
    similarity: float
    reason: str


def run(job: Job, work: Work) -> Outcome:
    """Deduplicate the job's own snapshot against itself and every earlier one."""
    recipe = job.settings_as(DedupRecipe, "dedup")
    corpus = Corpus.of(job)
    removed = find_duplicates(corpus, recipe, work) if recipe.enabled else {}
    ids = corpus.ids_of({duplicate.of for duplicate in removed.values()})
    files, tally = _write(corpus, removed, ids, work)
    return Outcome(
        files=files,
        counts=tally.counts,
        metrics=_metrics(corpus, removed, tally),
        gates=_gates(recipe, tally),
        notes=_notes(recipe, removed, corpus, ids),
    )


@dataclass(frozen=True, kw_only=True)
class Corpus:  # no slots: cached_property keeps its value in the instance
    """Documents of the own snapshot and of all earlier ones, numbered in order: the file, then the row.

    The last snapshot is the job's own; its documents have the numbers from `own_start`.
    """

    document_files: tuple[Path, ...]
    signature_files: tuple[Path, ...]
    own_files: int

    @staticmethod
    def of(job: Job) -> Corpus:
        """The corpus that a job names. DataError when documents and signatures do not belong together."""
        filtered, signed = job.inputs_of("filtered_documents"), job.inputs_of("document_signatures")
        if not filtered or [item.partition for item in filtered] != [item.partition for item in signed]:
            raise DataError(
                f"dedup of {job.partition}: filtered_documents of {[item.partition for item in filtered]} but"
                f" document_signatures of {[item.partition for item in signed]}; both are wanted for the same snapshots"
            )
        if filtered[-1].partition.partition("@")[2] != job.snapshot:
            raise DataError(
                f"dedup of {job.partition}: the last input is {filtered[-1].partition}, not the own snapshot"
            )
        documents = [document_files(item) for item in filtered]
        corpus = Corpus(
            document_files=tuple(path for files in documents for path in files),
            signature_files=tuple(path for item in signed for path in document_files(item, signatures.FOLDER)),
            own_files=len(documents[-1]),
        )
        if len(corpus.document_files) != len(corpus.signature_files):
            raise DataError(
                f"dedup of {job.partition}: {len(corpus.document_files)} document files,"
                f" {len(corpus.signature_files)} signature files"
            )
        return corpus

    @cached_property
    def signatures(self) -> signatures.Signatures:
        """The signatures of every document, without the bands."""
        return signatures.load(list(self.signature_files))

    @cached_property
    def file_starts(self) -> Orders:
        """Order number of each file's first document, and the total at the end."""
        sizes = [signatures.num_documents(path) for path in self.signature_files]
        return np.concatenate([[0], np.cumsum(np.array(sizes, np.int64))]).astype(np.int64)

    @property
    def own_start(self) -> int:
        """Order number of the own snapshot's first document."""
        return int(self.file_starts[len(self.document_files) - self.own_files])

    def __len__(self) -> int:
        return int(self.file_starts[-1])

    def band(self, bucket: int) -> Hashes:
        """The keys of one bucket, uint64 [documents]."""
        return signatures.band_of(list(self.signature_files), bucket)

    def rows(self, orders: Orders, column: str) -> Iterator[tuple[int, Any]]:
        """(order number, value) of one column for the documents in `orders` (sorted); other files stay closed."""
        bounds = np.searchsorted(orders, self.file_starts)
        for file, path in enumerate(self.document_files):
            wanted = orders[bounds[file] : bounds[file + 1]]
            if not len(wanted):
                continue
            start, rows = int(self.file_starts[file]), set(wanted.tolist())
            for number, row in enumerate(read_documents(path, [column]), start):
                if number in rows:
                    yield number, row[column]

    def ids_of(self, orders: set[int]) -> dict[int, str]:
        """The ids of some documents by order number."""
        return dict(self.rows(np.array(sorted(orders), np.int64), "id"))


def find_duplicates(corpus: Corpus, recipe: DedupRecipe, work: Work) -> dict[int, Duplicate]:
    """Every document of the own snapshot that the rule removes, by order number."""
    signed = corpus.signatures
    first_text = first_with_equal(signed.text)
    first_set = first_with_equal(signed.ngrams)
    wordless = np.flatnonzero(signed.count == 0)
    first_set[wordless] = wordless  # they have no n-gram to share
    distinct = np.flatnonzero((first_set == np.arange(len(corpus))) & (signed.count > 0))
    near = _near_duplicates(corpus, recipe, distinct, work)
    removed: dict[int, Duplicate] = {}
    for order in range(corpus.own_start, len(corpus)):
        if first_text[order] < order:
            removed[order] = Duplicate(of=int(first_text[order]), similarity=1.0, reason=EXACT)
        elif first_set[order] < order:
            removed[order] = Duplicate(of=int(first_set[order]), similarity=1.0, reason=NEAR)
        elif order in near:
            removed[order] = near[order]
    return removed


def first_with_equal(keys: Hashes) -> Orders:
    """For each row of `keys` [rows, 2] the smallest row number with an equal key."""
    if not len(keys):
        return np.empty(0, np.int64)
    pairs = np.ascontiguousarray(keys).view([("high", np.uint64), ("low", np.uint64)]).ravel()
    _, first, inverse = np.unique(pairs, return_index=True, return_inverse=True)
    return first[inverse].astype(np.int64)


def _near_duplicates(corpus: Corpus, recipe: DedupRecipe, distinct: Orders, work: Work) -> dict[int, Duplicate]:
    """The first verified near-duplicate of each own document that has one, among documents with distinct n-gram sets.

    Documents with equal sets were grouped before, so a page repeated a million times is one document here, and what is
    similar to one of a group is similar to all: the first of the group stands for it without changing any verdict.
    """
    own_start = corpus.own_start
    buckets = [shared_keys(distinct, corpus.band(bucket)[distinct], own_start) for bucket in range(recipe.buckets)]
    asked = sorted(entry for number, bucket in enumerate(buckets) for entry in bucket.asked(number, own_start))
    opened = np.unique(np.concatenate([np.empty(0, np.int64), *(bucket.members for bucket in buckets)]))
    found: dict[int, Duplicate] = {}
    compared = Counter({"documents": 0, "pairs": 0})
    with NgramStore(work.scratch / "ngrams.bin", corpus, opened, recipe.ngram_words) as store:
        for order, entries in groupby(asked, key=lambda entry: entry[0]):
            runs = [buckets[number].before(start, position) for _, number, start, position in entries]
            match, tried = first_match(order, heapq.merge(*runs), store, recipe.min_similarity)
            compared.update(documents=1, pairs=tried)
            if match is not None:
                found[order] = match
            if compared["documents"] % PROGRESS_DOCUMENTS == 0:
                work.progress.log(
                    step=compared["documents"], verified_pairs=compared["pairs"], near_duplicates=len(found)
                )
    work.progress.log(step=compared["documents"], verified_pairs=compared["pairs"], near_duplicates=len(found))
    log.info("%d texts opened, %d pairs verified, %d near-duplicates", len(opened), compared["pairs"], len(found))
    return found


@dataclass(frozen=True, kw_only=True, slots=True)
class SharedKeys:
    """One bucket's documents that share a key with another one and have an own document among them.

    `members` are order numbers, key by key and ascending within a key; `starts` [members] says where each one's key
    begins.
    """

    members: Orders
    starts: Orders

    def asked(self, number: int, own_start: int) -> Iterator[tuple[int, int, int, int]]:
        """(order, bucket number, start, position) of each own member that is not the first of its key."""
        positions = np.arange(len(self.members))
        wanted = np.flatnonzero((self.members >= own_start) & (positions > self.starts))
        for position in wanted.tolist():
            yield int(self.members[position]), number, int(self.starts[position]), position

    def before(self, start: int, position: int) -> Iterator[int]:
        """The members of a key ahead of a position, ascending; piecewise, as a first match mostly ends the search."""
        for piece in range(start, position, 64):
            yield from self.members[piece : min(piece + 64, position)].tolist()


def shared_keys(orders: Orders, keys: Hashes, own_start: int) -> SharedKeys:
    """Which of the documents `orders` (ascending) share their key with another one, at least one of them an own one."""
    by_key = np.argsort(keys, kind="stable")
    members, sorted_keys = orders[by_key], keys[by_key]
    begins = np.flatnonzero(np.concatenate([[True], sorted_keys[1:] != sorted_keys[:-1]])) if len(members) else by_key
    sizes = np.diff(np.append(begins, len(members)))
    lasts = members[begins + sizes - 1] if len(members) else members
    kept = (sizes > 1) & (lasts >= own_start)
    new_begins = np.cumsum(np.where(kept, sizes, 0)) - np.where(kept, sizes, 0)
    return SharedKeys(
        members=members[np.repeat(kept, sizes)],
        starts=np.repeat(new_begins[kept], sizes[kept]).astype(np.int64),
    )


class NgramStore:
    """The n-gram sets of the opened documents, in one memory-mapped private file, so that memory does not grow."""

    def __init__(self, path: Path, corpus: Corpus, opened: Orders, ngram_words: int) -> None:
        self._path = path
        self._opened = opened
        lengths = []
        with open(path, "wb") as stream:
            for _, text in corpus.rows(opened, "text"):
                ngrams = ngram_set(text, ngram_words)
                stream.write(ngrams.tobytes())
                lengths.append(len(ngrams))
        self._starts = np.concatenate([[0], np.cumsum(np.array(lengths, np.int64))]).astype(np.int64)
        self._values: Hashes = np.memmap(path, np.uint64, "r") if lengths else np.empty(0, np.uint64)

    def __enter__(self) -> NgramStore:
        return self

    def __exit__(self, *_: object) -> None:
        del self._values
        self._path.unlink()

    def of(self, order: int) -> Hashes:
        """The sorted distinct n-grams of an opened document."""
        row = int(np.searchsorted(self._opened, order))
        return self._values[self._starts[row] : self._starts[row + 1]]


def first_match(
    order: int, candidates: Iterator[int], store: NgramStore, min_similarity: float
) -> tuple[Duplicate | None, int]:
    """The first candidate (ascending, with repeats) that is similar enough, and how many pairs were compared."""
    ngrams, previous, tried = store.of(order), -1, 0
    for candidate in candidates:
        if candidate == previous:
            continue
        previous, other = candidate, store.of(candidate)
        # Sets that differ this much in size cannot be similar enough: |A∩B| / |A∪B| ≤ min / max.
        if min(len(ngrams), len(other)) < min_similarity * max(len(ngrams), len(other)):
            continue
        tried += 1
        similarity = jaccard(ngrams, other)
        if similarity >= min_similarity:
            return Duplicate(of=candidate, similarity=similarity, reason=NEAR), tried
    return None, tried


# Writing


@dataclass(kw_only=True)
class _Tally:
    """What was kept and dropped, per group for the gate."""

    kept: Counter[tuple[str, str]]
    total: Counter[tuple[str, str]]
    reasons: Counter[str]

    @property
    def counts(self) -> Counts:
        return Counts(records_in=self.total.total(), kept=self.kept.total(), dropped=dict(sorted(self.reasons.items())))


def _write(
    corpus: Corpus, removed: dict[int, Duplicate], ids: dict[int, str], work: Work
) -> tuple[tuple[str, ...], _Tally]:
    """Copy the own documents into kept and dropped ones, file by file."""
    tally = _Tally(kept=Counter(), total=Counter(), reasons=Counter())
    names: list[str] = []
    first = len(corpus.document_files) - corpus.own_files
    last: tuple[str, int] = ("", -1)
    for rank, path in enumerate(corpus.document_files[first:]):
        extra = extra_columns(path)
        pair = f"documents/{rank:05d}.parquet", f"dropped/{rank:05d}.parquet"
        names.extend(pair)
        start = int(corpus.file_starts[first + rank])
        with (
            DocumentWriter(work.path / pair[0], extra) as kept,
            DocumentWriter(work.path / pair[1], (*extra, "reason", "duplicate_of", "similarity")) as dropped,
        ):
            for order, row in enumerate(read_documents(path), start):
                last = _checked_order(last, row, path)
                _place(row, removed.get(order), ids, tally, kept, dropped)
        work.progress.log(step=rank + 1, documents=tally.total.total(), kept=tally.kept.total())
    return tuple(names), tally


def _place(
    row: dict[str, Any],
    duplicate: Duplicate | None,
    ids: dict[int, str],
    tally: _Tally,
    kept: DocumentWriter,
    dropped: DocumentWriter,
) -> None:
    group = (row["source"], row["language"] or "")
    tally.total[group] += 1
    if duplicate is None:
        tally.kept[group] += 1
        kept.write(row)
        return
    tally.reasons[duplicate.reason] += 1
    added = {"reason": duplicate.reason, "duplicate_of": ids[duplicate.of], "similarity": duplicate.similarity}
    dropped.write({**row, **added})


def _checked_order(last: tuple[str, int], row: dict[str, Any], path: Path) -> tuple[str, int]:
    place = row["warc_file"], row["warc_offset"]
    if place <= last:
        raise DataError(
            f"{path}: document {row['id']!r} comes after {last[0]} at {last[1]}; documents must ascend by WARC file and"
            " offset through a snapshot's files, because the smaller one stays"
        )
    return place


# Reporting


def _metrics(corpus: Corpus, removed: dict[int, Duplicate], tally: _Tally) -> dict[str, float]:
    sizes = Counter(_root(order, removed) for order in removed)
    total = tally.total.total()
    return {
        "documents": total,
        "kept_fraction": tally.kept.total() / max(total, 1),
        "removed_exact": tally.reasons[EXACT],
        "removed_near": tally.reasons[NEAR],
        "removed_cross_snapshot": sum(duplicate.of < corpus.own_start for duplicate in removed.values()),
        "clusters": len(sizes),
        "largest_cluster": max(sizes.values(), default=0) + bool(sizes),
        "compared_documents": len(corpus),
    }


def _root(order: int, removed: dict[int, Duplicate]) -> int:
    """The document at the end of the chain of `duplicate_of`; one of an earlier snapshot ends it."""
    while order in removed:
        order = removed[order].of
    return order


def _gates(recipe: DedupRecipe, tally: _Tally) -> tuple[Gate, ...]:
    """`survival`: every source and language keeps at least the recipe's share. Absent when the recipe asks for none."""
    if recipe.min_kept_fraction <= 0:
        return ()
    survival = {group: tally.kept[group] / total for group, total in sorted(tally.total.items())}
    failed = {"/".join(group): round(share, 6) for group, share in survival.items() if share < recipe.min_kept_fraction}
    return (
        Gate(
            name="survival",
            passed=not failed,
            evidence={
                "min_kept_fraction": recipe.min_kept_fraction,
                "below": failed,
                "lowest": round(min(survival.values(), default=1.0), 6),
                "groups": len(survival),
            },
        ),
    )


def _notes(recipe: DedupRecipe, removed: dict[int, Duplicate], corpus: Corpus, ids: dict[int, str]) -> dict[str, Any]:
    if not recipe.enabled:
        return {"deduplication": "off: dedup.enabled is false, every document passed"}
    # Spread over the snapshot, and the same ones on every run.
    orders = sorted(removed)[:: max(1, len(removed) // SAMPLE_PAIRS)][:SAMPLE_PAIRS]
    own = corpus.ids_of(set(orders))
    return {
        "sample_pairs": [
            {
                "id": own[order],
                "duplicate_of": ids[removed[order].of],
                "similarity": round(removed[order].similarity, 4),
                "reason": removed[order].reason,
            }
            for order in orders
        ]
    }
