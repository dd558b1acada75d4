"""Count a text's characters in repeated word n-grams, for Gopher's repetition rules (arXiv 2112.11446).

Definitions are datatrove's, so that decisions agree. "Top" is the most frequent n-gram, joined by spaces: its length
times its count; of equally frequent n-grams the first counts. For "duplicate", the text is read from the start. An
n-gram whose characters were read before is counted and skipped; after any other n-gram reading continues at the next
word. N-grams are equal if their characters are, even if their words end at different places.

`repeated` is the plain version, `repeated_native` the compiled one for words given as numbers. It finds n-grams by hash
and then compares them, so hash collisions change nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from training.data.words.native import native

TOP_SIZES = (2, 3, 4)
DUPLICATE_SIZES = (5, 6, 7, 8, 9, 10)
_BASE = np.uint64(0x5851F42D4C957F2D)  # odd, so that it has an inverse modulo 2^64
_INVERSE = np.uint64(pow(int(_BASE), -1, 1 << 64))
_MIX = np.uint64(0x9E3779B97F4A7C15)


def repeated(words: Sequence[str]) -> list[int]:
    """Return the characters in the most frequent n-gram for n = 2, 3, 4, then in repeated n-grams for n = 5 to 10.

    The number for an n is 0 if the text has fewer than n words.
    """
    return [*(_top(words, size) for size in TOP_SIZES), *(_duplicate(words, size) for size in DUPLICATE_SIZES)]


def _top(words: Sequence[str], size: int) -> int:
    counts = Counter(" ".join(words[at : at + size]) for at in range(len(words) - size + 1))
    if not counts:
        return 0
    commonest = max(counts, key=counts.__getitem__)  # the first of equally frequent ones, as dicts keep their order
    return len(commonest) * counts[commonest]


def _duplicate(words: Sequence[str], size: int) -> int:
    seen: set[str] = set()
    characters = at = 0
    while at + size <= len(words):
        ngram = "".join(words[at : at + size])
        if ngram in seen:
            characters += len(ngram)
            at += size
        else:
            seen.add(ngram)
            at += 1
    return characters


def repeated_words(words: Sequence[str]) -> list[int]:
    """Return `repeated(words)`, computed by the compiled version unless a word contains a space."""
    text = "".join(words)
    if " " in text:
        return repeated(words)
    numbers: dict[str, int] = {}
    numbered = np.array([numbers.setdefault(word, len(numbers)) for word in words], np.int32)
    lengths = np.fromiter(map(len, numbers), np.int32, len(numbers))
    return repeated_native(numbered, lengths, np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32))


def repeated_native(words: np.ndarray, lengths: np.ndarray, codes: np.ndarray) -> list[int]:
    """Compiled version of `repeated`. No word may contain a space.

    `words` int32 [n] are word numbers, `lengths` int32 [m] the length of each numbered word, and `codes` uint32 the
    characters of all words end to end.
    """
    result = np.zeros(len(TOP_SIZES) + len(DUPLICATE_SIZES), np.int64)
    if len(words):
        _count(words, lengths, codes, result)
    return result.tolist()


@native
def _count(words, lengths, codes, result):
    num_words = len(words)
    slots = 16
    while slots < 2 * num_words:
        slots *= 2
    table = np.empty(slots, np.int32)  # position of an n-gram's first occurrence; -1: free
    counts = np.empty(num_words, np.int32)
    starts, sums, scales = _places(words, lengths, codes)
    for number in range(3):
        result[number] = _top_native(words, starts, 2 + number, table, counts)
    for number in range(6):
        result[3 + number] = _duplicate_native(codes, starts, sums, scales, 5 + number, table)


@native
def _places(words, lengths, codes):
    """Arrays for comparing runs of words by hash: where each word starts, prefix sums of a polynomial hash, and powers.

    They are int64 [n + 1], the sum of code · BASE^place before each word, and BASE^-place.
    """
    num_words = len(words)
    starts = np.zeros(num_words + 1, np.int64)
    sums = np.zeros(num_words + 1, np.uint64)
    scales = np.ones(num_words + 1, np.uint64)
    total, power, inverse = np.uint64(0), np.uint64(1), np.uint64(1)
    place = 0
    for number in range(num_words):
        for _ in range(lengths[words[number]]):
            total += (np.uint64(codes[place]) + np.uint64(1)) * power
            power *= _BASE
            inverse *= _INVERSE
            place += 1
        starts[number + 1], sums[number + 1], scales[number + 1] = place, total, inverse
    return starts, sums, scales


@native
def _mixed(value):
    value ^= value >> np.uint64(32)
    value *= _MIX
    return value ^ (value >> np.uint64(29))


@native
def _top_native(words, starts, size, table, counts):
    mask = np.uint64(len(table) - 1)
    table[:] = -1
    best = first = 0
    for at in range(len(words) - size + 1):
        value = np.uint64(0)
        for offset in range(size):
            value = (value + np.uint64(words[at + offset]) + np.uint64(1)) * _MIX
        slot = _mixed(value) & mask
        while table[slot] >= 0 and not _same_words(words, table[slot], at, size):
            slot = (slot + np.uint64(1)) & mask
        seen = table[slot]
        if seen < 0:
            table[slot] = seen = at
            counts[at] = 0
        counts[seen] += 1
        if counts[seen] > best or (counts[seen] == best and seen < first):
            best, first = counts[seen], seen
    return best * (starts[first + size] - starts[first] + size - 1) if best else 0


@native
def _same_words(words, one, other, size):
    same = 0
    while same < size and words[one + same] == words[other + same]:
        same += 1
    return same == size


@native
def _duplicate_native(codes, starts, sums, scales, size, table):
    mask = np.uint64(len(table) - 1)
    table[:] = -1
    characters = at = 0
    num_words = len(starts) - 1
    while at + size <= num_words:
        slot = _mixed((sums[at + size] - sums[at]) * scales[at]) & mask
        length = starts[at + size] - starts[at]
        while table[slot] >= 0 and not _same_codes(codes, starts, table[slot], at, size, length):
            slot = (slot + np.uint64(1)) & mask
        if table[slot] >= 0:
            characters += length
            at += size
        else:
            table[slot] = at
            at += 1
    return characters


@native
def _same_codes(codes, starts, one, other, size, length):
    if starts[one + size] - starts[one] != length:
        return False
    same = 0
    while same < length and codes[starts[one] + same] == codes[starts[other] + same]:
        same += 1
    return same == length
