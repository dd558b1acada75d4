"""Cut lines that occur too often, and substrings that occurred before, from the documents that deduplication keeps.

Both are counted among the kept documents of one snapshot, in groups of `group_documents` documents of the snapshot
(kept or not). This bounds memory, and other snapshots change nothing.

Lines are cut first. A line that occurs more than `max_line_copies` times in a group is cut everywhere (Llama 3, arXiv
2407.21783: 6 times in 30 million documents). Lines are compared by their words, so case, punctuation and spacing do not
count; unlike in CCNet (arXiv 1911.00359), digits do.

Substrings are cut next: runs of at least `min_substring_bytes` bytes that also occur earlier, in an earlier document of
the group or earlier in the same document (training.data.dedup.substrings). The first occurrence stays.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from training.data.dedup.corpus import Flags, Orders
from training.data.dedup.settings import DedupRecipe
from training.data.documents import utf8_of
from training.data.words.ngrams import Hashes, mixed, word_hashes

LINES, SUBSTRINGS = "repeated_lines", "repeated_substrings"
# Up to this size the plain Python code is used, because loading the compiled loops would take longer.
PLAIN_BYTES = 200_000
NEWLINE = 0x0A

Bytes = npt.NDArray[np.uint8]


@dataclass(kw_only=True)
class Edits:
    """The cuts of lines and substrings in each group of documents, and `counts` of the lines and bytes cut so far."""

    recipe: DedupRecipe
    lines: dict[int, Hashes] = field(default_factory=dict)  # group → keys of its too frequent lines, ascending
    spans: dict[int, Orders] = field(default_factory=dict)  # group → [spans, 3]: row, first byte, end, in edited text
    counts: Counter[str] = field(default_factory=Counter)

    def apply(self, texts: pa.StringArray, rows: Orders) -> tuple[pa.StringArray, list[str | None]]:
        """Return the edited texts of the documents `rows` of the job's snapshot, and for each why it is dropped.

        The reason is None for a document that stays. A document is dropped when the cuts leave no text.
        """
        edited = texts
        reasons: list[str | None] = [None] * len(texts)
        for reason, cut in ((LINES, self._without_lines), (SUBSTRINGS, self._without_spans)):
            before, edited = edited, cut(edited, rows)
            reasons = [
                why or (reason if had.strip() and not has.strip() else None)
                for why, had, has in zip(reasons, before.to_pylist(), edited.to_pylist(), strict=True)
            ]
        return edited, reasons

    def _without_lines(self, texts: pa.StringArray, rows: Orders) -> pa.StringArray:
        if not self.lines:
            return texts
        groups = rows // self.recipe.group_documents
        parts = [
            self._cut_lines(texts.filter(pa.array(groups == group)), self.lines[group])
            for group in np.unique(groups).tolist()
        ]
        return pa.chunked_array(parts, pa.string()).combine_chunks()

    def _cut_lines(self, texts: pa.StringArray, too_many: Hashes) -> pa.StringArray:
        data, offsets = utf8_of(texts)
        bounds, keys = lines_of(data, offsets, self.recipe.line_unit)
        place = np.minimum(np.searchsorted(too_many, keys), max(len(too_many) - 1, 0))
        cut = (too_many[place] == keys) & (keys != 0) if len(too_many) else np.zeros(len(keys), np.bool_)
        self.counts["removed_lines"] += int(cut.sum())
        self.counts["removed_line_bytes"] += int(np.diff(bounds)[cut].sum())
        return without_bytes(texts, np.repeat(cut, np.diff(bounds)))

    def _without_spans(self, texts: pa.StringArray, rows: Orders) -> pa.StringArray:
        if not self.spans:
            return texts
        _data, offsets = utf8_of(texts)
        cut = np.zeros(int(offsets[-1]), np.bool_)
        groups = rows // self.recipe.group_documents
        for group in np.unique(groups).tolist():
            spans = self.spans[group]
            spans = spans[slice(*np.searchsorted(spans[:, 0], (rows[0], rows[-1] + 1)))]
            starts = offsets[np.searchsorted(rows, spans[:, 0])]
            for start, end in zip((starts + spans[:, 1]).tolist(), (starts + spans[:, 2]).tolist(), strict=True):
                cut[start:end] = True
        self.counts["removed_substring_bytes"] += int(cut.sum())
        return without_bytes(texts, cut)


def frequent_lines(texts: Iterable[tuple[pa.StringArray, Orders]], recipe: DedupRecipe) -> Hashes:
    """Return the keys, ascending, of the lines that occur too often in a group's kept documents."""
    assert recipe.max_line_copies is not None, "without a limit no line is too frequent"
    keys = [np.empty(0, np.uint64)]
    for some, _ in texts:
        keys.append(lines_of(*utf8_of(some), recipe.line_unit)[1])
    found, copies = np.unique(np.concatenate(keys), return_counts=True)
    return found[(copies > recipe.max_line_copies) & (found != 0)]


