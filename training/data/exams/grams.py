"""A table of word n-grams in which those of a text are looked up: the fast part of the search for exam items.

Most words of most texts begin no n-gram of any exam, and one bit says so: a table has a bit for each value that the low
bits of a hash can have, 16 to 32 times as many as hashes. The few n-grams that pass it are searched for among the
sorted hashes that share their leading bits. training.data.exams.gram_loops does the same in a compiled loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from training.data.words.ngrams import Hashes

BITS_PER_HASH: Final = 16


@dataclass(frozen=True, kw_only=True, slots=True)
class GramTable:
    """The n-grams of one length: their hashes in order, one row each.

    `bits` has a bit for each value of a hash's low bits; `begins` the first row for each value of its leading bits.
    """

    num_words: int
    hashes: Hashes
    bits: npt.NDArray[np.uint8]
    begins: npt.NDArray[np.int64]

    @staticmethod
    def of(num_words: int, hashes: Hashes) -> GramTable:
        """The table of hashes that are in order."""
        slots = 1 << max(10, (BITS_PER_HASH * len(hashes)).bit_length())
        is_set = np.zeros(slots, np.bool_)
        is_set[hashes & np.uint64(slots - 1)] = True
        leading = max(1, len(hashes).bit_length())
        edges = np.arange(1 << leading, dtype=np.uint64) << np.uint64(64 - leading)
        begins = np.append(np.searchsorted(hashes, edges), len(hashes))
        return GramTable(num_words=num_words, hashes=hashes, bits=np.packbits(is_set, bitorder="little"), begins=begins)

    def first_rows(self, hashes: Hashes) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Where in `hashes` an n-gram of the table stands, and the first row of each."""
        slots = hashes & np.uint64(8 * len(self.bits) - 1)
        places = np.flatnonzero(self.bits[slots >> np.uint64(3)] >> (slots & np.uint64(7)).astype(np.uint8) & 1)
        rows = np.searchsorted(self.hashes, hashes[places])
        rows[rows == len(self.hashes)] = 0
        found = self.hashes[rows] == hashes[places]
        return places[found], rows[found]


def column_of(texts: Sequence[str]) -> pa.StringArray:
    """Texts as a column; half a surrogate pair, which is no word's part, becomes a question mark."""
    return pa.array([text.encode("utf-8", "replace") for text in texts], pa.string())
