"""The compiled loops of training.data.exams.grams: what `Scanner` and `occurrences` give by the plain path, faster."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from training.data.exams.grams import GramTable, Occurrences
from training.data.words.hashes import Bytes, Offsets, hash_words, mixed
from training.data.words.native import native
from training.data.words.ngrams import Hashes

_MULTIPLIER = 0x9E3779B97F4A7C15  # of training.data.words.ngrams
_FIRST_ROOM = 4096  # occurrences in a batch; where there are more, the loop runs again with room for all


def scan(data: Bytes, offsets: Offsets, tables: Sequence[GramTable]) -> Iterator[tuple[int, Hashes, Occurrences]]:
    """(place of the text, its words' hashes, occurrences) for each text that has an n-gram of the tables.

    `data` is valid UTF-8 and `offsets` [texts + 1] says where each text begins.
    """
    hashes, starts = hash_words(data, offsets)
    found = np.concatenate([np.empty((0, 4), np.int64), *(_found(hashes, starts, i, t) for i, t in enumerate(tables))])
    if not len(found):
        return
    found = found[np.argsort(found[:, 0], kind="stable")]
    texts, begins = np.unique(found[:, 0], return_index=True)
    for text, some in zip(texts.tolist(), np.split(found[:, 1:], begins[1:]), strict=True):
        yield text, hashes[starts[text] : starts[text + 1]], some


def looked_up(hashes: Hashes, starts: Offsets, table: GramTable) -> Occurrences:
    """[:, (text, position, row)] of the n-grams of a table, by text, then position."""
    return _found(hashes, starts, 0, table)[:, (0, 2, 3)]


def _found(hashes: Hashes, starts: Offsets, number: int, table: GramTable) -> Occurrences:
    """[occurrences, 4] of one table: text, number of the table, position, row."""
    shift = np.uint64(65 - len(table.begins).bit_length())  # leaves the leading bits that `begins` counts by
    room = _FIRST_ROOM
    while True:
        found = np.empty((room, 4), np.int64)
        total = _look_up(hashes, starts, table.num_words, table.hashes, table.bits, table.begins, shift, number, found)
        if total <= room:
            return found[:total]
        room = total


@native
def _look_up(hashes, starts, num_words, grams, bits, begins, shift, number, found):
    """Fill `found` as far as it goes; returns how many occurrences there are."""
    multiplier, mask = np.uint64(_MULTIPLIER), np.uint64(8 * len(bits) - 1)
    power = np.uint64(1)
    for _ in range(num_words - 1):
        power *= multiplier
    total = 0
    for text in range(len(starts) - 1):
        first, last = starts[text], starts[text + 1] - num_words
        if last < first:
            continue
        rolling = np.uint64(0)
        for place in range(first, first + num_words):
            rolling = rolling * multiplier + hashes[place]
        for place in range(first, last + 1):
            if place > first:
                rolling = (rolling - hashes[place - 1] * power) * multiplier + hashes[place + num_words - 1]
            value = mixed(rolling)
            slot = value & mask
            if bits[slot >> np.uint64(3)] >> np.uint8(slot & np.uint64(7)) & np.uint8(1) == 0:
                continue
            leading = value >> shift
            row, end = begins[leading], begins[leading + np.uint64(1)]
            beyond = end
            while row < beyond:
                middle = (row + beyond) >> 1
                if grams[middle] < value:
                    row = middle + 1
                else:
                    beyond = middle
            if row == end or grams[row] != value:
                continue
            if total < len(found):
                found[total, 0], found[total, 1], found[total, 2], found[total, 3] = text, number, place - first, row
            total += 1
    return total
