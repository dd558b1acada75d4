"""Find documents of a snapshot that repeat an earlier one: by URL, text, set of n-grams, or verified similarity.

There are four phases (training/contract/running/phase.py), each in ranks that hold a group of files or a range of keys:

- `keys`, for each group: spread the group's signatures over the ranges;
- `candidates`, for each range: find equal keys, with all documents of the range in one place;
- `texts`, for each group: make the n-gram sets of the documents that candidates are compared with;
- `verify`, for each group of the job's snapshot: compare the candidates and decide.

The phases exchange data as slices (training/data/dedup/shuffle.py).
"""

from __future__ import annotations

import itertools
import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from training.contract.job import Job, Work
from training.data.dedup import index
from training.data.dedup import sign as signatures
from training.data.dedup.blocks import joined, packed, ranges, strings, strings_of, unpacked
from training.data.dedup.corpus import Corpus, Flags, Group, Orders, corpus_of
from training.data.dedup.settings import DedupRecipe
from training.data.dedup.shuffle import SliceFile, name_of, read_slice, writing_slices
from training.data.documents import open_documents, utf8_of
from training.data.words.ngrams import Hashes, jaccard, ngram_set

log = logging.getLogger(__name__)

KEPT, URL, EXACT, NEAR = range(4)
REASONS = ("", "duplicate_url", "exact_duplicate", "near_duplicate")

Columns = tuple[npt.NDArray[Any], ...]  # of equal lengths
WHOLE = (np.uint64, np.uint64, np.int64)  # both halves of a 128-bit hash, order number
BAND = (np.uint64, np.int64, np.uint64, np.uint64)  # MinHash key, order number, both halves of the set's hash


def whole_keys(recipe: DedupRecipe) -> dict[str, int]:
    """Return the signature arrays in which equal values make a duplicate, with the reason, weaker reasons first."""
    return {"ngrams": NEAR, "text": EXACT} | ({"url": URL} if recipe.urls else {})


# Phase `keys`


def spread_keys(job: Job, work: Work, rank: int) -> dict[str, Any]:
    """Write the signatures of one group of files, one slice for each range of keys.

    There is nothing to write for a group that has an index.
    """
    recipe, corpus = job.settings_as(DedupRecipe, "dedup"), corpus_of(job)
    group = corpus.groups[rank]
    if group.index is not None:
        return {"files": []}
    tables = [_split(table, corpus.num_ranges) for table in _tables(group, recipe)]
    with writing_slices(job, work, "keys", rank, index.what_of(group.index_key, group.name, "keys")) as slices:
        for number in range(corpus.num_ranges):
            slices.add(*packed([column for table in tables for column in table[number]]))
    return {"files": [name_of("keys", rank)]}


def _tables(group: Group, recipe: DedupRecipe) -> Iterator[Columns]:
    """Yield the tables of keys of a group.

    Order numbers are counted from the group's first document, so that they do not depend on the other snapshots.
    """
    orders = group.orders - group.start
    for name in whole_keys(recipe):
        pairs = group.keys(name).reshape(-1, 2)
        yield _filled((np.ascontiguousarray(pairs[:, 0]), np.ascontiguousarray(pairs[:, 1]), orders), pairs.any(axis=1))
    sets = group.keys("ngrams").reshape(-1, 2)
    halves = np.ascontiguousarray(sets[:, 0]), np.ascontiguousarray(sets[:, 1])
    for bucket in range(recipe.buckets):
        keys = group.keys("bands", bucket)
        yield _filled((keys, orders, *halves), keys != 0)


def _filled(columns: Columns, filled: Any) -> Columns:
    """Return the rows that have a key. A key of zeros means that there is none."""
    return columns if filled.all() else tuple(column[filled] for column in columns)


def _split(columns: Columns, num_ranges: int) -> list[Columns]:
    """Divide rows among ranges of keys by the highest bits of the first column."""
    if num_ranges == 1:
        return [columns]
    of = _ranges_of(columns[0], num_ranges)
    by = np.argsort(of, kind="stable")
    bounds = np.searchsorted(of[by], np.arange(num_ranges + 1))
    columns = tuple(column[by] for column in columns)
    return [tuple(column[begin:end] for column in columns) for begin, end in itertools.pairwise(bounds)]


