"""Find the parts of a text that rows of post-training have too: runs of eight words or more, and the rows of each."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from training.data.words.ngrams import ngram_hashes, words_with_spans
from training.provenance.grams import longest, stretches
from training.provenance.rows.build import GRAM_WORDS, Row, runs_of
from training.provenance.rows.rows import RowIndex


@dataclass(frozen=True, kw_only=True, slots=True)
class RowSpan:
    """The characters `start` to `stop` - 1 of a text, its number of words, and the rows that have them."""

    start: int
    stop: int
    words: int
    rows: tuple[Row, ...]


def spans_in_rows(
    indexes: Iterable[RowIndex], text: str, wanted: Callable[[Row], bool] = lambda row: True
) -> list[RowSpan]:
    """Return the longest spans of a text whose runs of eight words stand in a row that is wanted, from left to right.

    Case, punctuation and line ends do not matter. A text of fewer than eight words has none.
    """
    hashes, places = words_with_spans(text)
    runs = ngram_hashes(hashes, GRAM_WORDS)
    holders: dict[tuple[int, int], list[Row]] = {}
    for index in indexes if len(runs) else ():
        rows = [row for row in index.repeating([text]) if wanted(row)]
        for row, texts in zip(rows, index.texts_of(rows), strict=True):
            for place in stretches(np.isin(runs, runs_of(texts))):
                holders.setdefault(place, []).append(row)
    return [
        RowSpan(
            start=int(places[first, 0]),
            stop=int(places[stop + GRAM_WORDS - 2, 1]),
            words=stop - first + GRAM_WORDS - 1,
            rows=tuple(sorted(holders[first, stop], key=lambda row: (row["asset"], row["file"], row["line"]))),
        )
        for first, stop in longest(holders)
    ]
