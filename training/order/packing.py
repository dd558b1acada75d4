"""Pack documents into rows by best fit, as in "Fewer Truncations Improve Language Modeling".

A document longer than a row fills whole rows and leaves a rest. Rests and shorter documents are placed by decreasing
length, each into the row with the least room that still holds it (best-fit decreasing; Ding et al., arXiv 2404.10830).
So no document that fits a row is cut. Positions that stay empty are counted as waste. The documents of a source are
packed a window of WINDOW documents at a time, so that sorting them takes little memory. Needs only numpy and the
standard library.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from training.order.documents import mapped

PIECES_FILE = "pieces.npy"
ROW_ENDS_FILE = "row_ends.npy"
WINDOW = 1 << 18  # documents


class Packing(NamedTuple):
    """Rows that consist of pieces of documents.

    `pieces` is int64 [pieces, 3], row after row: the document's index, the first token within the document, and the
    number of tokens. `ends` is int64 [rows]: the number of pieces up to the end of each row.
    """

    pieces: np.ndarray
    ends: np.ndarray


def best_fit(tokens: np.ndarray, length: int) -> Packing:
    """Pack documents with `tokens` tokens each (int64 [documents]) into rows of `length` tokens.

    The result depends only on the sizes and their order. Among equal sizes the earlier document is placed first; among
    equally full rows the piece goes into the row that got its last piece most recently.
    """
    whole, rests = np.divmod(tokens, length)
    owners = np.repeat(np.arange(len(tokens)), whole)
    firsts = np.arange(len(owners)) - np.repeat(np.cumsum(whole) - whole, whole)
    full = np.stack([owners, firsts * length, np.full_like(owners, length)], axis=1)
    left = np.flatnonzero(rests)
    left = left[np.argsort(-rests[left], kind="stable")]
    rows = _shared_rows(rests[left].tolist(), length)
    order = [place for row in rows for place in row]
    shared = np.stack([left[order], (whole * length)[left[order]], rests[left[order]]], axis=1)
    sizes = [*[1] * len(full), *map(len, rows)]
    return Packing(np.concatenate([full, shared]).astype(np.int64), np.cumsum(sizes, dtype=np.int64))


def _shared_rows(sizes: list[int], length: int) -> list[list[int]]:
    """Pack pieces into rows by best fit; return, for each row, the indices of its pieces in `sizes`.

    `sizes` is in descending order.
    """
    rows: list[list[int]] = []
    with_room: list[list[int]] = [[] for _ in range(length + 1)]  # rows by the room that is left in them
    rooms = 0  # bit r: there is a row with room r
    for place, size in enumerate(sizes):
        fitting = rooms >> size
        if fitting:
            room = size + (fitting & -fitting).bit_length() - 1
            row = with_room[room].pop()
            if not with_room[room]:
                rooms &= ~(1 << room)
        else:
            room, row = length, len(rows)
            rows.append([])
        rows[row].append(place)
        if room > size:
            with_room[room - size].append(row)
            rooms |= 1 << room - size
    return rows


def cut_documents(tokens: np.ndarray, length: int, start: int = 0) -> int:
    """Return how many documents that would fit a row are cut when the documents are put end to end in this order.

    `tokens` is the size of each document, int64 [documents]; rows have `length` tokens. The first document begins at
    the token `start`.
    """
    ends = start + np.cumsum(tokens)
    first, last = (ends - tokens) // length, (ends - 1) // length
    return int(np.count_nonzero((tokens > 0) & (tokens <= length) & (first != last)))


@dataclass(frozen=True, slots=True)
class Rows:
    """The packed rows of all sources of a plan, of `length` tokens each.

    `pieces` is [pieces, 2], row after row: the document's number in the plan, and the first token within the document.
    `ends` is int64 [rows]: the number of pieces up to the end of each row.
    """

    pieces: np.ndarray
    ends: np.ndarray
    length: int

    def pieces_of(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the pieces of some packed rows: their documents, their first tokens, and where each row ends.

        A first token is counted within its document, and a row's end is the number of pieces up to it. All three arrays
        are int64 and in the order of the rows.
        """
        firsts = np.where(rows > 0, self.ends[rows - 1], 0)
        counts = self.ends[rows] - firsts
        ends = np.cumsum(counts)
        pieces = self.pieces[np.arange(counts.sum()) + np.repeat(firsts - ends + counts, counts)].astype(np.int64)
        return pieces[:, 0], pieces[:, 1], ends


def read_rows(folder: Path, length: int) -> Rows:
    """Return the rows of the packed plan in `folder`, memory-mapped."""
    return Rows(*mapped(folder, PIECES_FILE, ROW_ENDS_FILE), length=length)
