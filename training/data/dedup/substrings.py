"""Find bytes of texts that repeat a run of at least `length` bytes exactly, without a suffix array.

Every window of `length` bytes has an anchor. The anchor is the run of half that length with the least hash in the
window; of several with the same hash it is the last. Equal windows have equal anchors at the same distance from their
start, so a window can repeat only if the hash of its anchor occurs twice. Only such windows are looked up, in a table
of the first window with each content; a hit counts only if the bytes are equal. After a window that repeats, the next
window is compared by its one new byte, so a long copy needs one lookup.

Source: winnowing (Schleimer, Wilkerson, Aiken, 2003) for the anchors; removing repeats of exact substrings from
training text is Lee et al. (arXiv 2107.06499), who use a suffix array and 50 tokens. `repeats_plainly` gives the same
bytes from a Python dictionary of windows.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from training.data.words.hashes import Bytes, Offsets
from training.data.words.native import native

Flags = npt.NDArray[np.bool_]

_BASE = 0x9E3779B97F4A7C15
_MIX_1 = 0xFF51AFD7ED558CCD


def repeats(data: Bytes, offsets: Offsets, length: int, *, first_too: bool = False) -> Flags:
    """Flags of the bytes that lie in a run of `length` bytes that also occurs earlier.

    With `first_too`, the first occurrence of such a run is flagged as well. `offsets` [texts + 1] holds the start of
    each text; a run never crosses texts.
    """
    covered = np.zeros(len(data), np.bool_)
    # Anchors have half the length of a window, so a window contains about as many candidates as an anchor has bytes.
    short = max(1, length // 2)
    most = int(np.maximum(np.diff(offsets) - length + 1, 0).sum())
    if not most:
        return covered
    hashes, firsts, lasts = np.empty(most, np.uint64), np.empty(most, np.int64), np.empty(most, np.int64)
    number = _anchors(data, offsets, length, short, hashes, firsts, lasts)
    hashes, firsts, lasts = hashes[:number], firsts[:number], lasts[:number]
    again = _occurs_twice(hashes)
    firsts, lasts = firsts[again].copy(), lasts[again].copy()
    del hashes
    slots = 1 << max(4, int(1.25 * (lasts - firsts + 1).sum()).bit_length())
    _cover(data, firsts, lasts, offsets, length, np.full(slots, -1, np.int64), first_too, covered)
    return covered


def _occurs_twice(hashes: npt.NDArray[np.uint64]) -> Flags:
    by = np.argsort(hashes)
    ordered = hashes[by]
    same = ordered[1:] == ordered[:-1]
    found = np.zeros(len(hashes), np.bool_)
    found[by[1:][same]] = True
    found[by[:-1][same]] = True
    return found


def repeats_plainly(data: Bytes, offsets: Offsets, length: int, *, first_too: bool = False) -> Flags:
    """Flag the bytes of repeated runs like `repeats`, in plain Python, for short texts and for tests."""
    covered = np.zeros(len(data), np.bool_)
    first: dict[bytes, int] = {}
    for start, end in zip(offsets.tolist(), offsets[1:].tolist(), strict=False):
        text = data[start:end].tobytes()
        for place in range(len(text) - length + 1):
            earlier = first.setdefault(text[place : place + length], start + place)
            if earlier != start + place:
                covered[start + place : start + place + length] = True
                if first_too:
                    covered[earlier : earlier + length] = True
    return covered


@native
def _anchors(data, offsets, length, short, hashes, firsts, lasts):
    """Fill each anchor's hash and the starts of its first and last window; return the number of anchors."""
    span = length - short + 1  # short runs in a window
    ring = np.empty(span, np.uint64)
    power = np.uint64(1)
    for _ in range(short):
        power *= np.uint64(_BASE)
    number = 0
    for text in range(len(offsets) - 1):
        begin, end = offsets[text], offsets[text + 1]
        if end - begin < length:
            continue
        rolling = np.uint64(0)
        for place in range(begin, begin + short - 1):
            rolling = rolling * np.uint64(_BASE) + np.uint64(data[place]) + np.uint64(1)
        least, at = np.uint64(0), np.int64(-1)
        turn = 0  # slot of the ring for the run at `place`
        for place in range(begin, end - short + 1):
            rolling = rolling * np.uint64(_BASE) + np.uint64(data[place + short - 1]) + np.uint64(1)
            if place > begin:
                rolling -= power * (np.uint64(data[place - 1]) + np.uint64(1))
            value = (rolling ^ rolling >> np.uint64(32)) * np.uint64(_MIX_1)
            ring[turn] = value
            turn = turn + 1 if turn + 1 < span else 0
            window = place - span + 1  # the window whose last short run this is
            if at < 0 or value <= least:
                least, at = value, place
                new = True
            elif at < window:
                least, at = ring[turn], window  # the ring now begins with the oldest run
                slot = turn
                for step in range(1, span):
                    slot = slot + 1 if slot + 1 < span else 0
                    if ring[slot] <= least:
                        least, at = ring[slot], window + step
                new = True
            else:
                new = False
            if window < begin:
                continue
            if new or window == begin:
                hashes[number], firsts[number] = least, window
                number += 1
            lasts[number - 1] = window
    return number


