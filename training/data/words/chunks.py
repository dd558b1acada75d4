"""Find the number of each chunk of a text (a run without white space) by its characters, without making strings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from training.data.words.native import native


class ChunkIndex:
    """Numbers of chunks by their characters: an open hash table over the characters of all chunks, end to end.

    Chunks are compared character by character, so hash collisions change nothing.
    """

    def __init__(self) -> None:
        self.size = 0  # chunks
        self._codes = np.zeros(8192, np.uint32)
        self._ends = np.zeros(1024, np.int64)  # end of each chunk in `_codes`
        self._hashes = np.zeros(1024, np.uint64)
        self._slots = np.full(4096, -1, np.int32)  # numbers of chunks

    def find(self, codes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the number of each chunk of a text, int32 [chunks] (-1: unknown), its bounds, int32 [chunks, 2]."""
        return _numbered(codes, self._codes, self._ends, self._hashes, self._slots)

    def learned(
        self, text: str, codes: np.ndarray, learn: Callable[[list[str]], dict[str, int]]
    ) -> tuple[np.ndarray, np.ndarray]:
        """Find the chunks of a text like `find`, after adding the unknown ones.

        `learn` adds each unknown chunk once, and returns the numbers of the chunks that it was given.
        """
        chunks, bounds = self.find(codes)
        unseen = np.flatnonzero(chunks < 0)
        if len(unseen):
            spelled = [text[start:end] for start, end in bounds[unseen].tolist()]
            numbers = learn(list(dict.fromkeys(spelled)))
            chunks[unseen] = [numbers[chunk] for chunk in spelled]
        return chunks, bounds

    def add(self, chunks: list[str]) -> None:
        """Add new chunks; they get the next numbers. An empty chunk gets a number but is never found."""
        first, start = self.size, int(self._ends[self.size - 1]) if self.size else 0
        self._codes = extended(self._codes, start, code_points("".join(chunks)))
        self._ends = extended(self._ends, first, start + np.cumsum([len(chunk) for chunk in chunks]))
        self._hashes = extended(self._hashes, first, np.zeros(len(chunks), np.uint64))
        self.size += len(chunks)
        if 2 * self.size > len(self._slots):
            self._slots, first = np.full(4 << (2 * self.size).bit_length(), -1, np.int32), 0
        _put(first, self.size, self._codes, self._ends, self._hashes, self._slots)


def code_points(text: str) -> np.ndarray:
    """Return the code points of a text, uint32 [characters]."""
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)


def extended(array: np.ndarray, size: int, more: Sequence[Any] | np.ndarray) -> np.ndarray:
    """Return an array with the first `size` rows of `array`, followed by `more`.

    It is `array` itself if there is room; otherwise a new array of at least twice the length.
    """
    end = size + len(more)
    if end > len(array):
        longer = np.zeros((max(end, 2 * len(array)), *array.shape[1:]), array.dtype)
        longer[:size] = array[:size]
        array = longer
    if len(more):
        array[size:end] = more
    return array


@native
def is_space(code):
    """Whether a character code is white space, as `str.isspace` decides."""
    if code < 128:
        return code == 32 or 9 <= code <= 13 or 28 <= code <= 31
    return (
        code == 0x85
        or code == 0xA0
        or code == 0x1680
        or 0x2000 <= code <= 0x200A
        or code == 0x2028
        or code == 0x2029
        or code == 0x202F
        or code == 0x205F
        or code == 0x3000
    )


@native
def _hash(codes, start, end):
    """64-bit hash of the characters in [start, end)."""
    value = np.uint64(0xCBF29CE484222325)
    for place in range(start, end):
        value = (value ^ np.uint64(codes[place])) * np.uint64(0x9E3779B97F4A7C15)
    return value ^ (value >> np.uint64(32))


@native
def _slot(value, codes, start, end, known, ends, hashes, slots):
    """Return the slot of a chunk in the hash table, or the free slot for it if the chunk is unknown.

    The slot holds the chunk's number. `value` is the chunk's hash.
    """
    mask = np.uint64(len(slots) - 1)
    slot = value & mask
    while slots[slot] >= 0:
        number = slots[slot]
        if hashes[number] == value:
            first = ends[number - 1] if number else 0
            if ends[number] - first == end - start:
                same = 0
                while same < end - start and known[first + same] == codes[start + same]:
                    same += 1
                if same == end - start:
                    break
        slot = (slot + np.uint64(1)) & mask
    return slot


@native
def _numbered(codes, known, ends, hashes, slots):
    """Compiled loop of `ChunkIndex.find`: return the number and the bounds of each chunk of a text."""
    numbers = np.empty(len(codes) // 2 + 1, np.int32)
    bounds = np.empty((len(numbers), 2), np.int32)
    count = place = 0
    while place < len(codes):
        if is_space(codes[place]):
            place += 1
            continue
        start = place
        while place < len(codes) and not is_space(codes[place]):
            place += 1
        slot = _slot(np.uint64(_hash(codes, start, place)), codes, start, place, known, ends, hashes, slots)
        numbers[count] = slots[slot]
        bounds[count, 0], bounds[count, 1] = start, place
        count += 1
    return numbers[:count].copy(), bounds[:count].copy()


@native
def _put(first, last, known, ends, hashes, slots):
    """Enter the chunks with the numbers `first` up to `last` (exclusive) into the table."""
    for number in range(first, last):
        start, end = ends[number - 1] if number else 0, ends[number]
        if start < end:
            hashes[number] = np.uint64(_hash(known, start, end))
            slots[_slot(hashes[number], known, start, end, known, ends, hashes, slots)] = number
