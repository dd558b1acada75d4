"""Compiled loops of `grams`: find the n-grams of a table in texts, counters of lines, and runs around them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from training.data.exams.search.grams import GramTable, counter_table
from training.data.words.hashes import Offsets, mixed
from training.data.words.native import native
from training.data.words.ngrams import Hashes

Places = npt.NDArray[np.int64]

_MULTIPLIER = 0x9E3779B97F4A7C15  # as in training.data.words.ngrams
_FIRST_ROOM = 4096  # occurrences in a batch; if there are more, the loop runs again with room for all


def looked_up(hashes: Hashes, starts: Offsets, table: GramTable) -> Places:
    """Return [occurrences, (text, position, row)] of the table's n-grams in texts, sorted by text, then position.

    `hashes` are the hashed words of all texts; `starts` [texts + 1] is where each text begins in them.
    """
    shift = np.uint64(65 - len(table.begins).bit_length())  # leaves the leading bits of a hash, which index `begins`
    room = _FIRST_ROOM
    while True:
        found = np.empty((room, 3), np.int64)
        total = _look_up(hashes, starts, table.num_words, table.hashes, table.bits, table.begins, shift, found)
        if total <= room:
            return found[:total]
        room = total


def are_counters(hashes: Hashes) -> npt.NDArray[np.bool_]:
    """Return which words are numbers of at most four digits, as `grams.is_counter` does, in a compiled loop."""
    table, found = counter_table(), np.zeros(len(hashes), np.bool_)
    _are_in(hashes, table.hashes, table.bits, table.begins, np.uint64(65 - len(table.begins).bit_length()), found)
    return found


@native
def _are_in(hashes, rows, bits, begins, shift, found):
    mask = np.uint64(8 * len(bits) - 1)
    for place in range(len(hashes)):
        value = hashes[place]
        slot = value & mask
        if bits[slot >> np.uint64(3)] >> np.uint8(slot & np.uint64(7)) & np.uint8(1):
            leading = value >> shift
            for row in range(begins[leading], begins[leading + np.uint64(1)]):
                if rows[row] == value:
                    found[place] = True
                    break


def runs_around(
    hashes: Hashes, starts: Offsets, counters: npt.NDArray[np.bool_], num_words: int
) -> tuple[Hashes, Places]:
    """Return what `grams.around_counters` returns."""
    room = (num_words - 1) * int(counters.sum())
    runs, firsts = np.empty(room, np.uint64), np.empty(room, np.int64)
    number = _runs_around(hashes, starts, counters, np.empty(num_words, np.int64), runs, firsts)
    return runs[:number], firsts[:number]


@native
def _runs_around(hashes, starts, counters, window, runs, firsts):
    """Write runs and their first words, and return their number; `window` are the last words that are no counters."""
    multiplier, num_words, number = np.uint64(_MULTIPLIER), len(window), 0
    for text in range(len(starts) - 1):
        words = 0
        for place in range(starts[text], starts[text + 1]):
            if counters[place]:
                continue
            for one in range(num_words - 1):
                window[one] = window[one + 1]
            window[num_words - 1] = place
            words += 1
            if words >= num_words and place - window[0] >= num_words:
                value = np.uint64(0)
                for one in range(num_words):
                    value = value * multiplier + hashes[window[one]]
                runs[number], firsts[number] = mixed(value), window[0]
                number += 1
    return number


@native
def _look_up(hashes, starts, num_words, grams, bits, begins, shift, found):
    """Write occurrences to `found` as long as there is room, and return the number of all occurrences."""
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
                found[total, 0], found[total, 1], found[total, 2] = text, place - first, row
            total += 1
    return total
