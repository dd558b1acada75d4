"""A table in which the word n-grams of a text are looked up: the fast part of the search for exam items.

Most n-grams of most texts are in no exam, and a single bit shows it: a table has a bit for each value of a hash's low
bits, 16 to 32 times as many bits as hashes. The few n-grams whose bit is set are searched for among the sorted hashes
with the same leading bits. training.data.exams.search.gram_loops does the same in compiled loops.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from training.data.exams.search.folding import folded_hash
from training.data.words.ngrams import Hashes, ngram_hashes

BITS_PER_HASH: Final = 16


@dataclass(frozen=True, kw_only=True, slots=True)
class GramTable:
    """The n-grams of one length. A row is a position in `hashes`, which are sorted.

    `bits` has a bit for each value of a hash's low bits. `begins` has the first row for each value of a hash's leading
    bits.
    """

    num_words: int
    hashes: Hashes
    bits: npt.NDArray[np.uint8]
    begins: npt.NDArray[np.int64]

    @staticmethod
    def of(num_words: int, hashes: Hashes) -> GramTable:
        """Return the table for sorted hashes."""
        slots = 1 << max(10, (BITS_PER_HASH * len(hashes)).bit_length())
        is_set = np.zeros(slots, np.bool_)
        is_set[hashes & np.uint64(slots - 1)] = True
        leading = max(1, len(hashes).bit_length())
        edges = np.arange(1 << leading, dtype=np.uint64) << np.uint64(64 - leading)
        begins = np.append(np.searchsorted(hashes, edges), len(hashes))
        return GramTable(num_words=num_words, hashes=hashes, bits=np.packbits(is_set, bitorder="little"), begins=begins)

    def first_rows(self, hashes: Hashes) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return the positions in `hashes` of n-grams that the table contains, and the first table row of each."""
        slots = hashes & np.uint64(8 * len(self.bits) - 1)
        places = np.flatnonzero(self.bits[slots >> np.uint64(3)] >> (slots & np.uint64(7)).astype(np.uint8) & 1)
        rows = np.searchsorted(self.hashes, hashes[places])
        rows[rows == len(self.hashes)] = 0
        found = self.hashes[rows] == hashes[places]
        return places[found], rows[found]


@lru_cache(maxsize=1)
def counter_table() -> GramTable:
    """Return the table of the words that count lines."""
    numbers = {f"{number:0{width}d}" for width in (1, 2, 3) for number in range(10_000)}
    return GramTable.of(1, np.unique(np.array([folded_hash(number) for number in numbers], np.uint64)))


def is_counter(hashes: Hashes) -> npt.NDArray[np.bool_]:
    """Return which words are numbers of at most four digits, with which a list counts its lines."""
    counts = np.zeros(len(hashes), np.bool_)
    counts[counter_table().first_rows(hashes)[0]] = True
    return counts


def around_counters(
    hashes: Hashes, starts: npt.NDArray[np.int64], counters: npt.NDArray[np.bool_], num_words: int
) -> tuple[Hashes, npt.NDArray[np.int64]]:
    """Return the runs of words that have counters between their words and do not contain these.

    The result is the hash of each run and the place of its first word. `starts` are where the texts begin in `hashes`;
    no run goes from one text into another.
    """
    words = np.flatnonzero(~counters)
    if len(words) < num_words or not counters.any():
        return np.empty(0, np.uint64), np.empty(0, np.int64)
    firsts = words[: len(words) - num_words + 1]
    lasts = words[num_words - 1 :]
    runs = np.flatnonzero(lasts - firsts >= num_words)
    inside = np.searchsorted(starts, firsts[runs], side="right") == np.searchsorted(starts, lasts[runs], side="right")
    runs = runs[inside]
    combined = hashes[words[runs[:, None] + np.arange(num_words)]]
    return ngram_hashes(combined.reshape(-1), num_words)[::num_words], firsts[runs]


def column_of(texts: Sequence[str]) -> pa.StringArray:
    """Return texts as an Arrow column. An unpaired surrogate, which is part of no word, becomes a question mark."""
    return pa.array([text.encode("utf-8", "replace") for text in texts], pa.string())