@native
def _cover(data, firsts, lasts, offsets, length, table, first_too, covered):
    """Mark the windows that repeat.

    A slot of the table holds the start of a window and the high bits of its hash; -1 marks a free slot.
    """
    power = np.uint64(1)
    for _ in range(length):
        power *= np.uint64(_BASE)
    mask = np.uint64(len(table) - 1)
    low_bits, tag_bits = np.int64((1 << 40) - 1), np.int64(0x7FFFFF) << np.int64(40)
    earlier = np.int64(-1)  # the earlier window that the previous window repeats; -1 for none
    before = np.int64(-2)  # the previous window
    hashed = np.int64(-2)  # the window whose hash is `rolling`
    rolling = np.uint64(0)
    earlier_end = np.int64(0)  # end of the text that contains the window `earlier`
    marked = np.int64(0)  # bytes before this index are already marked
    for anchor in range(len(firsts)):
        for window in range(firsts[anchor], lasts[anchor] + 1):
            follows = earlier >= 0 and before == window - 1 and earlier + length < earlier_end
            follows = follows and data[earlier + length] == data[window + length - 1]
            if follows:
                earlier += 1
            else:
                if hashed == window - 1:
                    rolling = rolling * np.uint64(_BASE) + np.uint64(data[window + length - 1]) + np.uint64(1)
                    rolling -= power * (np.uint64(data[window - 1]) + np.uint64(1))
                else:
                    rolling = np.uint64(0)
                    for place in range(window, window + length):
                        rolling = rolling * np.uint64(_BASE) + np.uint64(data[place]) + np.uint64(1)
                hashed = window
                value = (rolling ^ rolling >> np.uint64(32)) * np.uint64(_MIX_1)
                value ^= value >> np.uint64(29)
                tag = np.int64(value >> np.uint64(1)) & tag_bits
                slot = value & mask
                earlier = np.int64(-1)
                while table[slot] != -1:
                    if table[slot] & tag_bits == tag:
                        other = table[slot] & low_bits
                        same = True
                        for place in range(length):
                            if data[other + place] != data[window + place]:
                                same = False
                                break
                        if same:
                            earlier = other
                            break
                    slot = slot + np.uint64(1) & mask
                if earlier < 0:
                    table[slot] = tag | window
                else:
                    earlier_end = offsets[np.searchsorted(offsets, earlier, side="right")]
            before = window
            if earlier >= 0:
                for place in range(max(marked, window), window + length):
                    covered[place] = True
                marked = window + length
                if first_too:
                    for place in range(earlier + length - 1 if follows else earlier, earlier + length):
                        covered[place] = True
