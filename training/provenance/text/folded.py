"""Find the parts of a text that the pages in shards have in other letters: capitals, line ends, spaces, punctuation.

Words are folded as those of exams (data/exams/search/folding.py), so small capitals, soft hyphens and accents do not
matter, and eight in a row must be the same. No index has folded words, so the texts are read, which takes a minute for
some gigabytes; only what the index of tokens has not found word for word is looked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from training.contract.job import DataError, RefusedInput
from training.data.exams.search.folding import end_of_character, folded_hashes, readable, word_spans
from training.data.words.ngrams import ngram_hashes
from training.provenance.file_verification import sound
from training.provenance.grams import WORDS, grams_of, longest, stretches
from training.provenance.lineage import SHARDS, Lineage

TEXTS = "decontaminated_documents"  # the texts that became tokens


@dataclass(frozen=True, kw_only=True, slots=True)
class FoldedSpan:
    """The characters `start` to `stop` - 1 of a text, its number of words, and the ids of the pages that have them."""

    start: int
    stop: int
    words: int
    ids: tuple[str, ...]


def folded_spans(lineage: Lineage, text: str, covered: Sequence[tuple[int, int]]) -> list[FoldedSpan]:
    """Return the longest spans of a text whose words a page in shards has in a row, from left to right.

    A span within one of the ranges `covered` is left out. Raise DataError if the texts are not there any more.
    """
    plain = readable(text)
    places, runs = word_spans(plain), ngram_hashes(folded_hashes(plain), WORDS)
    is_known = np.zeros(len(text) + 1, np.int64)
    for start, stop in covered:
        is_known[start:stop] = 1
    known = np.concatenate([[0], np.cumsum(is_known)])
    begins, ends = places[: len(runs), 0], places[WORDS - 1 :, 1]
    is_asked = known[ends] - known[begins] < ends - begins if len(runs) else np.empty(0, np.bool_)
    if not is_asked.any():
        return []
    found: dict[str, np.ndarray] = {}
    for id_, own in _pages_with(lineage, np.unique(runs[is_asked])):
        found[id_] = np.isin(runs, own) & is_asked
    holders: dict[tuple[int, int], list[str]] = {}
    for id_, has in found.items():
        for first, stop in stretches(has):
            holders.setdefault((first, stop), []).append(id_)
    return [
        FoldedSpan(
            start=int(places[first, 0]),
            stop=end_of_character(plain, int(places[stop + WORDS - 2, 1])),
            words=stop - first + WORDS - 1,
            ids=tuple(sorted(holders[first, stop])),
        )
        for first, stop in longest(holders)
    ]


def _pages_with(lineage: Lineage, wanted: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the id of each page in shards that has some of these runs of words, and those that it has."""
    names = {name for node in lineage.of(SHARDS) for name in node.inputs}
    for node in lineage.of(TEXTS):
        if node.item.fingerprint in names:
            try:
                files = [sound(node.usable, name) for name in sorted(node.usable.files()) if _is_of_documents(name)]
            except RefusedInput as error:
                raise DataError(str(error)) from None
            for path in files:
                yield from _in_file(path, wanted)


def _is_of_documents(name: str) -> bool:
    return name.startswith("documents/")


def _in_file(path: Path, wanted: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    with pq.ParquetFile(path) as parquet:
        for number in range(parquet.num_row_groups):
            rows = parquet.read_row_group(number, columns=["id", "text"], use_threads=False)
            grams, of = grams_of([text or "" for text in rows["text"].to_pylist()], folds=True)
            is_hit = np.isin(grams, wanted)
            for row in np.unique(of[is_hit]).tolist():
                yield rows["id"][row].as_py(), np.unique(grams[is_hit & (of == row)])