def _ranges_of(keys: Hashes, num_ranges: int) -> npt.NDArray[np.uint16]:
    return (keys >> np.uint64(65 - num_ranges.bit_length())).astype(np.uint16)


# Phase `candidates`


@dataclass
class _Found:
    """The duplicates and candidates that were found in one range of keys for one group of the job's snapshot."""

    whole: dict[str, tuple[Orders, Orders]]  # by name: documents, and the first ones with equal keys
    runs: list[tuple[Orders, Flags]]  # by bucket: runs of documents, ascending, and where each run begins


def find_candidates(job: Job, work: Work, rank: int) -> dict[str, Any]:
    """Find the equal keys in one range.

    There is a slice for each group of all snapshots, with the documents whose n-gram sets and ids are needed and which
    groups need them; then one for each group of the job's snapshot, with its duplicates and candidates.
    """
    recipe, corpus = job.settings_as(DedupRecipe, "dedup"), corpus_of(job)
    names = list(whole_keys(recipe))
    found = {group: _Found(whole={}, runs=[]) for group in corpus.own}
    tables = _Tables(job, work, corpus, recipe, rank)
    for place, name in enumerate(names):
        askers, firsts = least_equal(tables.of(place), corpus.own_start)
        for group, chosen in _by_group(corpus, askers):
            found[group].whole[name] = askers[chosen], firsts[chosen]
    for bucket in range(recipe.buckets):
        members, begins = runs_of_equal(tables.of(len(names) + bucket), corpus.own_start)
        for group, run in _runs_by_group(corpus, members, begins):
            found[group].runs.append(run)
    compared = {g: np.unique(joined([members for members, _ in one.runs], np.int64)) for g, one in found.items()}
    first_ones = {
        g: np.unique(joined([first for _, first in one.whole.values()], np.int64)) for g, one in found.items()
    }
    sets, ids = _wanted_by_group(corpus, compared), _wanted_by_group(corpus, first_ones)
    with writing_slices(job, work, "candidates", rank) as slices:
        for group in range(len(corpus.groups)):
            slices.add(*packed([*_columns(sets.get(group, [])), *_columns(ids.get(group, []))]))
        for one in found.values():
            pairs = [column for name in names for column in one.whole[name]]
            flags = joined([begins for _, begins in one.runs], np.bool_)
            sizes = np.array([len(members) for members, _ in one.runs], np.int64)
            slices.add(*packed([*pairs, sizes, joined([members for members, _ in one.runs], np.int64), flags]))
    longest = max((_longest(*run) for one in found.values() for run in one.runs), default=0)
    return {"files": [name_of("candidates", rank)], "longest_run": longest}


def _longest(members: Orders, begins: Flags) -> int:
    return int(np.diff(np.append(np.flatnonzero(begins), len(members))).max()) if len(members) else 0


