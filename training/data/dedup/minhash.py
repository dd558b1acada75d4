"""Compiled loops of deduplication: sets of word n-grams, their MinHash keys, and first similar documents.

Each gives the same result as a plain Python function: `distinct_ngrams` as ngrams.ngram_set, in another order;
`sign_sets` as sign.set_digest and sign.band_keys; `first_similar` as duplicates.first_similar.
"""

from __future__ import annotations

import numpy as np

from training.data.words.hashes import Bytes, Offsets, hash_words, mixed
from training.data.words.native import native
from training.data.words.ngrams import Hashes

_MIX = 0x9E3779B97F4A7C15


def ngram_sets(data: Bytes, offsets: Offsets, num_words: int) -> tuple[Hashes, Offsets]:
    """Return one array of each text's distinct n-grams, in order of occurrence, and the start of each text in it."""
    hashes, word_starts = hash_words(data, offsets)
    sets = np.empty(len(hashes), np.uint64)
    starts = distinct_ngrams(hashes, word_starts, num_words, sets)
    return sets[: starts[-1]], starts


@native
def distinct_ngrams(hashes, word_starts, num_words, sets):
    """Write the distinct n-grams of each text into `sets`, in order of occurrence; return the starts, [texts + 1].

    `sets` must have room for as many n-grams as there are words. A text with fewer than `num_words` words has one
    n-gram, made of all its words.
    """
    num_texts = len(word_starts) - 1
    starts = np.zeros(num_texts + 1, np.int64)
    longest = 0
    for text in range(num_texts):
        longest = max(longest, word_starts[text + 1] - word_starts[text])
    table = np.zeros(_table_size(longest), np.uint64)
    slots = np.empty(longest, np.int64)
    end = 0
    for text in range(num_texts):
        words = word_starts[text + 1] - word_starts[text]
        length = min(num_words, words)
        mask = np.uint64(_table_size(words) - 1)
        used = 0
        zero_seen = False
        for first in range(word_starts[text], word_starts[text + 1] - length + 1 if words else word_starts[text]):
            ngram = hashes[first]
            for place in range(first + 1, first + length):
                ngram = ngram * np.uint64(_MIX) + hashes[place]
            ngram = mixed(ngram)
            if ngram == 0:  # zero marks a free slot
                if not zero_seen:
                    zero_seen = True
                    sets[end] = ngram
                    end += 1
                continue
            slot = ngram & mask
            while table[slot] != 0 and table[slot] != ngram:
                slot = slot + np.uint64(1) & mask
            if table[slot] == 0:
                table[slot] = ngram
                slots[used] = slot
                used += 1
                sets[end] = ngram
                end += 1
        for place in range(used):
            table[slots[place]] = 0
        starts[text + 1] = end
    return starts


@native
def _table_size(values):
    """Return the number of slots of a hash table for `values` entries.

    It is a power of two, at least 16 and at least twice `values`.
    """
    size = 16
    while size < 2 * values:
        size *= 2
    return size


@native
def sign_sets(sets, starts, multipliers, addends, digests, bands):
    """Fill `digests` and `bands` with the keys of n-gram sets.

    The sets begin in `sets` at `starts` [texts + 1]; `digests` is [texts, 2] and `bands` is [buckets, texts].
    """
    buckets = bands.shape[0]
    rows = len(multipliers) // buckets
    minima = np.empty(len(multipliers), np.uint64)
    for text in range(len(starts) - 1):
        ngrams = sets[starts[text] : starts[text + 1]]
        if len(ngrams) == 0:
            continue
        plain_sum, mixed_sum = np.uint64(0), np.uint64(0)
        for ngram in ngrams:
            plain_sum += ngram
            mixed_sum += mixed(ngram + np.uint64(_MIX))
        digests[text, 0], digests[text, 1] = plain_sum, mixed_sum
        _fill_minima(ngrams, multipliers, addends, minima)
        for bucket in range(buckets):
            key = np.uint64(bucket + 1)
            for row in range(rows):
                key = mixed(key * np.uint64(_MIX) + minima[bucket * rows + row])
            bands[bucket, text] = key


@native
def _fill_minima(ngrams, multipliers, addends, minima):
    """Fill `minima` with the smallest value of each MinHash permutation over the n-grams.

    LLVM vectorizes the inner loop.
    """
    for permutation in range(len(minima)):
        multiplier, addend = multipliers[permutation], addends[permutation]
        least = np.uint64(0xFFFFFFFFFFFFFFFF)
        for place in range(len(ngrams)):
            least = min(least, ngrams[place] * multiplier + addend)
        minima[permutation] = least


@native
def first_similar(rows, begins, asks, sets, starts, min_similarity, best, similarity):
    """For every row that asks, lower `best` to the first row that is similar enough; return the pairs tried.

    `rows` holds runs of rows that share a key, ascending within a run; `begins` is true where a run begins. If a row's
    `best` is the row itself, no similar row has been found yet. `similarity` holds the similarity to `best`.
    """
    longest = 0
    for row in rows:
        longest = max(longest, starts[row + 1] - starts[row])
    table = np.zeros(_table_size(longest), np.uint64)
    tried = 0
    begin = 0
    for position in range(len(rows)):
        if begins[position]:
            begin = position
        row = rows[position]
        if not asks[position] or rows[begin] >= best[row]:
            continue
        mine = sets[starts[row] : starts[row + 1]]
        mask = np.uint64(_table_size(len(mine)) - 1)
        entered = False
        for place in range(begin, position):
            other = rows[place]
            if other >= best[row]:
                break
            theirs = sets[starts[other] : starts[other + 1]]
            # Sets that differ this much in size cannot be similar enough: |A∩B| / |A∪B| ≤ min / max.
            if min(len(mine), len(theirs)) / max(len(mine), len(theirs)) < min_similarity:
                continue
            if not entered:
                _enter(mine, table, mask)
                entered = True
            tried += 1
            found = _jaccard(len(mine), theirs, table, mask, min_similarity)
            if found >= min_similarity:
                best[row], similarity[row] = other, found
                break
        if entered:
            table[: np.int64(mask) + 1] = 0
    return tried


@native
def _enter(ngrams, table, mask):
    for ngram in ngrams:
        slot = ngram & mask
        while table[slot] != 0:
            slot = slot + np.uint64(1) & mask
        table[slot] = ngram  # an n-gram whose hash is zero (one in 2^64) is not found again


@native
def _jaccard(mine, theirs, table, mask, min_similarity):
    """Jaccard similarity of two sets of n-grams: one with `mine` elements, already in the hash table, and `theirs`.

    Returns 0 as soon as the similarity can no longer reach `min_similarity`.
    """
    total = mine + len(theirs)
    shared = 0
    for place in range(len(theirs)):
        ngram = theirs[place]
        slot = ngram & mask
        while table[slot] != 0 and table[slot] != ngram:
            slot = slot + np.uint64(1) & mask
        if table[slot] == ngram and ngram != 0:
            shared += 1
        if place & 63 == 63:
            most = shared + len(theirs) - place - 1
            if most / (total - most) < min_similarity:
                return 0.0
    return shared / (total - shared)
