"""Where the word n-grams of an index occur in texts: the one scan of decontamination and of the contamination report.

Most words of most texts begin no n-gram of any exam, and one bit says so: a table has a bit for each value that the low
bits of a hash can have, 16 to 32 times as many as hashes. The few n-grams that pass it are searched for among the
sorted hashes that share their leading bits.

The loops that hash words and look n-grams up are compiled (training.data.exams.gram_loops) once some megabytes went by;
until then, and for a single text, the plain path gives the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from training.data.documents import utf8_of
from training.data.words.ngrams import Hashes, ngram_hashes, word_hashes

# Bytes of text that are scanned plainly first: loading the compiled loops costs as much as scanning this.
COMPILED_FROM_BYTES = 5_000_000
BITS_PER_HASH: Final = 16

Occurrences = npt.NDArray[np.int64]
"""[occurrences, 3]: number of the table, position of the n-gram's first word, first row of the table with its hash."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GramTable:
    """The n-grams of one length: their hashes in order, one row each; equal ones stand together.

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


def occurrences(hashes: Hashes, tables: Sequence[GramTable]) -> Occurrences:
    """Where the n-grams of the tables occur among the words of one text, by table, then position. The plain path."""
    parts = [np.empty((0, 3), np.int64)]
    for number, table in enumerate(tables):
        places, rows = table.first_rows(ngram_hashes(hashes, table.num_words))
        parts.append(np.stack([np.full(len(places), number), places, rows], axis=1))
    return np.concatenate(parts)


class Scanner:
    """Scans texts for the n-grams of tables, a batch at a time. How the texts are cut into batches changes nothing."""

    def __init__(self, tables: Sequence[GramTable], *, compiled_from_bytes: int | None = None) -> None:
        self.tables = tuple(tables)
        self._plain_bytes_left = COMPILED_FROM_BYTES if compiled_from_bytes is None else compiled_from_bytes

    def scan(self, texts: pa.StringArray) -> Iterator[tuple[int, Hashes, Occurrences]]:
        """(place of the text, its words' hashes, occurrences) for each text that has an n-gram of the tables."""
        data, offsets = utf8_of(texts)
        if self._plain_bytes_left <= 0:
            from training.data.exams import gram_loops

            yield from gram_loops.scan(data, offsets, self.tables)
            return
        self._plain_bytes_left -= int(offsets[-1] - offsets[0])
        for place, text in enumerate(texts.to_pylist()):
            hashes = word_hashes(text)
            found = occurrences(hashes, self.tables)
            if len(found):
                yield place, hashes, found


def column_of(texts: Sequence[str]) -> pa.StringArray:
    """Texts as a column; half a surrogate pair, which is no word's part, becomes a question mark."""
    return pa.array([text.encode("utf-8", "replace") for text in texts], pa.string())