class _Tables:
    """Reads the tables of keys of one range: all rows of the own snapshot, and the earlier rows that have their keys.

    Earlier groups are read one at a time, so that the memory does not grow with the number of earlier snapshots.
    """

    def __init__(self, job: Job, work: Work, corpus: Corpus, recipe: DedupRecipe, rank: int) -> None:
        self._types = [WHOLE] * len(whole_keys(recipe)) + [BAND] * recipe.buckets
        self._corpus = corpus
        self._own = [self._read(job, work, recipe, group, rank) for group in corpus.own]
        self._earlier: list[list[Columns]] = [[] for _ in self._types]  # by table
        searches = [self._search(number) for number in range(len(self._types))] if corpus.earlier else []
        for _, groups in itertools.groupby(corpus.earlier, lambda group: corpus.groups[group].snapshot):
            found: list[list[Columns]] = [[] for _ in self._types]
            for group in groups:
                for place, table in enumerate(self._read(job, work, recipe, group, rank)):
                    if (search := searches[place]) is not None and len(rows := search(table[0])):
                        found[place].append(self._placed(tuple(column[rows] for column in table), group))
                del table  # it would keep the whole group's keys while the next group's are read
            for parts, kept, kinds in zip(found, self._earlier, self._types, strict=True):
                kept.extend([_joined(parts, kinds)] if parts else [])

    def _read(self, job: Job, work: Work, recipe: DedupRecipe, number: int, rank: int) -> list[Columns]:
        """Return all tables of a group."""
        group, num_ranges = self._corpus.groups[number], self._corpus.num_ranges
        if group.index is None:
            what = index.what_of(group.index_key, group.name, "keys")
            data = read_slice(job, work, "keys", number, rank, what)
            return _in_tables(unpacked(data, list(itertools.chain(*self._types))), self._types)
        with index.opened(group.index, group.name, "keys") as file:
            tables = _indexed_tables(file, self._types, num_ranges, rank)
        if tables is None:
            log.warning("%s: missing or damaged; the signatures are read instead", file.path)
            tables = [_split(table, num_ranges)[rank] for table in _tables(group, recipe)]
        return tables

    def _placed(self, columns: Columns, group: int) -> Columns:
        """Return rows of a group with the order numbers that they have among all documents."""
        start = self._corpus.groups[group].start
        return tuple(column + start if column.dtype == np.int64 else column for column in columns)

    def _search(self, number: int) -> Callable[[Hashes], Orders] | None:
        """Return what finds the rows that have a key of the own snapshot in a table; None if it has no key there."""
        keys = joined([tables[number][0] for tables in self._own], np.uint64)
        return _search(keys) if len(keys) else None

    def of(self, number: int) -> Columns:
        """Return the rows of the own snapshot in a table, and the earlier rows whose first key occurs among them."""
        own = [self._placed(tables[number], group) for group, tables in zip(self._corpus.own, self._own, strict=True)]
        return _joined([*own, *self._earlier[number]], self._types[number])


def _joined(parts: Sequence[Columns], kinds: Sequence[type]) -> Columns:
    return tuple(joined([table[place] for table in parts], kind) for place, kind in enumerate(kinds))