def repeated_spans(texts: Iterable[tuple[pa.StringArray, Orders]], rows: Orders, edits: Edits) -> Orders:
    """Return [spans, 3]: row, first byte and end of each run of repeated bytes. Runs have only whole characters.

    `texts` are the kept documents of one group of documents and their rows in the snapshot, `rows` all of these rows.
    """
    parts = [pa.array([], pa.large_string())]
    for some, at in texts:
        parts.append(edits._without_lines(some, at).cast(pa.large_string()))
    data, offsets = utf8_of(pa.chunked_array(parts).combine_chunks())
    assert edits.recipe.min_substring_bytes is not None, "without a length no substring is cut"
    covered = _repeats(data, offsets, edits.recipe.min_substring_bytes)
    starts, ends = runs_of(whole_characters(data, covered))
    # A run may continue from one text into the next; cut it at the boundary.
    inner = np.flatnonzero(np.searchsorted(offsets, starts, "right") != np.searchsorted(offsets, ends - 1, "right"))
    cuts = [offsets[(offsets > starts[run]) & (offsets < ends[run])] for run in inner.tolist()]
    extra = np.concatenate([np.empty(0, np.int64), *cuts])
    starts, ends = np.sort(np.concatenate([starts, extra])), np.sort(np.concatenate([ends, extra]))
    texts_of = np.searchsorted(offsets, starts, "right") - 1
    return np.stack([rows[texts_of], starts - offsets[texts_of], ends - offsets[texts_of]], axis=1)


def _repeats(data: Bytes, offsets: Orders, length: int) -> Flags:
    from training.data.dedup import substrings

    if len(data) <= PLAIN_BYTES:
        return substrings.repeats_plainly(data, offsets, length)
    return substrings.repeats(data, offsets, length)


def lines_of(data: Bytes, offsets: Orders, unit: str) -> tuple[Orders, Hashes]:
    """Return the start of each line, [lines + 1], and a key of each line's words.

    `data` holds the texts end to end. With `unit` "paragraph", a paragraph (which ends at an empty line) counts as a
    line. A line without a word has the key 0.
    """
    ends = data[offsets[0] : offsets[-1]] == NEWLINE
    if unit == "paragraph":
        ends[1:] &= ends[:-1].copy()
        ends[:1] = False
    bounds = np.union1d(offsets, np.flatnonzero(ends) + 1 + offsets[0]).astype(np.int64)
    hashes, starts = _words(data, bounds)
    sizes = np.diff(starts)
    keys = np.zeros(len(bounds) - 1, np.uint64)
    filled = np.flatnonzero(sizes)
    if len(filled):
        # Each word's hash is mixed with its position in the line, so that the sum depends on the order of the words.
        place = np.arange(len(hashes)) - np.repeat(starts[:-1], sizes)
        values = mixed(hashes + place.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15))
        keys[filled] = mixed(np.add.reduceat(values, starts[filled]))
    return bounds, keys


def _words(data: Bytes, bounds: Orders) -> tuple[Hashes, Orders]:
    if bounds[-1] - bounds[0] > PLAIN_BYTES:
        from training.data.words.hashes import hash_words

        return hash_words(data, bounds)
    texts = [data[start:end].tobytes().decode("utf-8") for start, end in itertools.pairwise(bounds)]
    parts = [np.empty(0, np.uint64), *map(word_hashes, texts)]
    return np.concatenate(parts), np.cumsum([0, *map(len, parts[1:])])


def whole_characters(data: Bytes, covered: Flags) -> Flags:
    """Return `covered` without the bytes of UTF-8 characters that are only partly covered."""
    begins = np.flatnonzero(data & 0xC0 != 0x80)
    if not len(begins):
        return covered
    return np.repeat(np.logical_and.reduceat(covered, begins), np.diff(np.append(begins, len(data))))


def runs_of(flags: Flags) -> tuple[Orders, Orders]:
    """Return the first index and the end index (exclusive) of each run of true values."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], flags, [False]]).astype(np.int8)))
    return edges[::2], edges[1::2]


def without_bytes(texts: pa.StringArray, cut: Flags) -> pa.StringArray:
    """Return the texts without the bytes marked in `cut`. The pieces before and after a cut go on separate lines."""
    _data, offsets = utf8_of(texts)
    cut = cut[: offsets[-1] - offsets[0]]
    edited = []
    for text, start, end in zip(texts.to_pylist(), offsets.tolist(), offsets[1:].tolist(), strict=False):
        gone = cut[start - offsets[0] : end - offsets[0]]
        if not gone.any():
            edited.append(text)
            continue
        raw = text.encode("utf-8")
        pieces = (raw[first:last].decode("utf-8").strip("\n") for first, last in zip(*runs_of(~gone), strict=True))
        edited.append("\n".join(piece for piece in pieces if piece))
    return pa.array(edited, pa.string())
