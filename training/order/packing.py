"""Documents into rows with the fewest cuts: best fit, as in "Fewer Truncations Improve Language Modeling".

A document longer than a row gives whole rows and a rest. Rests and shorter documents go, the longest first, each into
the row with the least room that still holds it (best-fit decreasing; Ding et al., arXiv 2404.10830). So no document is
cut that fits a row, and what stays empty of the rows is the waste, which is counted. numpy and the standard library.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Packing(NamedTuple):
    """Rows of pieces. `pieces` is int64 [pieces, 3]: document (its place among those given), first token within it and
    tokens, row after row; `ends` is int64 [rows]: how many pieces there are up to each row's last."""

    pieces: np.ndarray
    ends: np.ndarray


def best_fit(tokens: np.ndarray, length: int) -> Packing:
    """Pack documents of these sizes, int64 [documents] and in tokens, into rows of `length`.

    By sizes and their order alone: of equal sizes the earlier document comes first, of equally full rows the one that
    was begun last.
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
    """The places in `sizes`, which fall, that each row holds."""
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


def cut_documents(tokens: np.ndarray, length: int) -> int:
    """How many documents that fit a row are cut when they stand end to end, in this order, and rows are cut from them.

    `tokens` is int64 [documents].
    """
    ends = np.cumsum(tokens)
    first, last = (ends - tokens) // length, (ends - 1) // length
    return int(np.count_nonzero((tokens > 0) & (tokens <= length) & (first != last)))


def row_of(packing: Packing, number: int) -> list[tuple[int, ...]]:
    """Document, first token and tokens of each piece of a row."""
    first = int(packing.ends[number - 1]) if number else 0
    return [tuple(map(int, piece)) for piece in packing.pieces[first : int(packing.ends[number])]]


def joined(packings: list[tuple[int, Packing]]) -> Packing:
    """One packing of several, each given with the place of its first document."""
    moved = [packing.pieces + np.array([first, 0, 0]) for first, packing in packings]
    starts = np.cumsum([0, *(len(packing.pieces) for _, packing in packings)])
    ends = [packing.ends + start for (_, packing), start in zip(packings, starts, strict=False)]
    return Packing(np.concatenate(moved), np.concatenate(ends))