def _indexed_tables(
    file: SliceFile, types: Sequence[Sequence[type]], num_ranges: int, number: int
) -> list[Columns] | None:
    """Return the tables of keys in one of `num_ranges` ranges from an index, or None if it is damaged.

    The job that wrote the file may have had more or fewer ranges. Both numbers are powers of two.
    """
    num_slices = len(file)
    if not num_slices:
        return None
    each = max(num_slices // num_ranges, 1)
    first = number * num_slices // num_ranges
    slices = [file.read(place) for place in range(first, first + each)]
    if not all(data is not None for data in slices):
        return None
    parts = [_in_tables(unpacked(data, list(itertools.chain(*types))), types) for data in slices if data is not None]
    tables = [_joined(tables, kinds) for *tables, kinds in zip(*parts, types, strict=True)]
    if num_slices >= num_ranges:
        return tables
    inside = [_ranges_of(table[0], num_ranges) == number for table in tables]
    return [tuple(column[rows] for column in table) for table, rows in zip(tables, inside, strict=True)]


def _in_tables(columns: list[npt.NDArray[Any]], types: Sequence[Sequence[type]]) -> list[Columns]:
    ends = list(itertools.accumulate(map(len, types)))
    return [tuple(columns[end - len(kinds) : end]) for kinds, end in zip(types, ends, strict=True)]


def _search(wanted: Hashes) -> Callable[[Hashes], Orders]:
    """Return a function that finds the indices at which an array of keys has one of the wanted keys."""
    ordered = np.sort(wanted)
    # A table indexed by the keys' lower bits, with at least eight one-byte entries per wanted key, rules out most
    # other keys without a binary search. The higher bits are equal in a range.
    mask = np.uint64((1 << max(10, int(len(wanted) * 8).bit_length())) - 1)
    present = np.zeros(int(mask) + 1, np.bool_)
    present[wanted & mask] = True

    def places(keys: Hashes) -> Orders:
        maybe = np.flatnonzero(present[keys & mask])
        place = np.searchsorted(ordered, keys[maybe])
        place[place == len(ordered)] = 0
        return maybe[ordered[place] == keys[maybe]]

    return places


def repeated(keys: Hashes) -> Orders:
    """Return the indices of the keys that occur more than once, grouped by key."""
    by = np.argsort(keys)
    ordered = keys[by]
    same = ordered[1:] == ordered[:-1]
    again = np.zeros(len(keys), np.bool_)
    again[1:] |= same
    again[:-1] |= same
    return by[again]


def least_equal(rows: Columns, own_start: int) -> tuple[Orders, Orders]:
    """Return the snapshot's own documents whose key an earlier document has, and the first document with that key.

    Keys have 128 bits. The documents are in ascending order.
    """
    again = repeated(rows[0])
    ones, twos, members = (column[again] for column in rows)
    by = np.lexsort((members, twos, ones))
    ones, twos, members = ones[by], twos[by], members[by]
    begins = _changes(ones) | _changes(twos)
    least = members[begins][np.cumsum(begins) - 1] if len(members) else members
    asking = (members >= own_start) & (least < members)
    members, least = members[asking], least[asking]
    by = np.argsort(members)
    return members[by], least[by]


def _changes(values: npt.NDArray[Any]) -> Flags:
    """Flag the first value, and every value that differs from the one before."""
    flags = np.ones(len(values), np.bool_)
    flags[1:] = values[1:] != values[:-1]
    return flags


def runs_of_equal(rows: Columns, own_start: int) -> tuple[Orders, Flags]:
    """Return runs of documents that share a MinHash key, ascending within a run, and flags of where each run begins.

    Of documents with equal sets of n-grams only the first is in the runs. A page repeated a million times therefore
    counts as one document here; whatever is similar to one of its copies is similar to all. Each run has at least two
    documents, and its last one is of the own snapshot.
    """
    again = repeated(rows[0])
    keys, orders, ones, twos = (column[again] for column in rows)
    by = np.lexsort((orders, twos, ones, keys))  # documents with equal sets have equal keys
    keys, orders = keys[by], orders[by]
    first = _changes(keys) | _changes(ones[by]) | _changes(twos[by])
    keys, orders = keys[first], orders[first]
    by = np.lexsort((orders, keys))
    keys, orders = keys[by], orders[by]
    begins = _changes(keys)
    starts = np.flatnonzero(begins)
    ends = np.append(starts[1:], len(keys)) if len(starts) else starts
    asks = (ends - starts > 1) & (orders[ends - 1] >= own_start)
    members = orders[ranges(starts[asks], ends[asks])]
    return members, _begins(ends[asks] - starts[asks])


def _begins(sizes: Orders) -> Flags:
    flags = np.zeros(int(sizes.sum()), np.bool_)
    flags[np.cumsum(sizes) - sizes] = True
    return flags


def _by_group(corpus: Corpus, orders: Orders) -> Iterator[tuple[int, slice]]:
    """Return, for each group of the job's snapshot, which slice of the (ascending) documents is in the group."""
    for group in corpus.own:
        first, last = np.searchsorted(orders, (corpus.groups[group].start, corpus.groups[group].end))
        yield group, slice(first, last)


def _runs_by_group(corpus: Corpus, members: Orders, begins: Flags) -> Iterator[tuple[int, tuple[Orders, Flags]]]:
    """For each group of the own snapshot, return the runs of documents that it must be compared with.

    Such a run contains a document of the group that is not the first of the run. The run ends with the last such
    document.
    """
    if corpus.num_own == 1:
        yield corpus.own.start, (members, begins)
        return
    asking = np.flatnonzero((members >= corpus.own_start) & ~begins)
    run = np.cumsum(begins) - 1
    groups, runs = corpus.groups_of(members[asking]), run[asking]
    by = np.lexsort((asking, runs, groups))
    groups, runs, asking = groups[by], runs[by], asking[by]
    last = np.ones(len(by), np.bool_)
    last[:-1] = (groups[1:] != groups[:-1]) | (runs[1:] != runs[:-1])
    groups, starts, ends = groups[last], np.flatnonzero(begins)[runs[last]], asking[last] + 1
    for group in corpus.own:
        chosen = slice(*np.searchsorted(groups, (group, group + 1)))
        yield group, (members[ranges(starts[chosen], ends[chosen])], _begins(ends[chosen] - starts[chosen]))


def _wanted_by_group(corpus: Corpus, wanted: dict[int, Orders]) -> dict[int, list[tuple[int, Orders]]]:
    """Divide the documents that each group of the job's snapshot needs by the groups that contain them."""
    found: dict[int, list[tuple[int, Orders]]] = defaultdict(list)
    for own, orders in wanted.items():
        of = corpus.groups_of(orders)
        begins = np.flatnonzero(_changes(of))
        for start, end in itertools.pairwise([*begins.tolist(), len(of)]):
            found[int(of[start])].append((own, orders[start:end]))
    return found


def _columns(found: list[tuple[int, Orders]]) -> tuple[Orders, Orders, Orders]:
    """Return three arrays: group numbers, how many documents each group needs, and these documents' order numbers."""
    return (
        np.array([own for own, _ in found], np.int64),
        np.array([len(orders) for _, orders in found], np.int64),
        joined([orders for _, orders in found], np.int64),
    )


# Phase `texts`


def read_texts(job: Job, work: Work, rank: int) -> dict[str, Any]:
    """Write the n-gram sets and ids of one group's documents with which other groups must compare theirs.

    There is one slice for each of those groups.
    """
    recipe, corpus = job.settings_as(DedupRecipe, "dedup"), corpus_of(job)
    group = corpus.groups[rank]
    sets: dict[int, list[Orders]] = {own: [] for own in corpus.own}
    ids: dict[int, list[Orders]] = {own: [] for own in corpus.own}
    for number in range(corpus.num_ranges):
        arrays = unpacked(read_slice(job, work, "candidates", number, rank), [np.int64] * 6)
        for into, (owns, sizes, orders) in ((sets, arrays[:3]), (ids, arrays[3:])):
            ends = np.cumsum(sizes)
            for own, size, end in zip(owns.tolist(), sizes.tolist(), ends.tolist(), strict=True):
                into[own].append(orders[end - size : end])
    wanted = {own: np.unique(joined(parts, np.int64)) for own, parts in sets.items()}
    named = {own: np.unique(joined([wanted[own], *parts], np.int64)) for own, parts in ids.items()}
    opened = np.unique(joined(list(wanted.values()), np.int64))
    all_named = np.unique(joined(list(named.values()), np.int64))
    all_ids, values, starts = ids_and_sets(group, all_named, opened, recipe.ngram_words)
    with writing_slices(job, work, "texts", rank) as slices:
        for own in corpus.own:
            places = np.searchsorted(opened, wanted[own])
            own_values = values if len(places) == len(opened) else values[ranges(starts[places], starts[places + 1])]
            bounds = np.concatenate([[0], np.cumsum(np.diff(starts)[places])])
            id_starts, id_bytes = strings(all_ids.take(pa.array(np.searchsorted(all_named, named[own]))))
            slices.add(*packed([wanted[own], bounds, own_values, named[own], id_starts, id_bytes]))
    return {"files": [name_of("texts", rank)], "opened": len(opened)}


SETS_BYTES = 256_000_000  # of n-gram sets that a rank of `verify` has in memory beside those of its own group
TEXTS = (np.int64, np.int64, np.uint64, np.int64, np.int64, np.uint8)


TEXTS_AT_ONCE = 1000  # that are taken from an index at once


def ids_and_sets(group: Group, named: Orders, opened: Orders, ngram_words: int) -> tuple[pa.Array, Hashes, Orders]:
    """Return the ids of the documents `named` of a group, and the n-gram sets of the documents `opened` among them.

    The sets follow one another; the last array says where each begins, [documents + 1].
    """
    if group.index is not None:
        with index.opened(group.index, group.name, "texts") as file:
            found = _ids_and_sets_indexed(group, index.Blocks(file), named, opened, ngram_words)
        if found is not None:
            return found
        log.warning("%s: missing or damaged; the documents are read instead", file.path)
    ids = pa.chunked_array(list(group.column(named, "id")), pa.string()).combine_chunks()
    num_bytes = _num_text_bytes(group, opened) if len(opened) else 0
    return ids, *_sets_of(group.column(opened, "text"), num_bytes, ngram_words)


def _ids_and_sets_indexed(
    group: Group, blocks: index.Blocks, named: Orders, opened: Orders, ngram_words: int
) -> tuple[pa.Array, Hashes, Orders] | None:
    """Return what `ids_and_sets` does from the texts in an index, or None if one of these is missing or damaged."""
    file_starts = blocks.file_starts()
    if file_starts is None:
        return None
    ids, sets = [pa.array([], pa.string())], [_sets_of([], 0, ngram_words)]
    for first in range(0, len(named), TEXTS_AT_ONCE):
        orders = named[first : first + TEXTS_AT_ONCE]
        documents = blocks.of(group.rows_in(file_starts, orders), int(file_starts[-1]))
        if documents is None:
            return None
        ids.append(documents[0])
        texts = documents[1].filter(pa.array(np.isin(orders, opened, assume_unique=True)))
        sets.append(_sets_of([texts], texts.nbytes, ngram_words))
    sizes = np.concatenate([np.diff(starts) for _, starts in sets])
    values = joined([values for values, _ in sets], np.uint64)
    return pa.chunked_array(ids).combine_chunks(), values, np.concatenate([[0], np.cumsum(sizes)])


def _sets_of(batches: Iterable[pa.StringArray], num_bytes: int, ngram_words: int) -> tuple[Hashes, Orders]:
    make = _sets_compiled if signatures.is_worth_compiling(num_bytes) else _sets_plainly
    values, sizes = [], [np.zeros(1, np.int64)]
    for texts in batches:
        found, starts = make(texts, ngram_words)
        values.append(found)
        sizes.append(np.diff(starts))
    return joined(values, np.uint64), np.cumsum(np.concatenate(sizes))


def _num_text_bytes(group: Group, orders: Orders) -> int:
    """Estimate the text bytes of documents of a group from the mean text size in each file."""
    total = 0.0
    wanted = np.diff(np.searchsorted(group.rows_of(orders), group.file_starts))
    for file in np.flatnonzero(wanted).tolist():
        with open_documents(group.documents[file]) as parquet:
            total += signatures.num_text_bytes(parquet) * wanted[file] / parquet.metadata.num_rows
    return int(total)


def _sets_compiled(texts: pa.StringArray, ngram_words: int) -> tuple[Hashes, Orders]:
    from training.data.dedup import minhash

    return minhash.ngram_sets(*utf8_of(texts), ngram_words)


def _sets_plainly(texts: pa.StringArray, ngram_words: int) -> tuple[Hashes, Orders]:
    sets = [ngram_set(text, ngram_words) for text in texts.to_pylist()]
    starts = np.cumsum([0, *map(len, sets)])
    return np.concatenate([np.empty(0, np.uint64), *sets]), starts


# Phase `verify`


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdicts:
    """Decisions about each document of a group of the job's snapshot, as arrays.

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
        """Mark documents as removed; `reason` is one value for all rows or one for each row."""
        self.reason[rows], self.of[rows], self.similarity[rows] = reason, of, similarity


def verify(job: Job, work: Work, rank: int) -> tuple[Verdicts, pa.LargeStringArray, int]:
    """Return the verdicts on one group of the job's snapshot, with the evidence for them.

    The evidence is the ids of the documents that removed ones repeat, in order, and the number of compared pairs.
    If several reasons apply, the first in this order is recorded: URL, text, n-grams, similarity.
    """
    recipe, corpus = job.settings_as(DedupRecipe, "dedup"), corpus_of(job)
    group = corpus.groups[corpus.own[rank]]
    verdicts = Verdicts.keep_all(len(group))
    whole, runs = _asked(job, work, corpus, recipe, rank)
    own = _Sets.read(job, work, corpus.own[rank], rank)
    nearest = _Nearest.none(len(own.orders))
    ids = _Ids(np.unique(joined([firsts for pairs in whole.values() for _, firsts in pairs], np.int64)))
    tried = 0
    for others, is_last in _batches(job, work, corpus, rank, own):
        tried += _compare(others, own, is_last, runs, recipe.min_similarity, nearest)
        ids.add(others, nearest.of)
    rows = np.flatnonzero(nearest.of >= 0)
    verdicts.remove(group.rows_of(own.orders[rows]), NEAR, nearest.of[rows], nearest.similarity[rows])
    # The strongest reason is entered last and overwrites the weaker ones.
    for name, reason in whole_keys(recipe).items():
        for askers, firsts in whole[name]:
            verdicts.remove(group.rows_of(askers), reason, firsts)
    return verdicts, ids.of(verdicts.of[verdicts.reason > 0]), tried


def _asked(
    job: Job, work: Work, corpus: Corpus, recipe: DedupRecipe, rank: int
) -> tuple[dict[str, list[tuple[Orders, Orders]]], list[tuple[Orders, Flags]]]:
    """Return what was found for one group in all ranges of keys: pairs by the name of the equal key, runs by bucket."""
    names = list(whole_keys(recipe))
    whole: dict[str, list[tuple[Orders, Orders]]] = {name: [] for name in names}
    runs: list[list[tuple[Orders, Flags]]] = [[] for _ in range(recipe.buckets)]
    for number in range(corpus.num_ranges):
        data = read_slice(job, work, "candidates", number, len(corpus.groups) + rank)
        *pairs, sizes, members, flags = unpacked(data, [*[np.int64] * (2 * len(names) + 2), np.bool_])
        for place, name in enumerate(names):
            whole[name].append((pairs[2 * place], pairs[2 * place + 1]))
        ends = np.cumsum(sizes)
        for bucket, (start, end) in enumerate(zip(ends - sizes, ends, strict=True)):
            runs[bucket].append((members[start:end], flags[start:end]))
    together = [(joined([m for m, _ in one], np.int64), joined([f for _, f in one], np.bool_).copy()) for one in runs]
    return whole, together


@dataclass(frozen=True, kw_only=True, slots=True)
class _Sets:
    """The n-gram sets of some documents, in their order, and the ids of these and other documents."""

    orders: Orders
    starts: Orders
    values: Hashes
    named: Orders
    ids: pa.LargeStringArray

    @staticmethod
    def read(job: Job, work: Work, group: int, rank: int) -> _Sets:
        """Read the n-gram sets of one group that the phase `texts` wrote for one rank of this phase."""
        orders, starts, values, named, *ids = unpacked(read_slice(job, work, "texts", group, rank), TEXTS)
        return _Sets(orders=orders, starts=starts, values=values, named=named, ids=strings_of(*ids))

    @staticmethod
    def joined(parts: list[_Sets]) -> _Sets:
        """Concatenate the n-gram sets of several groups."""
        sizes = joined([np.diff(part.starts) for part in parts], np.int64)
        values = joined([part.values for part in parts], np.uint64)
        values.flags.writeable = False  # as slices are, so that the compiled loop gets one type
        return _Sets(
            orders=joined([part.orders for part in parts], np.int64),
            starts=np.concatenate([[0], np.cumsum(sizes)]),
            values=values,
            named=joined([part.named for part in parts], np.int64),
            ids=pa.chunked_array([part.ids for part in parts], pa.large_string()).combine_chunks(),
        )


def _batches(job: Job, work: Work, corpus: Corpus, rank: int, own: _Sets) -> Iterator[tuple[_Sets, bool]]:
    """Yield the sets that a group is compared with, in the order of the documents, some SETS_BYTES at a time.

    The last batches are marked; they include the sets of the group itself.
    """
    parts, size = list[_Sets](), 0
    for group in range(corpus.own[rank]):
        parts.append(_Sets.read(job, work, group, rank))
        size += parts[-1].values.nbytes
        if size >= SETS_BYTES:
            yield _Sets.joined(parts), False
            parts, size = [], 0
    yield _Sets.joined([*parts, own]), True


@dataclass(frozen=True, kw_only=True, slots=True)
class _Nearest:
    """For each document with a set, the first similar document that was found so far (-1 for none)."""

    of: Orders
    similarity: npt.NDArray[np.float64]

    @staticmethod
    def none(number: int) -> _Nearest:
        return _Nearest(of=np.full(number, -1, np.int64), similarity=np.zeros(number))


def _compare(
    others: _Sets,
    own: _Sets,
    is_last: bool,
    runs: list[tuple[Orders, Flags]],
    min_similarity: float,
    nearest: _Nearest,
) -> int:
    """Find the first similar document among `others` for the documents that have none; return the pairs tried.

    The batches ascend, so that a document found in one batch is smaller than all documents of later batches.
    """
    sets = others if is_last else _Sets.joined([others, own])
    first_own = len(sets.orders) - len(own.orders)
    best, similarity = np.arange(len(sets.orders)), np.zeros(len(sets.orders))
    if not is_last:
        best[first_own:] = first_own  # the group's own documents are compared with each other in the last batch
    best[first_own:][nearest.of >= 0] = 0
    begun_with = best.copy()
    compare = _compiled_comparison() if sets.values.nbytes >= signatures.COMPILED_FROM_BYTES else first_similar
    tried = 0
    for members, begins in runs:
        rows, begins = _rows_in(sets.orders, members, begins)
        tried += compare(rows, begins, rows >= first_own, sets.values, sets.starts, min_similarity, best, similarity)
    found = np.flatnonzero(best[first_own:] < begun_with[first_own:])
    nearest.of[found] = sets.orders[best[first_own:][found]]
    nearest.similarity[found] = similarity[first_own:][found]
    return tried


def _rows_in(orders: Orders, members: Orders, begins: Flags) -> tuple[Orders, Flags]:
    """Return the positions in `orders` of the runs' members, without absent ones, and flags where each run begins."""
    rows = np.searchsorted(orders, members)
    there = orders[np.minimum(rows, len(orders) - 1)] == members if len(orders) else np.zeros(len(members), np.bool_)
    if there.all():
        return rows, begins
    return rows[there], _changes((np.cumsum(begins) - 1)[there])


class _Ids:
    """Collects the ids of documents that others repeat, from batch to batch."""

    def __init__(self, firsts: Orders) -> None:
        self._firsts = firsts
        self._orders: list[Orders] = []
        self._ids: list[pa.LargeStringArray] = []

    def add(self, others: _Sets, nearest: Orders) -> None:
        """Keep the ids of those documents in a batch that others repeat."""
        wanted = np.intersect1d(np.concatenate([self._firsts, nearest]), others.named)
        self._orders.append(wanted)
        self._ids.append(others.ids.take(pa.array(np.searchsorted(others.named, wanted))))

    def of(self, orders: Orders) -> pa.LargeStringArray:
        """Return the ids of documents by their order numbers."""
        ids = pa.chunked_array(self._ids, pa.large_string()).combine_chunks()
        return ids.take(pa.array(np.searchsorted(joined(self._orders, np.int64), orders)))


def _compiled_comparison() -> Callable[..., int]:
    from training.data.dedup import minhash

    return minhash.first_similar


def first_similar(
    rows: Orders,
    begins: Flags,
    asks: Flags,
    sets: Hashes,
    starts: Orders,
    min_similarity: float,
    best: Orders,
    similarity: npt.NDArray[np.float64],
) -> int:
    """Find each row's first similar row among rows that share a key.

    This is the plain Python version of `minhash.first_similar`.
    """
    tried, begin = 0, 0
    bounds = starts.tolist()
    for position, row in enumerate(rows.tolist()):
        if begins[position]:
            begin = position
        if not asks[position]:
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
